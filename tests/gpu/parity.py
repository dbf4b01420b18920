"""Vectors of every family are those of sentence-transformers on the same device, in every type."""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.benchmarks.families import FAMILIES, MINILM, peer_of, train_tokenizer, write_folder
from tests.gpu.scale import NOT_THERE, PartTable, Scale, has_family, texts_of

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = ("BERT", "MPNet", "ModernBERT", "Qwen3")
MOST_DIFFERENCE = 1e-5  # of two values of unit vectors in float32
LEAST_ERROR = 1e-3  # 1 - cosine with float32 that half precision may have even if the peer's is smaller
PEER_ERRORS = 2.0  # times the peer's 1 - cosine that half precision may have


def parity(scale: Scale) -> PartTable:
    """Compare all families, or four of them if sizes are small."""
    names = SMALL if scale.small else tuple(name for name in FAMILIES if name != MINILM)
    texts = texts_of(scale.choose(12, 120), 1, scale.choose(40, 300))
    tokenizer = train_tokenizer(texts_of(500, 4, 40))
    rows, problems = [], []
    for number, name in enumerate(names):
        make, pooling = FAMILIES[name]
        assert isinstance(make, partial), "only the packaged encoder has no function"
        if not has_family(make.args[0]):
            rows.append([name, pooling, NOT_THERE, *[""] * 2 * len(HALVES)])
            continue
        folder = write_folder(make, tokenizer, scale.folder / f"family-{number}")
        errors = _errors(folder, pooling, texts, scale.device)
        rows.append([name, pooling, *(f"{error:.1e}" for error in errors.values())])
        scale.report(rows[-1])
        problems += [f"{name}: {problem}" for problem in _problems(errors)]
    if all(row[2] == NOT_THERE for row in rows):
        problems.append(f"no family was compared, expected {', '.join(names)}")
    header = ("float32, difference", *(f"{dtype}, {who}" for dtype in HALVES for who in ("Manta", "peer")))
    title = f"Largest difference of unit vectors, and largest 1 - cosine with float32; {len(texts)} texts"
    return PartTable(title, ("family", "pooling", *header), rows, problems)


def _errors(folder: Path, pooling: str, texts: list[str], device: str) -> dict[str, float]:
    """Return the difference in float32, and the errors of both in half precision, by name."""
    peer = peer_of(folder, pooling, device)

    def ours(dtype: str) -> np.ndarray:
        encode = EncodeSettings.model_validate({"dtype": dtype})
        settings = EncoderSettings(path=str(folder), pooling=pooling)
        return _unit(load_encoder(settings, encode, device).encode(texts))

    exact = _unit(peer.encode(texts))
    errors = {"float32": float(np.abs(ours("float32") - exact).max())}
    for name, dtype in HALVES.items():
        theirs = _unit(peer.to(dtype).encode(texts))
        errors[name] = 1 - float((ours(name) * exact).sum(axis=1).min())
        errors[f"{name} peer"] = 1 - float((theirs * exact).sum(axis=1).min())
        peer = peer_of(folder, pooling, device)
    return errors


def _problems(errors: dict[str, float]) -> list[str]:
    """Describe errors above their limits. A value that is not a number is above every limit."""
    limits = {"float32": MOST_DIFFERENCE} | {
        name: max(LEAST_ERROR, PEER_ERRORS * errors[f"{name} peer"]) for name in HALVES
    }
    return [
        f"{name} has an error of {errors[name]:.1e}, at most {limit:.1e} expected"
        for name, limit in limits.items()
        if not errors[name] <= limit
    ]


def _unit(vectors: np.ndarray) -> np.ndarray:
    wide = np.asarray(vectors, np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)

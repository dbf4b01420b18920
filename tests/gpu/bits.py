"""The bits of a vector depend neither on other texts nor on earlier calls."""

from pathlib import Path

import numpy as np

from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.benchmarks.families import FAMILIES, train_tokenizer, write_folder
from tests.gpu.scale import PartTable, Scale, texts_of
from tests.models.folders import save_folder

PACKED = ("BERT", "MPNet", "ModernBERT", "Qwen3", "Gemma 3")
PADDED = "electra"  # a family without a packed forward pass
DTYPES = ("float32", "bfloat16", "float16")
QUERIES = (1, 3, 30)  # texts of queries, which have smaller buffers


def bits(scale: Scale) -> PartTable:
    """Encode the same texts in other orders and companies."""
    texts = texts_of(scale.choose(60, 1_500), 1, scale.choose(30, 150))
    folders = _folders(scale, ("BERT", "ModernBERT") if scale.small else PACKED)
    rows, problems = [], []
    for (name, (folder, pooling)), dtype in ((item, dtype) for item in folders.items() for dtype in DTYPES):
        for compiled in (True, False) if scale.on_gpu and name != PADDED else (False,):
            encode = EncodeSettings.model_validate(
                {"dtype": dtype, "compile": compiled, "max_tokens": scale.choose(512, 4_096)}
            )
            settings = EncoderSettings(path=str(folder), pooling=pooling)
            found = _same(load_encoder(settings, encode, scale.device), texts)
            rows.append([name, dtype, "compiled" if compiled else "torch's", *map(str, found.values())])
            scale.report(rows[-1])
            problems += [
                f"{name}, {dtype}, compile={compiled}: {count} of the vectors differ {case}"
                for case, count in found.items()
                if count
            ]
    header = ("family", "type", "kernels", "in another order", "with fewer texts", "after queries")
    return PartTable(f"Vectors with other bits, of {len(texts)}", header, rows, problems)


def _folders(scale: Scale, names: tuple[str, ...]) -> dict[str, tuple[Path, str]]:
    """Write the encoders. Returns folder and pooling by name."""
    tokenizer, folders = train_tokenizer(texts_of(500, 4, 40)), {}
    for number, name in enumerate(names):
        make, pooling = FAMILIES[name]
        assert make is not None, "only the packaged encoder has no function"
        folders[name] = write_folder(make, tokenizer, scale.folder / f"bits-{number}"), pooling
    (scale.folder / PADDED).mkdir()
    return folders | {PADDED: (save_folder(scale.folder / PADDED, PADDED), "mean")}


def _same(encoder: Encoder, texts: list[str]) -> dict[str, int]:
    """Count the vectors that differ, by case."""
    together = encoder.encode(texts)
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled, fewer = encoder.encode([texts[row] for row in order]), encoder.encode(texts[: len(texts) // 3])
    for count in QUERIES:
        encoder.encode(texts[:count], query=True)
    again = encoder.encode(texts)
    return {
        "in another order": _different(shuffled, together[order]),
        "with fewer texts": _different(fewer, together[: len(fewer)]),
        "after queries": _different(again, together),
    }


def _different(left: np.ndarray, right: np.ndarray) -> int:
    """Count rows that differ in a bit."""
    return int((left.view(np.uint32) != right.view(np.uint32)).any(axis=1).sum())

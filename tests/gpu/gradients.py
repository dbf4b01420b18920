"""The packed training pass has the gradients of single texts on a CPU, and half precision lowers the loss."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.gpu.scale import NOT_THERE, PartTable, Scale, has_family
from tests.models.folders import TEXTS, save_folder
from tests.models.rotary_folders import ROTARY, save_rotary

FAMILIES = ("bert", "roberta", "distilbert", "mpnet", "modernbert", "nomic_bert", "gte", "qwen3", "gemma3")
SMALL = ("bert", "mpnet", "modernbert")
MOST_ERROR = 1e-5  # of the gradient of all parameters, as a proportion of its norm
STEPS, LEAST_DECREASE = 30, 0.5
HALVES = ("bfloat16", "float16")
LENGTH = 64  # tokens of the longest text


def gradients(scale: Scale) -> PartTable:
    """Compare the gradients of all parameters, and train every family in half precision for some steps."""
    rows, problems = [], []
    for family in SMALL if scale.small else FAMILIES:
        if not has_family(family):
            rows.append([family, NOT_THERE, *[""] * len(HALVES)])
            continue
        folder = _save(scale.folder / family, family)
        error = _gradient_error(folder, scale.device)
        halves = HALVES if scale.on_gpu else HALVES[:1]  # no gradients of float16 on a CPU
        losses = {dtype: _decrease(folder, dtype, scale.device) for dtype in halves}
        shown = [f"{losses[dtype]:.2f}" if dtype in losses else "" for dtype in HALVES]
        rows.append([family, f"{error:.1e}", *shown])
        scale.report(rows[-1])
        if not error <= MOST_ERROR:
            problems.append(f"{family}: gradients differ by {error:.1e} of their norm")
        problems += [
            f"{family}, {dtype}: the loss is {found:.2f} of the first after {STEPS} steps"
            for dtype, found in losses.items()
            if not found <= LEAST_DECREASE
        ]
    if all(row[1] == NOT_THERE for row in rows):
        problems.append("no family was compared")
    header = ("family", "error of gradients", *(f"loss in {dtype}" for dtype in HALVES))
    title = f"Gradients in float32, and the loss after {STEPS} steps as a proportion of the first"
    return PartTable(title, header, rows, problems)


def _save(folder: Path, family: str) -> Path:
    """Write a random model of a family."""
    if family in ROTARY:
        return save_rotary(family, folder)
    folder.mkdir()
    return save_folder(folder, family)


def _gradient_error(path: Path, device: str) -> float:
    """Compare one pass over all texts with the sum over passes of one text each on a CPU."""
    together = _gradients(path, device, [TEXTS])
    alone = _gradients(path, "cpu", [[text] for text in TEXTS])
    assert together.keys() == alone.keys()
    difference = torch.nn.utils.get_total_norm([together[name] - each for name, each in alone.items()])
    return float(difference / torch.nn.utils.get_total_norm(alone.values()))


def _gradients(path: Path, device: str, batches: Sequence[Sequence[str]]) -> dict[str, torch.Tensor]:
    """Sum the gradients of the same function of each vector, in any batches."""
    folder = open_folder(EncoderSettings(path=str(path), pooling="mean"))
    encoder, tokenize = load_trainable(folder, dropout=0.0).to(device), load_tokenizer(folder.path, LENGTH)
    direction = torch.from_numpy(np.random.default_rng(0).normal(size=encoder.dim)).float().to(device)
    for batch in batches:
        F.normalize(encoder(tokenize(batch)), dim=1).mul(direction).sum().backward()
    return {
        name: parameter.grad.cpu()
        for name, parameter in encoder.named_parameters()
        if parameter.grad is not None
    }


def _decrease(path: Path, name: str, device: str) -> float:
    """Train with dropout as the only difference of positives. Returns the last loss, divided by the first."""
    folder, dtype = open_folder(EncoderSettings(path=str(path), pooling="mean")), getattr(torch, name)
    encoder, texts = load_trainable(folder, dropout=0.1).to(device), list(dict.fromkeys(TEXTS))
    tokens = load_tokenizer(folder.path, LENGTH)(texts)
    optimizer = torch.optim.AdamW(encoder.parameters(), 1e-3, fused=True)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    losses = []
    for _ in range(STEPS):
        with torch.autocast(device, dtype):
            left, right = (F.normalize(encoder(tokens).float(), dim=1) for _ in range(2))
        loss = F.cross_entropy(left @ right.T / 0.05, torch.arange(len(texts), device=device))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    return losses[-1] / losses[0]

"""Steps of training, beside sentence-transformers' trainer on the same batches."""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import NO_PEERS
from pipeline.objectives.supervised import Supervised
from pipeline.settings import EncoderSettings
from pipeline.settings.training import OrderSettings, TrainSettings
from pipeline.text.rows.batches import RankSlice
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.train.batches import rank_batches
from pipeline.train.loop import Step, Training, fit
from tests.benchmarks.train import MAX_TOKENS, Peer, PeerModel, Rows
from tests.gpu.scale import PartTable, Scale, bert, peak_gib, texts_of
from tests.gpu.speed import seconds

WARM_UP_STEPS = 3
AVERAGED = 3  # steps whose losses are averaged
LEARNING_RATES = 1e-3, 5e-5  # of the small and of the large model, so that a few steps lower the loss


@dataclass(frozen=True)
class Kind:
    """A way to train."""

    name: str
    precision: str = "float32"
    compile: bool = False


def training(scale: Scale) -> PartTable:
    """Measure steps of every kind, each after a warm-up."""
    folder, count = bert(scale), WARM_UP_STEPS + scale.choose(3, 20)
    batch_rows = scale.choose(8, 256)
    data = _pairs(scale, batch_rows * (count + 1))
    precision = "bfloat16" if scale.on_gpu else "float32"
    kinds = [Kind("Manta float32"), Kind("Manta bfloat16", "bfloat16")]
    if scale.on_gpu:
        kinds.append(Kind("Manta bfloat16, compiled", "bfloat16", compile=True))
    rows, problems = [], []
    for kind in kinds:
        losses: list[float] = []
        step = _stepper(_steps(folder, data, batch_rows, kind, scale), losses)
        measured = _measure(step, count, scale)
        first, last = float(np.mean(losses[:AVERAGED])), float(np.mean(losses[-AVERAGED:]))
        rows.append([kind.name, *measured, f"{first:.3f}", f"{last:.3f}"])
        scale.report(rows[-1])
        if not last < first:
            problems.append(f"{kind.name}: the loss goes from {first:.3f} to {last:.3f}")
    if importlib.util.find_spec("datasets") is None:
        rows.append([f"sentence-transformers {precision}: datasets is not installed", "", "", "", ""])
    else:
        model = PeerModel(str(folder), scale.device, bfloat16=precision == "bfloat16")
        peer = Peer(data, batch_rows, count + 1, scale.folder, model)
        rows.append([f"sentence-transformers {precision}", *_measure(peer.step, count, scale), "", ""])
    title = f"Steps of {batch_rows} pairs of at most {MAX_TOKENS} tokens"
    return PartTable(
        title,
        ("trainer", "ms", "peak GiB", f"loss of the first {AVERAGED} steps", "of the last"),
        rows,
        problems,
    )


def _pairs(scale: Scale, count: int) -> Rows:
    """Write pairs: a text, and the same without some of its words."""
    file, rng = scale.folder / "pairs.parquet", np.random.default_rng(0)
    anchors = texts_of(count, 8, 20)
    positives = [" ".join(word for word in text.split() if rng.random() < 0.8) or text for text in anchors]
    pq.write_table(pa.table({"anchor": anchors, "positive": positives}), file)
    return Rows("pairs", file, Supervised, ("anchor", "positive"))


def _steps(folder: Path, data: Rows, batch_rows: int, kind: Kind, scale: Scale) -> Iterator[Step]:
    """Yield training steps, without end."""
    opened = open_folder(EncoderSettings(path=str(folder), pooling="mean", max_length=MAX_TOKENS))
    settings = TrainSettings.model_validate(
        {
            "order": OrderSettings(batch_rows=batch_rows),
            "precision": kind.precision,
            "compile": kind.compile,
            "optimizer": {"learning_rate": LEARNING_RATES[not scale.small]},
        }
    )
    torch.manual_seed(settings.seed)
    order = data.order(batch_rows)
    objective = Supervised(load_trainable(opened), head="none")
    work = Training(
        objective, settings, steps=10_000, steps_per_epoch=order.steps_per_epoch, device=scale.device
    )
    tokenize = load_tokenizer(opened.path, MAX_TOKENS)
    batches = rank_batches(order, tokenize, rank_slice=RankSlice(), peers=NO_PEERS)
    return fit(work, batches, until=10_000)


def _stepper(steps: Iterator[Step], losses: list[float]) -> Callable[[], None]:
    """Return a function that takes a step and appends its loss."""
    return lambda: losses.append(float(next(steps).loss.total))


def _measure(step: Callable[[], None], count: int, scale: Scale) -> list[str]:
    """Return the median milliseconds of a step after the first ones, and the peak memory."""
    for _ in range(WARM_UP_STEPS):
        step()
    peak_gib(scale)
    taken = [seconds(step, scale) for _ in range(count - WARM_UP_STEPS)]
    return [f"{1e3 * float(np.median(taken)):.1f}", peak_gib(scale)]

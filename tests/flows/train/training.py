"""Training rows, and jobs that are over in seconds."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from safetensors.numpy import load_file

from pipeline.config import load_settings
from pipeline.flows.train.plan import open_dev, open_test, plan_of
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.train import open_training, record_start
from pipeline.settings import Job
from pipeline.text.rows.batches import RankSlice
from pipeline.text.tokens.tokens import Tokenizer
from tests.flows.conftest import sentences


def write_sentences(file: Path, count: int = 96, seed: int = 0) -> Path:
    """Rows with a column `text`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": sentences(count, seed)}), file, row_group_size=40)
    return file


def write_sts(file: Path, count: int = 24, seed: int = 1) -> Path:
    """Pairs of sentences, scored by how many words they share."""
    left, right = sentences(count, seed), sentences(count, seed + 1)
    scores = [
        5 * len(set(a.split()) & set(b.split())) / len({*a.split(), *b.split()})
        for a, b in zip(left, right, strict=True)
    ]
    pq.write_table(pa.table({"sentence1": left, "sentence2": right, "score": scores}), file)
    return file


def write_books(file: Path, books: int = 6, length: int = 40) -> Path:
    """Write documents of made-up sentences."""
    texts = sentences(books * length)
    documents = [f"book {row // length}" for row in range(len(texts))]
    positions = [row % length for row in range(len(texts))]
    pq.write_table(pa.table({"text": texts, "document": documents, "position": positions}), file)
    return file


def write_running_text(file: Path, rows: int = 60_000) -> Path:
    """Sentences of real documents in their order, from the evaluation data."""
    table = pq.read_table(Path(os.environ["MANTA_EVAL_DATA"]) / "running" / "documents.parquet")
    pq.write_table(table.slice(0, rows).rename_columns({"doc_id": "document"}), file)
    return file


def unstarted(config: Path, folder: Path, name: str, *overrides: str) -> TrainRank:
    """Open the training `name` of a config, and return its only rank, which has not begun."""
    fixed = (
        f"train.root={folder / 'trainings'}",
        f"train.name={name}",
        "train.watch={steps: 1, trackers: []}",
        "train.checkpoint={steps: 4, minutes: null}",
    )
    job, run = open_training(load_settings(Job, config, (*fixed, *overrides)))
    plan = plan_of(job.train)
    record_start(run, plan, "a new encoder")
    return TrainRank(
        run,
        job.encoder,
        job.train,
        plan,
        open_dev(job.train),
        expansion=job.train.expand.vectors,
        test=open_test(job.train),
    )


def training_arguments(folder: Path, encoder: Path) -> list[str]:
    """A training of 12 steps over 96 sentences, as command line overrides."""
    return [
        f"encoder.path={encoder}",
        f"train.data={folder / 'sentences.parquet'}",
        f"train.root={folder / 'trainings'}",
        "train.name=run",
        "train.order.batch_rows=8",
        "train.order.window_rows=32",
        "train.checkpoint={steps: 4, minutes: null}",
        "train.optimizer.learning_rate=0.001",
        "train.watch={steps: 1, trackers: []}",
    ]


def training_job(folder: Path, encoder: Path, *overrides: str) -> Job:
    if not (folder / "sentences.parquet").exists():
        write_sentences(folder / "sentences.parquet")
    return load_settings(Job, None, (*training_arguments(folder, encoder), *overrides))


class Stop(Exception):
    """Ends a training before its last step."""


def until(step: int) -> Callable[[int, str], None]:
    """Return a progress function that ends the worker at that step."""

    def tell(done: int, note: str) -> None:
        if done == step:
            raise Stop

    return tell


def work(rank: int, world: int, task: TrainRank, stop: int, meeting: Path) -> None:
    """One of several ranks, in a process of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=world)
    with suppress(Stop):
        task(RankSlice(rank, world), "cpu", until(stop))
    dist.destroy_process_group()


def losses(run: Path) -> list[float]:
    """Return the losses of all steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def weights(folder: Path) -> Mapping[str, np.ndarray]:
    """Load the weights of an encoder folder by name."""
    found: dict[str, np.ndarray] = load_file(folder / "model.safetensors")
    return found


def word_entropy(tokenizer: Tokenizer, counted: Sequence[str], written: Sequence[str]) -> float:
    """Sum of -log of the frequencies, among the `counted` texts, of the words and ends of `written` texts.

    It is the loss of decoders that know how often each word occurs and ignore what they read.
    """
    counts = np.bincount(tokenizer(counted).ids, minlength=len(tokenizer.vocabulary()))
    counts[tokenizer.prefix[0]] = 0  # a start token is not predicted
    predicted = tokenizer(written).ids
    predicted = predicted[predicted != tokenizer.prefix[0]]
    return float(-np.log(counts[predicted] / counts.sum()).sum())

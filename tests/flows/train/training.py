"""Rows to train on, short trainings in this process, and checks of resumed trainings and of nights."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from safetensors.numpy import load_file

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.train.plan import open_dev, open_test, plan_of
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.run_folder import open_run
from pipeline.flows.train.train import open_training, record_start
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.text.rows.batches import RankSlice
from pipeline.text.tokens.tokens import Tokenizer
from tests.flows.conftest import job_arguments, sentences, write_corpus


def write_sentences(file: Path, count: int = 96, seed: int = 0) -> Path:
    """Write made-up sentences as a column `text`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": sentences(count, seed)}), file, row_group_size=40)
    return file


def write_sts(file: Path, count: int = 24, seed: int = 1) -> Path:
    """Write pairs of made-up sentences; the score is 5 times the proportion of words that they share."""
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
    """Write sentences of real documents, in their order, from the evaluation data."""
    table = pq.read_table(Path(os.environ["MANTA_EVAL_DATA"]) / "running" / "documents.parquet")
    pq.write_table(table.slice(0, rows).rename_columns({"doc_id": "document"}), file)
    return file


def write_caption_documents(file: Path) -> Path:
    """Write the five captions of each image as a document, from the evaluation data."""
    captions = Path(os.environ["MANTA_EVAL_DATA"]) / "captions" / "flickr30k_captions.parquet"
    table = pq.read_table(captions)
    documents = table["image_id"].cast(pa.string())
    positions = [int(name.partition("#")[2]) for name in table["caption_id"].to_pylist()]
    pq.write_table(pa.table({"text": table["text"], "document": documents, "position": positions}), file)
    return file


def write_caption_pairs(file: Path) -> Path:
    """Write pairs of captions of an image, from the evaluation data; a caption is in one pair at most."""
    captions = Path(os.environ["MANTA_EVAL_DATA"]) / "captions" / "flickr30k_captions.parquet"
    table = pq.read_table(captions).slice(0, 60_000)
    images, texts = table["image_id"].to_numpy(), table["text"].to_pylist()
    first = np.flatnonzero(images[1:] == images[:-1])[::2]
    pairs = {"anchor": [texts[row] for row in first], "positive": [texts[row + 1] for row in first]}
    pq.write_table(pa.table(pairs), file)
    return file


def rank_of_config(config: Path, folder: Path, name: str, *overrides: str) -> TrainRank:
    """Open the training `name` of a config; return its only rank, which has not started."""
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
    """Return the overrides of a training of 12 steps over 96 sentences, as on the command line."""
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
    """Return the job of `training_arguments` with overrides; write its sentences if they are missing."""
    if not (folder / "sentences.parquet").exists():
        write_sentences(folder / "sentences.parquet")
    return load_settings(Job, None, (*training_arguments(folder, encoder), *overrides))


def rank_of(folder: Path, encoder: Path, *overrides: str) -> TrainRank:
    """Open the training of `training_arguments`; return its only rank, which has not started."""
    job = training_job(folder, encoder, *overrides)
    run, plan = open_run(job.train, open_folder(job.encoder)), plan_of(job.train)
    record_start(run, plan, job.encoder.path)
    return TrainRank(run, job.encoder, job.train, plan, open_dev(job.train))


class Stop(Exception):
    """Ends a training before its last step."""


def until(step: int) -> Callable[[int, str], None]:
    """Return a progress function that stops the training at that step."""

    def report(done: int, note: str) -> None:
        if done == step:
            raise Stop

    return report


def train(rank: TrainRank, stop: int = -1) -> None:
    """Train in this process, up to the last step or until `stop`, where the training raises Stop."""
    rank(RankSlice(), "cpu", until(stop))


def assert_resumes_to_the_same_bits(
    whole: TrainRank, parts: TrainRank, *stops: int, cross_encoder: bool = False
) -> None:
    """Train `whole` at once, and `parts` with a stop at each of `stops`; both have to give the same encoder.

    The encoder has to differ from the one that the training starts from.
    """
    train(whole)
    for stop in stops:
        with pytest.raises(Stop):
            train(parts, stop)
    train(parts)
    expected, found = (
        open_folder(EncoderSettings(path=rank.run.encoder), cross_encoder=cross_encoder).space_id
        for rank in (whole, parts)
    )
    assert found == expected
    assert found != open_folder(whole.encoder).space_id


def assert_equal_weights(found: Path, expected: Path) -> None:
    """Assert that two encoder folders have the same weights, to the last bit."""
    own, others = weights(found), weights(expected)
    assert own.keys() == others.keys()
    for name, values in others.items():
        np.testing.assert_array_equal(own[name], values, err_msg=name)


def assert_nights_store_and_search(
    folder: Path, rank: TrainRank, rows: Sequence[int] = (100, 120), tolerance: float = 0.0
) -> None:
    """Run a night with the trained encoder over a corpus of each size.

    Its release has to have all rows, to encode the newest text like the encoder, up to the tolerance, and to
    find it.
    """
    encoder = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings())
    arguments = (
        *job_arguments(folder, Path(rank.run.encoder)),
        "gates.recall_at_10=",
        "gates.unknown_tokens=",
    )
    for count in rows:
        write_corpus(folder / "corpus", count)
        nightly(load_settings(Job, None, arguments), Stages())
        release, newest = open_release(folder / "releases"), sentences(count)[-1]
        assert (len(release), release.space_id) == (count, encoder.space_id)
        np.testing.assert_allclose(release.encode([newest]), encoder.encode([newest]), rtol=0, atol=tolerance)
        assert release.search(newest, k=3)["text"][0].as_py() == newest


def train_on_two_ranks(rank: TrainRank, folder: Path, stop: int = -1) -> None:
    """Train in two processes, up to the last step or until `stop`."""
    torch.multiprocessing.start_processes(
        work, (2, rank, stop, folder / "rendezvous"), nprocs=2, start_method="spawn"
    )


def work(rank: int, world: int, task: TrainRank, stop: int, rendezvous: Path) -> None:
    """Train as one of several ranks, in a process of its own, until `stop`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous.as_uri(), rank=rank, world_size=world)
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


def word_entropy(tokenizer: Tokenizer, counted: Sequence[str], predicted_texts: Sequence[str]) -> float:
    """Return the loss of a decoder that knows how often each word occurs and ignores the encoder's vector.

    It is the sum of -log of the frequencies, in the `counted` texts, of the words and end tokens of the
    predicted texts.
    """
    counts = np.bincount(tokenizer(counted).ids, minlength=len(tokenizer.vocabulary()))
    counts[tokenizer.prefix[0]] = 0  # a start token is not predicted
    predicted = tokenizer(predicted_texts).ids
    predicted = predicted[predicted != tokenizer.prefix[0]]
    return float(-np.log(counts[predicted] / counts.sum()).sum())

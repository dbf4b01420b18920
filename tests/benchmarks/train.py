"""A training step against sentence-transformers' trainer; what GradCache costs and saves; one worker against
two.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.train step --threads 1 --pairs 15 MANTA_EVAL_DATA=...
    python -m tests.benchmarks.train chunks MANTA_EVAL_DATA=... python -m tests.benchmarks.train memory
    MANTA_EVAL_DATA=... python -m tests.benchmarks.train workers MANTA_EVAL_DATA=... python -m
    tests.benchmarks.train resume

All train the packaged all-MiniLM-L6-v2 in float32 with dropout. `step`: both trainers on equal batches of 64
rows, a step of one and a step of the other in turn; unsupervised SimCSE on Wikipedia sentences cut at 32
tokens, and supervised SimCSE on SNLI triples. The peer is its Trainer.train() as it is, held before each
step.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.distributed as dist

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import NO_PEERS, Objective
from pipeline.objectives.simcse import SimCSE
from pipeline.objectives.supervised import Supervised
from pipeline.settings import EncoderSettings
from pipeline.settings.training import OrderSettings, PairSettings, TrainSettings
from pipeline.store.store import open_store
from pipeline.text.rows.batches import RankSlice
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.pairs import open_training_rows
from pipeline.text.rows.triples import write_triples
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.train.batches import batches
from pipeline.train.gather import Ranks, world_size
from pipeline.train.loop import Step, Training, fit
from tests.benchmarks.machine import machine, print_table, spread

WARM = 2  # steps of either side before the first that counts
LIMIT = 32  # tokens of a text, as SimCSE is trained
WIKIPEDIA = "simcse_wiki1m_slice"


@dataclass(frozen=True)
class Rows:
    """Training rows in a file, and what they train."""

    name: str
    uri: Path
    kind: type[Objective]
    columns: tuple[str, ...]

    def order(self, rows: int, bucket_batches: int = 1) -> ShuffledOrder:
        pairs = open_training_rows(PairSettings(uri=str(self.uri)), self.kind.columns, self.kind.optional)
        return ShuffledOrder(pairs, OrderSettings(batch_rows=rows, bucket_batches=bucket_batches))


def prepared(scratch: Path) -> list[Rows]:
    """The two data sets, in files below `scratch`."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    wiki = pq.read_table(data / "wiki" / "sentences.parquet", filters=[("source", "=", WIKIPEDIA)])
    pq.write_table(wiki.select(["text"]), scratch / "wiki.parquet")
    labelled = open_training_rows(
        PairSettings(uri=str(data / "nli" / "snli.parquet")), ("premise", "hypothesis", "label")
    )
    write_triples(labelled, open_store(scratch), "triples.parquet")
    return [
        Rows("SimCSE unsupervised", scratch / "wiki.parquet", SimCSE, ("text", "text")),
        Rows(
            "SimCSE supervised", scratch / "triples.parquet", Supervised, ("anchor", "positive", "negative")
        ),
    ]


def folder() -> EncoderFolder:
    return open_folder(EncoderSettings(max_length=LIMIT))


def steps(
    rows: Rows, settings: TrainSettings, *, share: RankSlice = RankSlice(), bucket_batches: int = 1
) -> Iterator[Step]:
    """Those of our training, without end."""
    torch.manual_seed(settings.seed)
    encoder = folder()
    objective = rows.kind(load_trainable(encoder), head="none")  # type: ignore[call-arg]
    order = rows.order(settings.order.batch_rows, bucket_batches)
    training = Training(objective, settings, steps=10_000, steps_per_epoch=order.steps_per_epoch)
    tokenize = load_tokenizer(
        encoder.path / encoder.transformer, encoder.max_length, lower=encoder.lower, cuts=encoder.cuts
    )
    return fit(
        training,
        batches(order, tokenize, share=share, peers=Ranks() if world_size() > 1 else NO_PEERS),
        until=10_000,
    )


class Peer:
    """sentence-transformers' trainer: a thread that waits for a call before each of its steps."""

    def __init__(self, rows: Rows, batch_rows: int, count: int, scratch: Path) -> None:
        self._go, self._done, self._failure = threading.Semaphore(0), threading.Semaphore(0), None
        table = [each.table for each in islice(rows.order(batch_rows).batches(0), count)]
        columns = {
            f"{place}": [text for part in table for text in part[role].to_pylist()]
            for place, role in enumerate(rows.columns)
        }
        self._threads = torch.get_num_threads()
        self._trainer = self._made(columns, batch_rows, count, scratch)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._done.acquire()  # it stands before its first step

    def step(self) -> None:
        """Take one step, the fetching of its batch included."""
        self._go.release()
        self._done.acquire()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a thread has its own number
        try:
            self._trainer.train()
        except BaseException as error:  # told where the step was asked for
            self._failure = error
            self._done.release()
            raise

    def _made(self, columns: dict[str, list[str]], batch_rows: int, count: int, scratch: Path) -> Any:
        from datasets import Dataset
        from sentence_transformers import (
            SentenceTransformer,
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        from torch.utils.data import BatchSampler, SequentialSampler
        from transformers import TrainerCallback

        class Gate(TrainerCallback):
            def on_train_begin(gate, *_: object, **__: object) -> None:
                self._done.release()
                self._go.acquire()

            def on_step_end(gate, *_: object, **__: object) -> None:
                self._done.release()
                self._go.acquire()

        model = SentenceTransformer(str(folder().path), device="cpu")
        model.max_seq_length = LIMIT
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(scratch / "peer"),
            per_device_train_batch_size=batch_rows,
            max_steps=count,
            learning_rate=3e-5,
            weight_decay=0.0,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            batch_sampler=lambda rows, **_: BatchSampler(SequentialSampler(rows), batch_rows, True),
        )
        loss = MultipleNegativesRankingLoss(model, scale=20.0)
        return SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(columns),
            loss=loss,
            callbacks=[Gate()],
        )


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turn(works: dict[str, Callable[[], object]], pairs: int) -> dict[str, list[float]]:
    """Seconds of each work, one after the other `pairs` times, whose turn is first alternating."""
    took: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(WARM + pairs):
        for name in list(works) if turn % 2 else list(works)[::-1]:
            found = seconds(works[name])
            if turn >= WARM:
                took[name].append(found)
    return took


def compare_steps(threads: int, pairs: int, batch_rows: int) -> None:
    pin(threads)
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for rows in prepared(Path(scratch)):
            peer, settings = (
                Peer(rows, batch_rows, pairs + WARM + 1, Path(scratch)),
                TrainSettings(order=OrderSettings(batch_rows=batch_rows)),
            )
            own, bucketed = steps(rows, settings), steps(rows, settings, bucket_batches=16)
            took = in_turn(
                {
                    "peer": peer.step,
                    "ours": lambda own=own: next(own),
                    "by length": lambda bucketed=bucketed: next(bucketed),
                },
                pairs,
            )
            ratios = {
                name: [a / b for a, b in zip(took["peer"], took[name], strict=True)]
                for name in ("ours", "by length")
            }
            lines.append(
                [
                    rows.name,
                    *(f"{1e3 * statistics.median(each):,.0f}" for each in took.values()),
                    spread(ratios["ours"]),
                    spread(ratios["by length"]),
                ]
            )
    header = (
        "batch",
        "peer ms",
        "ours ms",
        "ours, by length ms",
        "ratio, equal batches",
        "ratio, our batches by length",
    )
    print_table(
        f"A step of {batch_rows} rows, {threads} thread(s), {pairs} interleaved pairs; {machine()}",
        lines,
        header,
    )


def compare_chunks(threads: int, pairs: int, batch_rows: int) -> None:
    """What exact gradients in chunks cost beside the whole batch at once."""
    pin(threads)
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for rows in prepared(Path(scratch)):
            plain = TrainSettings(order=OrderSettings(batch_rows=batch_rows))
            sizes = {
                "whole": None,
                **{f"chunks of {size}": size for size in (batch_rows // 2, batch_rows // 4, batch_rows // 8)},
            }
            streams = {
                name: steps(rows, plain.model_copy(update={"chunk_rows": size}))
                for name, size in sizes.items()
            }
            took = in_turn(
                {name: lambda stream=stream: next(stream) for name, stream in streams.items()}, pairs
            )
            for name, found in took.items():
                lines.append(
                    [
                        rows.name,
                        name,
                        f"{1e3 * statistics.median(found):,.0f}",
                        spread([a / b for a, b in zip(found, took["whole"], strict=True)]),
                    ]
                )
    print_table(
        f"GradCache, a step of {batch_rows} rows, {threads} thread(s), {pairs} turns; {machine()}",
        lines,
        ("batch", "encoded", "ms", "times the whole"),
    )


def peak(batch_rows: int, chunk_rows: int | None) -> float:
    """MiB that two supervised steps of a process of their own held at most."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.train",
        "peak",
        "--rows",
        str(batch_rows),
        *(["--chunk-rows", str(chunk_rows)] if chunk_rows else []),
    ]
    found = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    print(batch_rows, chunk_rows, found, file=sys.stderr, flush=True)
    return found


def print_peak(batch_rows: int, chunk_rows: int | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        own = steps(
            prepared(Path(scratch))[1],
            TrainSettings(order=OrderSettings(batch_rows=batch_rows), chunk_rows=chunk_rows),
        )
        for _ in range(2):
            next(own)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def compare_memory(chunk_rows: int) -> None:
    lines = [
        [f"{size:,}", f"{peak(size, None):,.0f}", f"{peak(size, chunk_rows):,.0f}"]
        for size in (64, 128, 256, 512, 1024)
    ]
    print_table(
        f"Peak memory of a process, SimCSE supervised; {machine()}",
        lines,
        ("rows of a batch", "whole MiB", f"chunks of {chunk_rows} MiB"),
    )


def rank_at_work(
    rank: int, world: int, address: str, pairs: int, batch_rows: int, scratch: str, results: Any
) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=world)
    rows = Rows("", Path(scratch) / "triples.parquet", Supervised, ("anchor", "positive", "negative"))
    own = steps(
        rows,
        TrainSettings(order=OrderSettings(batch_rows=batch_rows)),
        share=RankSlice(rank, world),
        bucket_batches=16,
    )
    took = [seconds(lambda: next(own)) for _ in range(WARM + pairs)][WARM:]
    if rank == 0:
        results.put(took)


def compare_workers(pairs: int, batch_rows: int) -> None:
    """The same batches by one process on one core, and by two on two, in turn."""
    context, took = torch.multiprocessing.get_context("spawn"), {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        prepared(Path(scratch))
        for turn in range(4):
            for world in (1, 2) if turn % 2 else (2, 1):
                results = context.SimpleQueue()
                arguments = (world, f"{scratch}/group-{turn}-{world}", pairs, batch_rows, scratch, results)
                processes = [
                    context.Process(target=rank_at_work, args=(rank, *arguments)) for rank in range(world)
                ]
                for process in processes:
                    process.start()
                took[world].append(statistics.median(results.get()))
                for process in processes:
                    process.join()
    efficiency = [one / (2 * two) for one, two in zip(took[1], took[2], strict=True)]
    line = [
        f"{batch_rows}",
        *(f"{1e3 * statistics.median(took[world]):,.0f}" for world in (1, 2)),
        spread(efficiency),
    ]
    title = (
        f"SimCSE supervised, workers of one pinned core each, {len(efficiency)} turns of {pairs} steps; "
        f"{machine()}"
    )
    print_table(title, [line], ("rows of a batch", "1 worker ms", "2 workers ms", "efficiency"))


def begun(command: list[str], checkpoints: Path, after: int) -> tuple[subprocess.Popen[bytes], float, int]:
    """The command at work, the seconds until it had kept a later step than `after`, and that step."""
    process, started = (
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ),
        time.perf_counter(),
    )
    while (
        step := max((int(file.stem.split("-")[1]) for file in checkpoints.glob("*.json")), default=0)
    ) <= after:
        if process.poll() is not None:
            raise RuntimeError(f"the command ended with {process.returncode}")
        time.sleep(0.05)
    return process, time.perf_counter() - started, step


def time_resuming(turns: int) -> None:
    """From the command to the first new step that is kept: of a new training, and of one whose driver was
    killed. A checkpoint after every step.
    """
    first, again = [], []
    with tempfile.TemporaryDirectory() as scratch:
        prepared(Path(scratch))
        for turn in range(turns):
            place = [
                f"train.data={scratch}/triples.parquet",
                f"train.root={scratch}",
                f"train.name=run{turn}",
            ]
            command = [
                sys.executable,
                "-m",
                "jobs.train",
                *place,
                "train.objective=supervised",
                "train.checkpoint.steps=1",
            ]
            checkpoints = Path(scratch) / f"run{turn}" / "checkpoints"
            process, took, step = begun(command, checkpoints, 0)
            first.append(took)
            process.kill()
            process.wait()
            process, took, _ = begun(
                command, checkpoints, step + 1
            )  # the worker may have kept one more before it saw that its driver is gone
            again.append(took)
            process.terminate()
            process.wait()
    print_table(
        f"SimCSE supervised, 64 rows, 1 worker, Ray's start included, {turns} turns; {machine()}",
        [[spread(first, ".1f"), spread(again, ".1f")]],
        ("new: s to the first step", "killed with -9: s to the next step"),
    )


def pin(threads: int) -> None:
    """To so many cores, with so many threads."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    torch.set_num_threads(threads)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("step", "chunks", "memory", "workers", "resume", "peak"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--chunk-rows", type=int)
    given = parser.parse_args()
    if "MANTA_EVAL_DATA" not in os.environ:
        sys.exit("set MANTA_EVAL_DATA to the folder of evaluation data")
    if given.what == "step":
        compare_steps(given.threads, given.pairs, given.rows)
    elif given.what == "chunks":
        compare_chunks(given.threads, given.pairs, given.rows)
    elif given.what == "memory":
        compare_memory(given.chunk_rows or 64)
    elif given.what == "workers":
        compare_workers(given.pairs, given.rows)
    elif given.what == "resume":
        time_resuming(3)
    else:
        print_peak(given.rows, given.chunk_rows)


if __name__ == "__main__":
    main()

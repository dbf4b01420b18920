"""Measure training steps: beside sentence-transformers, with GradCache, with two workers, after a kill.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.train step --threads 1 --pairs 15
    MANTA_EVAL_DATA=... python -m tests.benchmarks.train chunks
    MANTA_EVAL_DATA=... python -m tests.benchmarks.train memory
    MANTA_EVAL_DATA=... python -m tests.benchmarks.train workers
    MANTA_EVAL_DATA=... python -m tests.benchmarks.train resume

All train the packaged all-MiniLM-L6-v2 in float32 with dropout, by unsupervised SimCSE on Wikipedia sentences
truncated at 32 tokens or by supervised SimCSE on SNLI triples. `step` measures steps of Manta and of
sentence-transformers' unchanged Trainer.train() in turn, on equal batches. `chunks` and `memory` measure
GradCache, `workers` one and two workers, `resume` the start of a new training and of one that was killed.
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
from pipeline.settings.training import OrderSettings, SourceSettings, TrainSettings
from pipeline.text.rows.batches import RankSlice
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.training_rows import open_training_rows
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.train.batches import rank_batches
from pipeline.train.gather import Ranks, world_size
from pipeline.train.loop import Step, Training, fit
from tests.benchmarks.machine import machine, print_table, spread
from tests.benchmarks.triples import write_triples

WARM_UP_STEPS = 2  # steps that are not counted
MAX_TOKENS = 32  # per text, as in the training of SimCSE
WIKIPEDIA = "simcse_wiki1m_slice"


@dataclass(frozen=True)
class Rows:
    """Training rows in a file, with the objective that they are for."""

    name: str
    uri: Path
    kind: type[Objective]
    columns: tuple[str, ...]

    def order(self, rows: int, bucket_batches: int = 1) -> ShuffledOrder:
        pairs = open_training_rows(SourceSettings(uri=str(self.uri)), self.kind.columns, self.kind.optional)
        return ShuffledOrder(pairs, OrderSettings(batch_rows=rows, bucket_batches=bucket_batches))


def prepare_rows(scratch: Path) -> list[Rows]:
    """Write the two data sets to files in `scratch`."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    wiki = pq.read_table(data / "wiki" / "sentences.parquet", filters=[("source", "=", WIKIPEDIA)])
    pq.write_table(wiki.select(["text"]), scratch / "wiki.parquet")
    write_triples(data / "nli" / "snli.parquet", scratch)
    return [
        Rows("SimCSE unsupervised", scratch / "wiki.parquet", SimCSE, ("text", "text")),
        Rows("SimCSE supervised", scratch / "triples", Supervised, ("anchor", "positive", "negative")),
    ]


def folder() -> EncoderFolder:
    return open_folder(EncoderSettings(max_length=MAX_TOKENS))


def steps(
    rows: Rows, settings: TrainSettings, *, rank_slice: RankSlice = RankSlice(), bucket_batches: int = 1
) -> Iterator[Step]:
    """Yield training steps of Manta, without end."""
    torch.manual_seed(settings.seed)
    encoder = folder()
    objective = rows.kind(load_trainable(encoder), head="none")  # type: ignore[call-arg]
    order = rows.order(settings.order.batch_rows, bucket_batches)
    training = Training(objective, settings, steps=10_000, steps_per_epoch=order.steps_per_epoch)
    tokenize = load_tokenizer(
        encoder.path / encoder.transformer,
        encoder.max_length,
        lower=encoder.lower,
        truncation_side=encoder.truncation_side,
    )
    return fit(
        training,
        rank_batches(order, tokenize, rank_slice=rank_slice, peers=Ranks() if world_size() > 1 else NO_PEERS),
        until=10_000,
    )


@dataclass(frozen=True)
class PeerModel:
    """Encoder of the peer, and where and how it is trained."""

    path: str
    device: str = "cpu"
    bfloat16: bool = False


class Peer:
    """sentence-transformers' trainer, in a thread that waits for a call of `step` before each step."""

    def __init__(
        self, rows: Rows, batch_rows: int, count: int, scratch: Path, model: PeerModel | None = None
    ) -> None:
        """Start the thread.

        Args:
            rows: training rows.
            batch_rows: rows of a batch.
            count: number of steps.
            scratch: folder for the trainer's files.
            model: encoder to train; None: the packaged one.
        """
        self._model = model or PeerModel(str(folder().path))
        self._go, self._done, self._failure = threading.Semaphore(0), threading.Semaphore(0), None
        table = [each.table for each in islice(rows.order(batch_rows).batches(0), count)]
        columns = {
            f"{number}": [text for part in table for text in part[role].to_pylist()]
            for number, role in enumerate(rows.columns)
        }
        self._threads = torch.get_num_threads()
        self._trainer = self._trainer_for(columns, batch_rows, count, scratch)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._done.acquire()  # wait until the trainer is ready for its first step

    def step(self) -> None:
        """Take one step, with the loading of its batch."""
        self._go.release()
        self._done.acquire()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # torch has this setting for each thread
        try:
            self._trainer.train()
        except BaseException as error:  # `step` raises it
            self._failure = error
            self._done.release()
            raise

    def _trainer_for(self, columns: dict[str, list[str]], batch_rows: int, count: int, scratch: Path) -> Any:
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

        model = SentenceTransformer(self._model.path, device=self._model.device)
        model.max_seq_length = MAX_TOKENS
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(scratch / "peer"),
            per_device_train_batch_size=batch_rows,
            max_steps=count,
            learning_rate=3e-5,
            weight_decay=0.0,
            use_cpu=self._model.device == "cpu",
            bf16=self._model.bfloat16,
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


def time_in_turn(works: dict[str, Callable[[], object]], pairs: int) -> dict[str, list[float]]:
    """Time each function `pairs` times, in turn and in alternating order. Returns the seconds by name."""
    durations: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(WARM_UP_STEPS + pairs):
        for name in list(works) if turn % 2 else list(works)[::-1]:
            found = seconds(works[name])
            if turn >= WARM_UP_STEPS:
                durations[name].append(found)
    return durations


def compare_steps(threads: int, pairs: int, batch_rows: int) -> None:
    """Compare steps of Manta with steps of sentence-transformers."""
    pin(threads)
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for rows in prepare_rows(Path(scratch)):
            peer, settings = (
                Peer(rows, batch_rows, pairs + WARM_UP_STEPS + 1, Path(scratch)),
                TrainSettings(order=OrderSettings(batch_rows=batch_rows)),
            )
            own, bucketed = steps(rows, settings), steps(rows, settings, bucket_batches=16)
            durations = time_in_turn(
                {
                    "peer": peer.step,
                    "ours": lambda own=own: next(own),
                    "by length": lambda bucketed=bucketed: next(bucketed),
                },
                pairs,
            )
            ratios = {
                name: [a / b for a, b in zip(durations["peer"], durations[name], strict=True)]
                for name in ("ours", "by length")
            }
            lines.append(
                [
                    rows.name,
                    *(f"{1e3 * statistics.median(each):,.0f}" for each in durations.values()),
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
    """Compare steps in chunks (GradCache), which have the exact gradient, with steps on the whole batch."""
    pin(threads)
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for rows in prepare_rows(Path(scratch)):
            plain = TrainSettings(order=OrderSettings(batch_rows=batch_rows))
            sizes = {
                "whole": None,
                **{f"chunks of {size}": size for size in (batch_rows // 2, batch_rows // 4, batch_rows // 8)},
            }
            streams = {
                name: steps(rows, plain.model_copy(update={"chunk_rows": size}))
                for name, size in sizes.items()
            }
            durations = time_in_turn(
                {name: lambda stream=stream: next(stream) for name, stream in streams.items()}, pairs
            )
            for name, found in durations.items():
                lines.append(
                    [
                        rows.name,
                        name,
                        f"{1e3 * statistics.median(found):,.0f}",
                        spread([a / b for a, b in zip(found, durations["whole"], strict=True)]),
                    ]
                )
    print_table(
        f"GradCache, a step of {batch_rows} rows, {threads} thread(s), {pairs} turns; {machine()}",
        lines,
        ("batch", "encoded", "ms", "times the whole"),
    )


def peak(batch_rows: int, chunk_rows: int | None) -> float:
    """Return the peak memory, in MiB, of a process that takes two supervised steps."""
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
    """Take two supervised steps in this process, and print its peak memory in MiB."""
    with tempfile.TemporaryDirectory() as scratch:
        own = steps(
            prepare_rows(Path(scratch))[1],
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


def run_rank(
    rank: int, world: int, address: str, pairs: int, batch_rows: int, scratch: str, results: Any
) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=world)
    rows = Rows("", Path(scratch) / "triples", Supervised, ("anchor", "positive", "negative"))
    own = steps(
        rows,
        TrainSettings(order=OrderSettings(batch_rows=batch_rows)),
        rank_slice=RankSlice(rank, world),
        bucket_batches=16,
    )
    durations = [seconds(lambda: next(own)) for _ in range(WARM_UP_STEPS + pairs)][WARM_UP_STEPS:]
    if rank == 0:
        results.put(durations)


def compare_workers(pairs: int, batch_rows: int) -> None:
    """Compare steps on the same batches by one process on one core and by two processes on two cores."""
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two workers need two cores, and this process may use one")
    context, durations = torch.multiprocessing.get_context("spawn"), {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        prepare_rows(Path(scratch))
        for turn in range(4):
            for world in (1, 2) if turn % 2 else (2, 1):
                results = context.SimpleQueue()
                arguments = (world, f"{scratch}/group-{turn}-{world}", pairs, batch_rows, scratch, results)
                processes = [
                    context.Process(target=run_rank, args=(rank, *arguments)) for rank in range(world)
                ]
                for process in processes:
                    process.start()
                durations[world].append(statistics.median(results.get()))
                for process in processes:
                    process.join()
    efficiency = [one / (2 * two) for one, two in zip(durations[1], durations[2], strict=True)]
    line = [
        f"{batch_rows}",
        *(f"{1e3 * statistics.median(durations[world]):,.0f}" for world in (1, 2)),
        spread(efficiency),
    ]
    title = (
        f"SimCSE supervised, workers of one pinned core each, {len(efficiency)} turns of {pairs} steps; "
        f"{machine()}"
    )
    print_table(title, [line], ("rows of a batch", "1 worker ms", "2 workers ms", "efficiency"))


def start_training(
    command: list[str], checkpoints: Path, after: int
) -> tuple[subprocess.Popen[bytes], float, int]:
    """Start a training command, and wait until it has stored a checkpoint of a step after `after`.

    Returns:
        The running process, the seconds until the checkpoint, and its step.
    """
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
    """Measure from the command to the first new checkpoint, for a new training and for one that was killed.

    A checkpoint is written after every step.
    """
    first, again = [], []
    with tempfile.TemporaryDirectory() as scratch:
        prepare_rows(Path(scratch))
        for turn in range(turns):
            run_settings = [
                f"train.data={scratch}/triples",
                f"train.root={scratch}",
                f"train.name=run{turn}",
            ]
            command = [
                sys.executable,
                "-m",
                "jobs.train",
                *run_settings,
                "train.objective=supervised",
                "train.checkpoint.steps=1",
            ]
            checkpoints = Path(scratch) / f"run{turn}" / "checkpoints"
            process, seconds_to_step, step = start_training(command, checkpoints, 0)
            first.append(seconds_to_step)
            process.kill()
            process.wait()
            # the worker may store one more checkpoint before it notices that its driver is gone
            process, seconds_to_step, _ = start_training(command, checkpoints, step + 1)
            again.append(seconds_to_step)
            process.terminate()
            process.wait()
    print_table(
        f"SimCSE supervised, 64 rows, 1 worker, Ray's start included, {turns} turns; {machine()}",
        [[spread(first, ".1f"), spread(again, ".1f")]],
        ("new: s to the first step", "killed with -9: s to the next step"),
    )


def pin(threads: int) -> None:
    """Pin this process to `threads` cores, with as many torch threads."""
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
    options = parser.parse_args()
    if "MANTA_EVAL_DATA" not in os.environ:
        sys.exit("set MANTA_EVAL_DATA to the folder of evaluation data")
    if options.what == "step":
        compare_steps(options.threads, options.pairs, options.rows)
    elif options.what == "chunks":
        compare_chunks(options.threads, options.pairs, options.rows)
    elif options.what == "memory":
        compare_memory(options.chunk_rows or 64)
    elif options.what == "workers":
        compare_workers(options.pairs, options.rows)
    elif options.what == "resume":
        time_resuming(3)
    else:
        print_peak(options.rows, options.chunk_rows)


if __name__ == "__main__":
    main()

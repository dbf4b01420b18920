"""Train a flow (BERT-flow) on the stored vectors, on one worker, from the last checkpoint on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np

from pipeline.config import digest_of
from pipeline.device import resolve
from pipeline.errors import DataError
from pipeline.flows.rows import LiveRows, is_live, row_addresses
from pipeline.flows.transform.write import store_transform
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import PlainTask, Pool, progress
from pipeline.flows.workers.worker_encoder import gpu_assigned
from pipeline.log import RunningStage, announce
from pipeline.settings import FlowSettings, WhitenSettings
from pipeline.stats.tensors import unpack
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make
from pipeline.store.rows.schema import vectors_at
from pipeline.transforms.compare import DevTask
from pipeline.transforms.flow import Flow
from pipeline.transforms.transform import Transform, space_after

if TYPE_CHECKING:
    from pipeline.train.bert_flow import FlowTrainer, HeldOut


PIECE_ROWS = 8_192  # consecutive rows of a unit, read together: 12 MB at d = 384
WINDOW_PIECES = 8  # pieces shuffled together, from eight places of the corpus: 100 MB at d = 384


Prepare = Callable[[np.ndarray], np.ndarray]
"""a function from raw vectors (n, d) to the inputs (n, d') of the flow"""


class RowOrder:
    """Shuffled batches of the live rows of units, except rows at `left_out` addresses.

    The order depends only on units, seed and epoch. Pieces of consecutive rows are shuffled; eight pieces
    form a window, whose rows are shuffled. If training starts at a later step, earlier windows are not read.

    Raises:
        DataError: on reading, if a file is not the one recorded.
        SpaceMismatch: on reading, if vectors belong to another space.
    """

    def __init__(
        self, source: LiveRows, units: Sequence[VectorUnit], left_out: np.ndarray, batch_rows: int, seed: int
    ) -> None:
        self._source, self._seed = source, seed
        self._left_out, self._dead = np.sort(left_out), DeadRows(source.store, source.dead)
        sizes = [len(self._rows(unit)) for unit in units]
        self.rows = sum(sizes)
        # (unit, slice of its rows that are trained on)
        self._pieces = [
            (unit, slice(start, min(start + PIECE_ROWS, size)))
            for unit, size in zip(units, sizes, strict=True)
            for start in range(0, size, PIECE_ROWS)
        ]
        self.batch_rows = max(1, min(batch_rows, self.rows))

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches of an epoch; remaining rows are skipped, and differ between epochs."""
        return self.rows // self.batch_rows

    def batches(self, start: int, prepare: Prepare) -> Iterator[np.ndarray]:
        """Yield the vectors (batch_rows, d) of step `start` and of every later step, without end.

        Args:
            start: first step.
            prepare: applied to the vectors of each piece.
        """
        first_epoch, skipped_steps = divmod(start, self.steps_per_epoch)
        for epoch in count(first_epoch):
            windows = self._windows(epoch, skipped_steps * self.batch_rows, prepare)
            yield from islice(_cut(windows, self.batch_rows), self.steps_per_epoch - skipped_steps)
            skipped_steps = 0

    def _windows(self, epoch: int, skip: int, prepare: Prepare) -> Iterator[np.ndarray]:
        """Yield the rows of the epoch in order, without the first `skip`."""
        piece_order = np.random.default_rng((self._seed, epoch)).permutation(len(self._pieces))
        for first in range(0, len(piece_order), WINDOW_PIECES):
            pieces = [self._pieces[number] for number in piece_order[first : first + WINDOW_PIECES]]
            size = sum(rows.stop - rows.start for _, rows in pieces)
            if skip < size:
                order = np.random.default_rng((self._seed, epoch, first + 1)).permutation(size)
                yield np.concatenate([prepare(self._read(*piece)) for piece in pieces])[order[skip:]]
            skip = max(0, skip - size)

    def _read(self, unit: VectorUnit, rows: slice) -> np.ndarray:
        return vectors_at(self._source.open(unit), self._rows(unit)[rows])

    def _rows(self, unit: VectorUnit) -> np.ndarray:
        """Return the rows of the unit's file that are trained on, ascending."""
        return np.flatnonzero(is_live(unit, self._dead) & ~np.isin(row_addresses(unit), self._left_out))


def _cut(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield the rows of all blocks in batches of `size`; an incomplete batch at the end is dropped."""
    rest: np.ndarray | None = None
    for block in blocks:
        rows = block if rest is None else np.concatenate([rest, block])
        end = len(rows) - len(rows) % size
        yield from (rows[start : start + size] for start in range(0, end, size))
        rest = rows[end:].copy()


_VERSION = "flow-1"  # change it with every change of the code that changes the result of a training
_MIN_ROWS = 10  # fewer are a mistake of the user
# Rows to hold out: a proportion within limits. More than the greatest number would only cost time.
_HELD_OUT = 0.01
_MIN_HELD_OUT, _MAX_HELD_OUT = 512, 8_192
_CURVE_POINTS = 20  # largest number of points of the training curve after the start


@dataclass(frozen=True)
class FlowTraining:
    """The definition of a training."""

    source: LiveRows
    """reader of the live rows"""
    units: tuple[VectorUnit, ...]
    """units of the live rows"""
    settings: FlowSettings
    """settings of the flow"""
    before: Transform | None = None
    """fitted transform that is applied to the vectors before the flow; None if there is none"""
    dev: DevTask | None = None
    """task with raw vectors, whose score the training curve shows"""

    @property
    def id(self) -> str:
        """Return the hexadecimal sha256 of the definition.

        On machines of one kind, trainings with one id give equal flows, also with other checkpoint_steps.
        """
        units = [[unit.ordinal, unit.sha256] for unit in self.units]
        dead = self.source.dead and self.source.dead.sha256
        before = self.before and self.before.transform_id
        dev = self.dev and [
            sha256(np.ascontiguousarray(part).tobytes()).hexdigest()
            for part in vars(self.dev).values()
            if isinstance(part, np.ndarray)
        ]
        settings = self.settings.model_dump(mode="json", exclude={"checkpoint_steps"})
        return digest_of([_VERSION, self.source.space_id, units, dead, before, dev, settings])

    @property
    def space_id(self) -> str:
        """Space of the vectors that the flow transforms."""
        return self.source.space_id if self.before is None else space_after(self.before)

    @property
    def checkpoint(self) -> str:
        """Path of the last checkpoint of an unfinished training."""
        return f"transforms/flow-{self.id[:24]}/checkpoint.safetensors"

    @property
    def record(self) -> str:
        """Path of the record of a finished training."""
        return f"transforms/flow-{self.id[:24]}/record.json"

    def prepare(self, vectors: np.ndarray) -> np.ndarray:
        """Transform raw vectors to the input of the flow."""
        return vectors if self.before is None else self.before(vectors)


def check_flow(settings: WhitenSettings, dim: int) -> None:
    """Check, before anything is fitted, that a flow among the steps can halve its vectors at each level.

    Args:
        settings: settings of the transform.
        dim: width of the encoder's vectors. A whitening before the flow gives k dimensions, or as many as the
            rank, which is not known yet.

    Raises:
        ConfigError: the vectors cannot be halved that often.
    """
    names = settings.transform.split("+")
    if "flow" not in names or settings.mode == "off":
        return
    from pipeline.models.layers.glow import check_levels

    if "whitening" not in names or settings.rotation == "zca":
        check_levels(dim, settings.flow.levels)
    elif isinstance(settings.k, int) and settings.k <= dim:
        check_levels(settings.k, settings.flow.levels)


class _Trained(Stored):
    """The record of a finished training."""

    training: str
    transform: FileRef


def train_flow(training: FlowTraining, workers: Workers, pool: Pool, bar: RunningStage) -> Flow:
    """Train the flow, from the last checkpoint on, or load it if it is finished. `bar` shows the rows.

    A single worker of `pool` trains: a step is a few dozen products with matrices of 32 columns and takes
    3 ms at d = 384, about as long as workers would take to exchange gradients.

    Raises:
        ConfigError: the dimension cannot be halved that often.
        DataError: too few rows, only equal rows, or a likelihood or gradient that is not finite; nothing is
            stored.
    """
    store, rows = training.source.store, _total_rows(training)
    record = _Trained.load_complete(store, training.record)
    if record is not None:
        return Flow.from_bytes(record.transform.read(store))
    bar.expect(rows)
    if (checkpoint := _load_checkpoint(training)) is not None:
        announce(f"the training of the flow continues after step {unpack(checkpoint)[1].get('step', 0):,}")
    ((_, file),) = workers.map_units(TrainFlow(), [training], pool, bar)
    bar.reach(rows)  # a short training may end before its rows were shown
    return Flow.from_bytes(file.read(store))


@dataclass(frozen=True)
class TrainFlow(PlainTask[FlowTraining, FileRef]):
    """Train one flow to its end, on the GPU that this worker was assigned, else on the CPU."""

    def work(self, training: FlowTraining) -> FileRef:
        from pipeline.models.layers.numerics import use_threads
        from pipeline.train.bert_flow import Diverged

        store = training.source.store

        def train() -> _Trained:
            # Matrices as small as those of a flow gain nothing from more threads, and with one thread, sums
            # have one order on all machines of a kind.
            with use_threads(1):
                return _Trained(training=training.id, transform=store_transform(store, _train(training)))

        try:
            made = load_or_make(store, training.record, _Trained, train)
        except Diverged:
            store.delete(training.checkpoint)  # from this checkpoint on it would diverge again
            raise
        store.delete(training.checkpoint)
        return made.transform


def _train(training: FlowTraining) -> Flow:
    """Train from the last checkpoint, or from the start, to the last step."""
    order, held_out = _split_rows(training)
    trainer = _resume_or_start(training, order, held_out)
    steps = _steps(order.rows, order.batch_rows, training.settings.epochs)
    for batch in islice(order.batches(trainer.step, training.prepare), steps - trainer.step):
        trainer.train_step(batch)
        progress(trainer.step * order.batch_rows)
        # at evenly spaced steps, including the last
        if trainer.step * _CURVE_POINTS // steps > (trainer.step - 1) * _CURVE_POINTS // steps:
            trainer.evaluate(held_out)
        if trainer.step % training.settings.checkpoint_steps == 0:
            training.source.store.write(training.checkpoint, trainer.to_bytes())
    progress(steps * order.batch_rows, last=True)
    return trainer.to_flow(held_out, min(order.rows, steps * order.batch_rows), training.space_id)


def _split_rows(training: FlowTraining) -> "tuple[RowOrder, HeldOut]":
    """Return the rows to train on, and about 1 % of the rows, chosen by hash of id, to evaluate on."""
    from pipeline.train.bert_flow import HeldOut

    source, units, settings = training.source, training.units, training.settings
    count = _held_out_rows(sum(source.counts(units)))
    addresses, vectors = source.sample(units, count, "held out of the flow")
    held_out = HeldOut(training.prepare(vectors), training.dev, training.prepare)
    return RowOrder(source, units, addresses, settings.batch_rows, settings.seed), held_out


def _resume_or_start(training: FlowTraining, order: RowOrder, held_out: "HeldOut") -> "FlowTrainer":
    """Return the trainer at its last checkpoint, or at its start."""
    from pipeline.train.bert_flow import FlowTrainer

    device = resolve("auto", float(gpu_assigned())).torch()
    trainer = FlowTrainer(held_out.rows.shape[1], training.settings, device)
    if (checkpoint := _load_checkpoint(training)) is not None:
        trainer.restore(checkpoint)
    else:
        trainer.initialize(next(order.batches(0, training.prepare)), held_out)
    return trainer


def _held_out_rows(rows: int) -> int:
    """Return the number of rows to hold out. Raises DataError if there are too few rows to train on."""
    if rows < _MIN_ROWS:
        raise DataError(
            "flow", f"at least {_MIN_ROWS} rows to train on", f"{rows}", "give more text, or use whitening"
        )
    return min(max(int(_HELD_OUT * rows), _MIN_HELD_OUT), _MAX_HELD_OUT, rows // 5)


def _steps(rows: int, batch_rows: int, epochs: float) -> int:
    return max(1, round(epochs * (rows // batch_rows)))


def _total_rows(training: FlowTraining) -> int:
    """Return the number of rows in the batches of all steps together."""
    rows = sum(training.source.counts(training.units))
    rows -= _held_out_rows(rows)
    batch_rows = min(training.settings.batch_rows, rows)
    return batch_rows * _steps(rows, batch_rows, training.settings.epochs)


def _load_checkpoint(training: FlowTraining) -> bytes | None:
    """Load the last checkpoint; None if it is missing or unreadable."""
    try:
        unpack(checkpoint := training.source.store.read(training.checkpoint))
    except (FileNotFoundError, DataError):
        return None
    return checkpoint

"""Training of a flow (BERT-flow) on the stored vectors, by one worker that continues after a restart."""

from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from pipeline.config import digest_of
from pipeline.device import resolve
from pipeline.errors import DataError
from pipeline.flows.rows import LiveRows, PlacedUnit
from pipeline.flows.transform.flow_order import RowOrder
from pipeline.flows.transform.write import store_transform
from pipeline.flows.workers.tasks import PlainTask, Pool, progress
from pipeline.flows.workers.worker import gpu_assigned
from pipeline.flows.workers.workers import Workers
from pipeline.log import Running, say
from pipeline.post import Transform, space_after
from pipeline.post.compare import DevTask
from pipeline.post.flow import Flow
from pipeline.settings import FlowSettings, WhitenSettings
from pipeline.stats.tensors import unpack
from pipeline.store.once import remembered
from pipeline.store.stored import FileRef, Stored

if TYPE_CHECKING:
    from pipeline.train.flow import FlowFit, HeldOut

_VERSION = "flow-1"  # changes with every change of the training that changes bits of its result
_LEAST_ROWS = 10  # so few are a mistake
_HELD_SHARE = 0.01
_HELD_LEAST, _HELD_MOST = 512, 8_192  # rows; more would only cost time
_POINTS = 20  # of the curve, at most, without the start


@dataclass(frozen=True)
class FlowTraining:
    """The definition of a training.

    Attributes:
        source: live rows.
        units: their units.
        settings: of the flow.
        before: a fitted transform that is applied to the vectors first, as in a chain.
        dev: a task with raw vectors, only for the curve.
    """

    source: LiveRows
    units: tuple[PlacedUnit, ...]
    settings: FlowSettings
    before: Transform | None = None
    dev: DevTask | None = None

    @property
    def id(self) -> str:
        """Return the hexadecimal sha256 of the definition.

        Equal trainings give equal flows on machines of one kind, however often checkpoints are written.
        """
        units = [[placed.ordinal, placed.unit.sha256] for placed in self.units]
        dead, before = self.source.dead and self.source.dead.sha256, self.before and self.before.transform_id
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
        settings: of the transform.
        dim: width of the encoder's vectors. A whitening before the flow gives k dimensions, or as many as the
            rank, which is not known yet.

    Raises:
        ConfigError: the vectors cannot be halved that often.
    """
    names = settings.transform.split("+")
    if "flow" not in names or settings.mode == "off":
        return
    from pipeline.models.glow import check_levels

    if "whitening" not in names or settings.rotation == "zca":
        check_levels(dim, settings.flow.levels)
    elif isinstance(settings.k, int) and settings.k <= dim:
        check_levels(settings.k, settings.flow.levels)


class _Trained(Stored):
    """The record of a finished training."""

    training: str
    transform: FileRef


def train_flow(training: FlowTraining, workers: Workers, pool: Pool, bar: Running | None = None) -> Flow:
    """Train the flow, from the last checkpoint on, or load it if it is finished. `bar` follows its rows.

    One worker trains, with the resources that `pool` gives to one: a step is a few dozen products with
    matrices of 32 columns and takes 3 ms at d = 384, about as long as workers would take to exchange
    gradients.

    Raises:
        ConfigError: the dimension cannot be halved that often.
        DataError: too few rows, only equal rows, or a likelihood or gradient that is not finite; nothing is
            stored.
    """
    store, rows = training.source.store, _rows_in_all(training)
    record = _Trained.load_complete(store, training.record)
    if record is not None:
        return Flow.from_bytes(record.transform.read(store))
    if bar is not None:
        bar.expect(rows)
    if (checkpoint := _last(training)) is not None:
        say(f"the training of the flow continues after step {unpack(checkpoint)[1].get('step', 0):,}")
    ((_, made),) = workers.map_units(TrainFlow(), [training], pool, bar)
    if bar is not None:
        bar.reach(rows)  # a short training may end before the driver has looked
    return Flow.from_bytes(made.read(store))


@dataclass(frozen=True)
class TrainFlow(PlainTask[FlowTraining, FileRef]):
    """Train one flow to its end, on the GPU that this worker was assigned, else on the CPU."""

    def work(self, training: FlowTraining) -> FileRef:
        from pipeline.train.flow import Diverged, one_thread

        store = training.source.store

        def train() -> _Trained:
            with one_thread():
                flow = _trained(training)
            return _Trained(training=training.id, transform=store_transform(store, flow))

        try:
            made = remembered(store, training.record, _Trained, train)
        except Diverged:
            store.delete(training.checkpoint)  # it would diverge there again
            raise
        store.delete(training.checkpoint)
        return made.transform


def _trained(training: FlowTraining) -> Flow:
    """Return the flow after all steps."""
    order, held = _laid_out(training)
    fit, steps = _begun(training, order, held), _steps(order.rows, order.batch_rows, training.settings.epochs)
    for batch in islice(order.batches(fit.step, training.prepare), steps - fit.step):
        fit.take(batch)
        progress(fit.step * order.batch_rows)
        # at evenly spaced steps, including the last
        if fit.step * _POINTS // steps > (fit.step - 1) * _POINTS // steps:
            fit.measure(held)
        if fit.step % training.settings.checkpoint_steps == 0:
            training.source.store.write(training.checkpoint, fit.to_bytes())
    progress(steps * order.batch_rows, last=True)
    return fit.fitted(held, min(order.rows, steps * order.batch_rows), training.space_id)


def _laid_out(training: FlowTraining) -> "tuple[RowOrder, HeldOut]":
    """Return the rows to train on, and about 1 % of the rows, chosen by hash of id, to evaluate on."""
    from pipeline.train.flow import HeldOut

    source, units, settings = training.source, training.units, training.settings
    addresses, vectors = source.sample(units, _held_rows(sum(source.counts(units))), "held out of the flow")
    held = HeldOut(training.prepare(vectors), training.dev, training.prepare)
    return RowOrder(source, units, addresses, settings.batch_rows, settings.seed), held


def _begun(training: FlowTraining, order: RowOrder, held: "HeldOut") -> "FlowFit":
    """Return the training at its last checkpoint, or at its start."""
    from pipeline.train.flow import FlowFit

    fit = FlowFit(held.rows.shape[1], training.settings, resolve("auto", float(gpu_assigned())).torch())
    if (checkpoint := _last(training)) is not None:
        fit.restore(checkpoint)
    else:
        fit.begin(next(order.batches(0, training.prepare)), held)
    return fit


def _held_rows(rows: int) -> int:
    """Return the number of rows to hold out. Raises DataError if too few are left."""
    if rows < _LEAST_ROWS:
        raise DataError(
            "flow", f"at least {_LEAST_ROWS} rows to train on", f"{rows}", "give more text, or use whitening"
        )
    return min(max(int(_HELD_SHARE * rows), _HELD_LEAST), _HELD_MOST, rows // 5)


def _steps(rows: int, batch_rows: int, epochs: float) -> int:
    return max(1, round(epochs * (rows // batch_rows)))


def _rows_in_all(training: FlowTraining) -> int:
    """Return the number of rows of all steps together."""
    rows = sum(training.source.counts(training.units))
    rows -= _held_rows(rows)
    batch_rows = min(training.settings.batch_rows, rows)
    return batch_rows * _steps(rows, batch_rows, training.settings.epochs)


def _last(training: FlowTraining) -> bytes | None:
    """Load the last checkpoint; None if it is missing or unreadable."""
    try:
        unpack(checkpoint := training.source.store.read(training.checkpoint))
    except (FileNotFoundError, DataError):
        return None
    return checkpoint

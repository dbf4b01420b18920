"""A flow (BERT-flow) is trained on the stored vectors, by one worker of the cluster that goes on where a killed one was."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from pipeline.config import digest_of
from pipeline.device import resolve
from pipeline.errors import DataError
from pipeline.flows.rows import LiveRows, Placed
from pipeline.flows.transform.flow_order import RowOrder
from pipeline.flows.workers.tasks import Pool, progress
from pipeline.flows.workers.worker import gpu_assigned
from pipeline.flows.workers.workers import Workers
from pipeline.log import Running, say
from pipeline.post import Transform, space_after
from pipeline.post.compare import Dev
from pipeline.post.flow import Flow
from pipeline.settings import FlowSettings, WhitenSettings
from pipeline.stats.tensors import unpack
from pipeline.store.base import Store
from pipeline.store.units import FileRef, Stored

if TYPE_CHECKING:
    from pipeline.train.flow import FlowFit, HeldOut

_VERSION = "flow-1"  # changes with any change of the training that changes bits
_LEAST_ROWS = 10  # two to train on are fewer than anyone means
_HELD_SHARE = 0.01
_HELD_LEAST, _HELD_MOST = 512, 8_192  # rows; more would only cost time
_POINTS = 20  # of the curve at most, the beginning excepted


@dataclass(frozen=True)
class FlowTraining:
    """What defines a training. before: a fitted transform that the vectors go through first, as in a chain; dev: a task with raw vectors, for the curve alone."""

    source: LiveRows
    units: tuple[Placed, ...]
    settings: FlowSettings
    before: Transform | None = None
    dev: Dev | None = None

    @property
    def id(self) -> str:
        """sha256 (hex): equal trainings give equal flows on machines of one kind. How often checkpoints are written changes nothing."""
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
        """The space that the flow works in."""
        return self.source.space_id if self.before is None else space_after(self.before)

    @property
    def checkpoint(self) -> str:
        """Where the last checkpoint lies while the training is not finished."""
        return f"transforms/flow-{self.id[:24]}/checkpoint.safetensors"

    @property
    def record(self) -> str:
        """Where a finished training says what it made."""
        return f"transforms/flow-{self.id[:24]}/record.json"

    def prepare(self, vectors: np.ndarray) -> np.ndarray:
        """Raw vectors as the flow gets them."""
        return vectors if self.before is None else self.before(vectors)


def check_flow(settings: WhitenSettings, dim: int) -> None:
    """ConfigError where a flow among the steps cannot halve its vectors as often as it has levels, as far as that shows before anything is fitted.

    dim: of the encoder; a whitening in front gives k dimensions, or as many as the rank, which is not known yet.
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
    """What a finished training leaves."""

    training: str
    transform: FileRef


def train_flow(training: FlowTraining, workers: Workers, pool: Pool, bar: Running | None = None) -> Flow:
    """The flow of that training: the one that a finished run stored, else trained now, from the last checkpoint on where a run was stopped. `bar` follows its rows.

    One worker does it, with what `pool` gives to one: a step is a few dozen products with matrices of 32 columns and takes 3 ms at d = 384, about as long as gradients
    of several workers would take to meet.
    ConfigError where the dimension cannot be halved so often; DataError with too few rows, equal rows only, or when the likelihood or its gradient is not finite:
    nothing is stored then.
    """
    store, rows = training.source.store, _rows_in_all(training)
    made = _finished(store, training)
    if made is None:
        if bar is not None:
            bar.expect(rows)
        _tell_resumed(store, training)
        ((_, made),) = workers.map_units(TrainFlow(), [training], pool, bar)
        if bar is not None:
            bar.reach(rows)  # a short training is over before the driver has looked
    return Flow.from_bytes(store.read_checked(made.path, made.sha256))


@dataclass(frozen=True)
class TrainFlow:
    """Train one flow to its end, on the GPU that this worker was given, else on the CPU."""

    def start(self) -> Callable[[FlowTraining], FileRef]:
        return self._work

    def _work(self, training: FlowTraining) -> FileRef:
        from pipeline.train.flow import Diverged, one_thread

        store = training.source.store
        if (made := _finished(store, training)) is not None:
            return made
        try:
            with one_thread():
                flow = _trained(training)
        except Diverged:
            store.delete(training.checkpoint)  # it would end there again
            raise
        made = _stored(store, training, flow)
        store.delete(training.checkpoint)
        return made


def _trained(training: FlowTraining) -> Flow:
    """The flow after all steps."""
    order, held = _laid_out(training)
    fit, steps = _begun(training, order, held), _steps(order.rows, order.batch_rows, training.settings.epochs)
    for batch in islice(order.batches(fit.step, training.prepare), steps - fit.step):
        fit.take(batch)
        progress(fit.step * order.batch_rows)
        if (
            fit.step * _POINTS // steps > (fit.step - 1) * _POINTS // steps
        ):  # evenly, the last step among them
            fit.measure(held)
        if fit.step % training.settings.checkpoint_steps == 0:
            training.source.store.write(training.checkpoint, fit.to_bytes())
    progress(steps * order.batch_rows, last=True)
    return fit.fitted(held, min(order.rows, steps * order.batch_rows), training.space_id)


def _laid_out(training: FlowTraining) -> "tuple[RowOrder, HeldOut]":
    """The rows to train on, and about one in a hundred, by hash of their ids, that are left out and measured."""
    from pipeline.train.flow import HeldOut

    source, units, settings = training.source, training.units, training.settings
    addresses, vectors = source.sample(units, _held_rows(sum(source.counts(units))), "held out of the flow")
    held = HeldOut(training.prepare(vectors), training.dev, training.prepare)
    return RowOrder(source, units, addresses, settings.batch_rows, settings.seed), held


def _begun(training: FlowTraining, order: RowOrder, held: "HeldOut") -> "FlowFit":
    """The training as its last checkpoint left it, or at its beginning."""
    from pipeline.train.flow import FlowFit

    fit = FlowFit(held.rows.shape[1], training.settings, resolve("auto", float(gpu_assigned())).torch())
    if (checkpoint := _last(training.source.store, training)) is not None:
        fit.restore(checkpoint)
    else:
        fit.begin(next(order.batches(0, training.prepare)), held)
    return fit


def _held_rows(rows: int) -> int:
    """How many rows are held out; DataError where too few would be left."""
    if rows < _LEAST_ROWS:
        raise DataError(
            "flow", f"at least {_LEAST_ROWS} rows to train on", f"{rows}", "give more text, or use whitening"
        )
    return min(max(int(_HELD_SHARE * rows), _HELD_LEAST), _HELD_MOST, rows // 5)


def _steps(rows: int, batch_rows: int, epochs: float) -> int:
    return max(1, round(epochs * (rows // batch_rows)))


def _rows_in_all(training: FlowTraining) -> int:
    """Rows of all steps together."""
    rows = sum(training.source.counts(training.units))
    rows -= _held_rows(rows)
    batch_rows = min(training.settings.batch_rows, rows)
    return batch_rows * _steps(rows, batch_rows, training.settings.epochs)


def _last(store: Store, training: FlowTraining) -> bytes | None:
    """The last checkpoint; None where there is none that can be read."""
    try:
        unpack(checkpoint := store.read(training.checkpoint))
    except (FileNotFoundError, DataError):
        return None
    return checkpoint


def _tell_resumed(store: Store, training: FlowTraining) -> None:
    if (checkpoint := _last(store, training)) is not None:
        say(f"the training of the flow goes on after step {unpack(checkpoint)[1].get('step', 0):,}")


def _stored(store: Store, training: FlowTraining, flow: Flow) -> FileRef:
    """The flow in a file, and the record that names it; what another worker recorded first is the same."""
    content = flow.to_bytes()
    path, digest = f"transforms/{flow.transform_id[:24]}.safetensors", sha256(content).hexdigest()
    made = FileRef(path=path, sha256=digest, rows=flow.fitted_rows, bytes=len(content))
    store.write(path, content)
    store.write(training.record, _Trained(training=training.id, transform=made).to_json())
    return made


def _finished(store: Store, training: FlowTraining) -> FileRef | None:
    """What an earlier run made of the same training, if its file is there in full."""
    record = _Trained.left(store, training.record)
    return (
        record.transform
        if record is not None and store.size(record.transform.path) == record.transform.bytes
        else None
    )

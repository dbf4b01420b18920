"""Measure kinds of index on a sample of the live rows, to plan an index that has to compress them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.config import digest_of
from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.index.tasks import affine_of
from pipeline.flows.rows import LiveRows
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.index.measure.kind_recall import CodeRecall, KindRecalls, KindVariant
from pipeline.log import packages
from pipeline.stats.tensors import pack, unpack
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make, load_or_make_racing, put_by_content
from pipeline.transforms import Affine, Transform

# Largest number of units that the sample is taken from. Each of so many gives 200 of the PILOT_ROWS; to read
# them, its stored sample (1.6 MB for 384 dimensions) is loaded, not the unit.
_MAX_UNITS = 1_000


class _PilotSample(Stored):
    """Sampled vectors of a pilot."""

    vectors: FileRef


class _MeasuredKind(Stored):
    """File with the measurement of one kind, which a later run loads."""

    found: CodeRecall


@dataclass(frozen=True)
class SamplePilot(PlainTask[tuple[VectorUnit, ...], _PilotSample]):
    """Sample vectors of live rows, and store them for the tasks that measure."""

    source: LiveRows
    folder: str

    def work(self, units: tuple[VectorUnit, ...]) -> _PilotSample:
        path = f"{self.folder}/sample.json"
        return load_or_make(self.source.store, path, _PilotSample, lambda: self._sample(units))

    def _sample(self, units: tuple[VectorUnit, ...]) -> _PilotSample:
        from pipeline.index.build.kind_trial import PILOT_ROWS

        store = self.source.store
        _, vectors = self.source.sample(units, PILOT_ROWS, "train")
        with store.scratch() as scratch:
            (scratch / "sample.safetensors").write_bytes(pack({"vectors": vectors}, {}))
            file = put_by_content(store, scratch / "sample.safetensors", f"{self.folder}/", len(vectors))
        return _PilotSample(vectors=file)


@dataclass(frozen=True)
class MeasureKind(PlainTask[KindVariant, CodeRecall]):
    """Train one kind on the sample, and measure the recall of its codes."""

    source: LiveRows
    folder: str
    vectors: FileRef
    transform: Affine | None
    seed: int

    def work(self, variant: KindVariant) -> CodeRecall:
        path = f"{self.folder}/{variant.kind}-{variant.dims_per_byte}.json"
        measured = load_or_make(self.source.store, path, _MeasuredKind, lambda: self._measure(variant))
        return measured.found

    def _measure(self, variant: KindVariant) -> _MeasuredKind:
        from pipeline.index.build.kind_trial import Pilot

        tensors, _ = unpack(self.vectors.read(self.source.store), "vectors")
        pilot = Pilot.of(tensors["vectors"], self.transform, self.seed)
        return _MeasuredKind(found=pilot.measure(variant, self.seed))


def measure_kinds(
    context: FlowContext,
    source: LiveRows,
    units: Sequence[VectorUnit],
    transform: Transform | None,
    kinds: Sequence[KindVariant],
) -> KindRecalls:
    """Measure the recall of kinds on a sample of the rows. Measurements of an earlier run are not repeated.

    Args:
        units: units with live rows, by ordinal.
        transform: transform that the index applies; None for raw vectors.
    """
    spaced = np.unique(np.linspace(0, len(units) - 1, _MAX_UNITS).astype(int))
    chosen = tuple(units[index] for index in spaced)
    identity = {
        "units": [[unit.ordinal, unit.sha256] for unit in chosen],
        "dead": source.dead.sha256 if source.dead else None,
        "transform": transform.transform_id if transform else None,
        "seed": context.job.index.seed,
        "kinds": [list(each) for each in kinds],
        "versions": packages("manta-embeddings", "faiss-cpu", "faiss-gpu"),
    }
    work = f"indexes/work/pilot-{digest_of(identity)[:24]}"

    def measure() -> KindRecalls:
        with context.stages("pilot"):
            vectors = context.workers.run(SamplePilot(source, work), chosen, Pool(1)).vectors
            task = MeasureKind(source, work, vectors, affine_of(transform), context.job.index.seed)
            found = map_in_order(context, task, kinds)
        return KindRecalls(source=f"a sample of {vectors.rows:,} of them", measured=found)

    measured = load_or_make_racing(context.store, f"{work}/kinds.json", KindRecalls, measure)
    if sample := _PilotSample.load_intact(context.store, f"{work}/sample.json"):
        context.store.delete(sample.vectors.path)  # as large as a unit; an earlier run may have left it
    return measured

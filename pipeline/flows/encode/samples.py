"""Store a sample of each large unit of vectors when it is encoded, or later if an old version encoded it."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.parquet as pq

from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.workers.tasks import PlainTask
from pipeline.index.build.sample import LEAST_SAMPLED_ROWS, SAMPLE_SIZES, rows_to_store
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.unit_sample import store_sample
from pipeline.store.records.units import UnitRecord
from pipeline.store.records.write_once import load_or_make
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.schema import check_space

_FOLDER = "units/samples"


def sample_unit(store: Store, unit: pq.ParquetFile, name: str) -> FileRef | None:
    """Store the sample of a unit of vectors. Returns None for a small unit, which has none.

    Args:
        name: the space's folder and the name of the unit in it.
    """
    if unit.metadata.num_rows < LEAST_SAMPLED_ROWS:
        return None
    rows = rows_to_store(unit.read(columns=[unit.schema_arrow.names[0]])[0])
    return store_sample(store, unit, rows, SAMPLE_SIZES, f"{_FOLDER}/{name}")


def sample_folder(space_id: str) -> str:
    """Return the folder of the samples of a space."""
    return f"{_FOLDER}/{space_id[:16]}"


class _SampleRecord(Stored):
    """The sample of a unit that an earlier version encoded."""

    sample: FileRef | None


@dataclass(frozen=True)
class SampleUnit(PlainTask[UnitRecord, FileRef | None]):
    """Store the sample of a unit that an earlier version encoded."""

    store: Store
    space_id: str

    def work(self, unit: UnitRecord) -> FileRef | None:
        path = f"{sample_folder(self.space_id)}/{unit.sha256[:24]}.json"
        return load_or_make(self.store, path, _SampleRecord, lambda: self._make(unit)).sample

    def _make(self, unit: UnitRecord) -> _SampleRecord:
        file = check_space(pq.ParquetFile(unit.file.open(self.store)), unit.path, self.space_id)
        name = f"{self.space_id[:16]}/{(unit.source or unit.sha256)[:24]}"
        return _SampleRecord(sample=sample_unit(self.store, file, name))


def with_samples(
    context: FlowContext, records: Mapping[str, UnitRecord], previous: ReleaseManifest | None
) -> dict[str, UnitRecord]:
    """Return the records of units of one space, each large unit with its sample.

    For a unit of an earlier version the sample is taken from the previous release, or made once.

    Args:
        records: records of one space, under keys of any kind.
        previous: the previous release.
    """
    missing = {
        name: record
        for name, record in records.items()
        if record.sample is None and record.rows >= LEAST_SAMPLED_ROWS
    }
    if not missing:
        return dict(records)
    space_id = next(iter(missing.values())).space_id or ""
    sizes = {entry.path: entry.size for entry in context.store.list(sample_folder(space_id))}
    known = {
        unit.sha256: unit.sample
        for unit in (previous.units if previous else ())
        if unit.sample and sizes.get(unit.sample.path) == unit.sample.bytes
    }
    samples = {name: known.get(record.sha256) for name, record in missing.items()}
    todo = [name for name, sample in samples.items() if sample is None]
    made = map_in_order(context, SampleUnit(context.store, space_id), [missing[name] for name in todo])
    samples |= dict(zip(todo, made, strict=True))
    return {
        name: record.model_copy(update={"sample": samples[name]}) if name in missing else record
        for name, record in records.items()
    }

"""Store a fitted transform, and the transformed vectors of all units if whiten.write_vectors is set."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.context import FlowContext
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import StageRecord, UnitRecord
from pipeline.store.records.write_once import load_or_make, put_by_content
from pipeline.store.rows.schema import (
    check_space,
    vector_column,
    vector_matrix,
    vectors_schema,
    writer_options,
)
from pipeline.transforms.transform import Transform, space_after


def store_transform(store: Store, transform: Transform) -> FileRef:
    """Store a fitted transform in a file named by its id."""
    content = transform.to_bytes()
    reference = FileRef.of(
        f"transforms/{transform.transform_id[:24]}.safetensors", content, transform.fitted_rows
    )
    store.write(reference.path, content)
    return reference


@dataclass(frozen=True)
class WhitenUnit(PlainTask[UnitRecord, UnitRecord]):
    """Write the transformed vectors of one unit to a new unit, whose path contains the transform's id."""

    store: Store
    transform: Transform

    def work(self, unit: UnitRecord) -> UnitRecord:
        name = f"{self.transform.transform_id[:16]}/{unit.sha256[:24]}"
        path = f"units/whitened/{name}.json"
        return load_or_make(self.store, path, UnitRecord, lambda: self._transform_unit(unit, name))

    def _transform_unit(self, unit: UnitRecord, name: str) -> UnitRecord:
        with self.store.scratch() as scratch:
            file = scratch / "whitened.parquet"
            source = check_space(
                pq.ParquetFile(unit.file.open(self.store)), unit.path, self.transform.space_id
            )
            columns = source.schema_arrow
            id_field = columns.field(0)
            kept = [field for field in columns if field.name not in (id_field.name, "text_key", "vector")]
            space = space_after(self.transform)
            schema = vectors_schema(id_field, kept, self.transform.k, space)
            with pq.ParquetWriter(file, schema, **writer_options(schema)) as writer:
                for batch in source.iter_batches(8_192):
                    vectors = self.transform(vector_matrix(batch["vector"]))
                    arrays = [
                        vector_column(vectors, field) if field.name == "vector" else batch[field.name]
                        for field in schema
                    ]
                    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            stored = put_by_content(self.store, file, f"units/whitened/{name}", unit.rows, digits=12)
        return UnitRecord(
            name=f"whitened/{name}",
            **dict(stored),
            counts={"rows": unit.rows},
            space_id=space,
            source=unit.sha256,
        )


def write_whitened(context: FlowContext, vectors: StageRecord, transform: Transform) -> StageRecord:
    """Write the transformed vectors of every unit as units of their own."""
    made: dict[int, UnitRecord] = {}
    task = WhitenUnit(context.store, transform)
    pool = Pool(context.workers.index_workers(context.job.cluster, len(vectors.units)))
    with context.stages("write whitened", vectors.rows) as bar:
        for number, record in context.workers.map_units(task, vectors.units, pool):
            made[number] = record
            bar.add(record.rows)
    return StageRecord(
        stage="whitened",
        units=tuple(made[number] for number in range(len(vectors.units))),
        parents=(vectors.id,),
        settings_digest=transform.transform_id,
    )

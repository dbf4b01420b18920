"""A table of LanceDB: columns id, vector, and the kept columns."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa

from pipeline.errors import PipelineError
from pipeline.targets.target import TARGETS, Position, Target

_POSITIONS = "manta_positions"  # a table with one row per target
_BATCH_IDS = 1_000  # ids in one condition of a deletion
_INT64_MIN = -(2**63)
_REFUSALS = re.compile(  # all errors of storage are OSError or RuntimeError
    r"permission denied|access ?denied|forbidden|unauthorized|read-only file system|no ?such ?bucket"
    r"|invalidaccesskeyid|signaturedoesnotmatch",
    re.IGNORECASE,
)
_CREATED = pa.schema([("target", pa.string()), ("position", pa.string())])


@TARGETS.register("lancedb")
class LanceTarget(Target):
    """A table NAME in a folder or in object storage.

    Every write makes a version of the table. The rows of a step are written together, so that there are few
    versions. When an export ends, small files are merged, and versions older than a week are deleted.
    """

    extra: ClassVar[str | None] = "lancedb"
    name_form: ClassVar[str] = rf"(?!{_POSITIONS}$|\.+$)[A-Za-z0-9_.-]{{1,200}}"
    name_rule: ClassVar[str] = (
        f"at most 200 letters, digits and _ . - of ASCII, not only dots, and not {_POSITIONS}"
    )

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(uri, name)
        module = self.client("lancedb")
        with self.connecting():
            self._database = module.connect(uri)
        self._pending: list[pa.Table] = []

    def position(self) -> Position | None:
        """Return the position in the row of the table `manta_positions`."""
        if self._table(self.name) is None:
            return None
        stored = {}
        if (positions := self._table(_POSITIONS)) is not None:
            rows = positions.to_arrow()
            stored = dict(zip(rows["target"].to_pylist(), rows["position"].to_pylist(), strict=True))
        if self.name not in stored:
            raise self.foreign("table")
        return self.parsed(stored[self.name])

    def create(self, schema: pa.Schema, position: Position) -> None:
        """Store the position, then create the table."""
        self.store_position(position)
        fields = [field.with_type(_with_named_maps(field.type)) for field in schema]
        self._database.create_table(self.name, schema=pa.schema(fields), mode="overwrite")

    def upsert(self, rows: pa.Table) -> None:
        """Keep the rows until the end of the step."""
        self._pending.append(rows)

    def delete(self, ids: pa.Array) -> None:
        """Delete rows by a condition on their ids."""
        table = self._database.open_table(self.name)
        for start in range(0, len(ids), _BATCH_IDS):
            values = ", ".join(map(_literal, ids.slice(start, _BATCH_IDS).to_pylist()))
            table.delete(f"id IN ({values})")

    def ids(self) -> Iterator[pa.Array]:
        """Read the column of ids."""
        query = self._database.open_table(self.name).search().select(["id"])
        return (batch["id"] for batch in query.to_batches() if batch.num_rows)

    def store_position(self, position: Position) -> None:
        """Write the rows of the step, then the position."""
        if self._pending:
            self._merge(self.name, pa.concat_tables(self._pending), "id")
            self._pending.clear()
        if self._table(_POSITIONS) is None:
            self._database.create_table(_POSITIONS, schema=_CREATED, exist_ok=True)
        values = {"target": [self.name], "position": [position.model_dump_json()]}
        self._merge(_POSITIONS, pa.table(values, schema=_CREATED), "target")
        if position.next is None:
            self._database.open_table(self.name).optimize(cleanup_older_than=timedelta(days=7))
            self._database.open_table(_POSITIONS).optimize(cleanup_older_than=timedelta(days=7))

    def count(self) -> int | None:
        """Count the rows of the table."""
        return int(self._database.open_table(self.name).count_rows())

    def explain(self, error: Exception) -> PipelineError | None:
        """Distinguish requests that LanceDB and object storage refuse from storage that fails."""
        is_storage = isinstance(error, OSError | RuntimeError)
        if isinstance(error, ValueError) or (is_storage and _REFUSALS.search(str(error))):
            return self.refused(error, "check TARGET, the rights to write there, and the columns of the rows")
        return self.unreachable(error) if is_storage else None

    def _table(self, name: str) -> Any:
        """Open a table. Returns None if it does not exist."""
        try:
            return self._database.open_table(name)
        except (ValueError, FileNotFoundError):
            return None

    def _merge(self, name: str, rows: pa.Table, key: str) -> None:
        merge = self._database.open_table(name).merge_insert(key)
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)


def _with_named_maps(kind: pa.DataType) -> pa.DataType:
    """Return a type whose maps have the fields key and value, as LanceDB names them when it writes rows.

    In maps that were read from Parquet, the fields may have other names. LanceDB would refuse every row.
    """
    if pa.types.is_map(kind):
        return pa.map_(_with_named_maps(kind.key_type), _with_named_maps(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_named_maps(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_named_maps(field.type)) for field in kind])
    return kind


def _literal(value: object) -> str:
    """Return a value as a literal of SQL."""
    if value == _INT64_MIN:  # DataFusion reads its digits as a number above int64 before it applies the minus
        return f"({_INT64_MIN + 1} - 1)"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)

"""A table of PostgreSQL with pgvector: columns id (the primary key), vector, and the kept columns."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError, DataError, PipelineError
from pipeline.log import announce
from pipeline.store.rows.arrays import is_text
from pipeline.store.rows.schema import vector_matrix
from pipeline.targets.target import TARGETS, Position, Target
from pipeline.targets.values import json_value, python_column

_POSITIONS = "manta_positions"  # a table with one row per target
_BATCH_ROWS = 8_192
# Classes of SQLSTATE (appendix A of PostgreSQL's manual) for which a repetition cannot help: invalid values,
# violated constraints, and limits such as the size of an id; missing features, logins, databases, schemas,
# privileges.
_INVALID_DATA = ("22", "23", "54")
_INVALID_REQUEST = ("0A", "28", "3D", "3F", "42")
_REMEDY = "see the manual of pgvector, or the privileges of the user"

# Types of Arrow, and the types of PostgreSQL that hold their values; all others are stored as jsonb.
_TYPES = (
    (pa.types.is_boolean, "bool"),
    (pa.types.is_uint64, "numeric"),
    (pa.types.is_integer, "int8"),
    (pa.types.is_floating, "float8"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_large_binary, "bytea"),
    (pa.types.is_decimal, "numeric"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
)


class _VectorBytes(bytes):
    """A vector in the binary format of pgvector."""


@TARGETS.register("pgvector")
class PgvectorTarget(Target):
    """A table NAME or SCHEMA.NAME. The user, the password and so on come from the variables of libpq."""

    extra: ClassVar[str | None] = "pgvector"
    credentials: ClassVar[str] = "PGUSER, and PGPASSWORD or PGPASSFILE"
    takes_paths: ClassVar[bool] = False
    name_form: ClassVar[str] = rf"(?!{_POSITIONS}$)[^\0.]+(\.[^\0.]+)?"
    name_rule: ClassVar[str] = f"NAME or SCHEMA.NAME without NUL, and not {_POSITIONS}"

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(uri, name)
        self._psycopg = self.client("psycopg")
        self._sql = self.client("psycopg.sql")
        self._table = self._sql.Identifier(*name.split("."))
        with self.explained():
            self._refuse_password()
            self._connection = self._connect()
        self._has_dumper = False
        self._has_nul = False

    def position(self) -> Position | None:
        """Return the position in the row of `manta_positions`."""
        if not self._exists(self._table.as_string(self._connection)):
            return None
        stored = None
        if self._exists(_POSITIONS):
            query = f"SELECT position::text FROM {_POSITIONS} WHERE target = %s"
            stored = self._connection.execute(query, (self.name,)).fetchone()
        if stored is None:
            raise self.foreign("table")
        return self.parsed(stored[0])

    def create(self, schema: pa.Schema, position: Position) -> None:
        """Create extension, table and position in one transaction."""
        column = self._sql.SQL("{} {}")
        columns = [
            column.format(self._sql.Identifier(field.name), self._sql.SQL(_column_type(field)))
            for field in schema
        ]
        with self._connection.transaction():
            self._execute("CREATE EXTENSION IF NOT EXISTS vector")
            self._execute("DROP TABLE IF EXISTS {}", self._table)
            self._execute(
                "CREATE TABLE {} ({}, PRIMARY KEY (id))", self._table, self._sql.SQL(", ").join(columns)
            )
            self._execute(
                f"CREATE TABLE IF NOT EXISTS {_POSITIONS} (target text PRIMARY KEY, position jsonb NOT NULL)"
            )
            self.store_position(position)

    def upsert(self, rows: pa.Table) -> None:
        """Copy the rows to a temporary table, and insert them from there."""
        self._register_vectors()
        names = [self._sql.Identifier(name) for name in rows.column_names]
        updates = [self._sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in names]
        types = [_type_name(field) for field in rows.schema]
        with self._connection.transaction(), self._connection.cursor() as cursor:
            self._execute(
                "CREATE TEMPORARY TABLE IF NOT EXISTS manta_rows ON COMMIT DROP AS "
                "SELECT * FROM {} WITH NO DATA",
                self._table,
            )
            joined = self._sql.SQL(", ").join(names)
            copy_sql = self._sql.SQL("COPY manta_rows ({}) FROM STDIN (FORMAT BINARY)").format(joined)
            with cursor.copy(copy_sql) as copy:
                copy.set_types(types)
                for row in _database_rows(rows, self._without_nul):
                    copy.write_row(row)
            self._execute(
                "INSERT INTO {} ({}) SELECT {} FROM manta_rows ON CONFLICT (id) DO UPDATE SET {}",
                self._table,
                joined,
                joined,
                self._sql.SQL(", ").join(updates),
            )

    def delete(self, ids: pa.Array) -> None:
        """Delete rows by their ids, some thousands in a statement."""
        kind = _type_name(pa.field("id", ids.type))
        # In a query with arguments, a percent sign of the table's name would begin another argument.
        table = self._sql.SQL(self._table.as_string(self._connection).replace("%", "%%"))
        query = self._sql.SQL(f"DELETE FROM {{}} WHERE id = ANY(%s::{kind}[])").format(table)
        for start in range(0, len(ids), _BATCH_ROWS):
            values = list(map(self._without_nul, ids.slice(start, _BATCH_ROWS).to_pylist()))
            self._connection.execute(query, (values,))

    def ids(self) -> Iterator[pa.Array]:
        """Read the ids through a cursor of the server."""
        query = self._sql.SQL("SELECT id FROM {}").format(self._table)
        with self._connection.transaction(), self._connection.cursor(name="manta_ids") as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(self.page_ids):
                yield pa.array([row[0] for row in rows])

    def stored_ids(self, ids: pa.Array) -> pa.Array:
        """Return the ids with U+FFFD instead of NUL."""
        return pc.replace_substring(ids, "\0", "\ufffd") if is_text(ids.type) else ids

    def store_position(self, position: Position) -> None:
        """Store the position in the row of `manta_positions`."""
        self._connection.execute(
            f"INSERT INTO {_POSITIONS} VALUES (%s, %s::jsonb) "
            "ON CONFLICT (target) DO UPDATE SET position = EXCLUDED.position",
            (self.name, position.model_dump_json()),
        )

    def count(self) -> int | None:
        """Count the rows of the table."""
        (count,) = self._execute("SELECT count(*) FROM {}", self._table).fetchone()
        return int(count)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def explain(self, error: Exception) -> PipelineError | None:
        """Distinguish values, settings and privileges that the server refuses from a server that fails."""
        errors, found = self._psycopg, " ".join(str(error).split())
        state = (getattr(error, "sqlstate", None) or "")[:2]
        # An OverflowError is a time that Python cannot represent.
        if isinstance(error, errors.DataError | OverflowError) or state in _INVALID_DATA:
            return DataError(self.where, "values that PostgreSQL can store", found, "correct the corpus")
        if isinstance(error, errors.ProgrammingError | errors.NotSupportedError) or state in _INVALID_REQUEST:
            expected = "a database with pgvector in which this user may create tables"
            return ConfigError(self.where, expected, found, _REMEDY)
        return self.unreachable(error) if isinstance(error, errors.Error) else None

    def _refuse_password(self) -> None:
        """Raise ConfigError if the address has a password, or is invalid, so that any part may be a secret.

        The message does not show the address.
        """
        try:
            given = self.client("psycopg.conninfo").conninfo_to_dict(self.uri)
        except self._psycopg.ProgrammingError:
            raise ConfigError(
                f"TARGET of {self.name}",
                "postgresql://HOST/DATABASE, or a connection string of libpq",
                "another text (not shown)",
                f"correct the address; user and password are in {self.credentials}",
            ) from None
        if secrets := {"password", "sslpassword"} & given.keys():
            raise ConfigError(
                f"TARGET of {self.name}",
                "an address without password",
                f"{' and '.join(sorted(secrets))} (not shown)",
                "take it out of the address, and set PGPASSWORD or PGPASSFILE",
            )

    def _connect(self) -> Any:
        """Connect. Raises ConfigError if the server answers, but refuses this user or database."""
        try:
            return self._psycopg.connect(self.uri, autocommit=True)
        except self._psycopg.OperationalError as error:
            # libpq gives no SQLSTATE here, but knows whether the server answers; a full server answers, too.
            is_full = "too many" in str(error) or "connection slots" in str(error)
            pq = self._psycopg.pq
            if is_full or pq.PGconn.ping(self.uri.encode()) != pq.Ping.OK:
                raise
            raise self.refused(
                error, f"check the database, and the user and password in {self.credentials}"
            ) from None

    def _without_nul(self, value: Any) -> Any:
        """Return a value with U+FFFD instead of NUL, which no text of PostgreSQL contains."""
        if isinstance(value, str) and "\0" in value:
            if not self._has_nul:
                announce(f"{self.where}: PostgreSQL cannot store NUL; texts have U+FFFD in its place")
            self._has_nul = True
            return value.replace("\0", "\ufffd")
        if isinstance(value, list):
            return list(map(self._without_nul, value))
        if isinstance(value, dict):
            return {self._without_nul(key): self._without_nul(each) for key, each in value.items()}
        return value

    def _execute(self, statement: str, *parts: Any) -> Any:
        return self._connection.execute(self._sql.SQL(statement).format(*parts))

    def _exists(self, table: str) -> bool:
        (found,) = self._connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
        return found is not None

    def _register_vectors(self) -> None:
        """Let the connection copy vectors in their binary format."""
        if self._has_dumper:
            return
        types = self.client("psycopg.types")
        info = types.TypeInfo.fetch(self._connection, "vector")
        info.register(self._connection)
        body = {"format": self._psycopg.pq.Format.BINARY, "oid": info.oid, "dump": lambda _, vector: vector}
        dumper = type("VectorDumper", (self.client("psycopg.adapt").Dumper,), body)
        self._connection.adapters.register_dumper(_VectorBytes, dumper)
        self._has_dumper = True


def _type_name(field: pa.Field) -> str:
    """Return the name of the type that holds the values of a column."""
    if field.name == "vector":
        return "vector"
    if pa.types.is_timestamp(field.type):
        return "timestamptz" if field.type.tz else "timestamp"
    return next((name for holds, name in _TYPES if holds(field.type)), "jsonb")


def _column_type(field: pa.Field) -> str:
    return f"vector({field.type.list_size}) NOT NULL" if field.name == "vector" else _type_name(field)


def _database_rows(rows: pa.Table, clean: Callable[[Any], Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as values that psycopg writes in the types of the columns.

    Args:
        clean: converts each text, and each value of a column of JSON.
    """
    return zip(*(_database_column(rows, field, clean) for field in rows.schema), strict=True)


def _database_column(rows: pa.Table, field: pa.Field, clean: Callable[[Any], Any]) -> Iterator[Any]:
    if field.name == "vector":
        vectors = vector_matrix(rows["vector"])
        header = np.array([vectors.shape[1], 0], dtype=">u2").tobytes()
        return (_VectorBytes(header + vector.tobytes()) for vector in vectors.astype(">f4"))
    values = python_column(rows[field.name])
    if (kind := _type_name(field)) != "jsonb":
        return map(clean, values) if kind == "text" else iter(values)
    from psycopg.types.json import Jsonb

    return (None if value is None else Jsonb(clean(json_value(value))) for value in values)

"""A collection of Milvus: id (the primary key), vector, and the kept columns as dynamic fields."""

import json
import os
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError, PipelineError
from pipeline.store.rows.schema import vector_matrix
from pipeline.targets.requests import in_requests
from pipeline.targets.target import TARGETS, Position, Target
from pipeline.targets.values import id_array, json_rows

_KEY = "manta.position"  # property of the collection
_MAX_ID_BYTES = 65_535  # limit of a VARCHAR
_MAX_ID = 2**63 - 1  # largest integer id
_BATCH_IDS = 1_000  # ids in one condition of a deletion
# Codes of the server for invalid parameters and collections, of Milvus Lite (6), and statuses of gRPC.
_REFUSALS = (
    *("6", "100", "1100", "1101", "1102", "1800"),
    *("INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"),
)


@TARGETS.register("milvus")
class MilvusTarget(Target):
    """A collection NAME, with cosine similarity and an index of the kind that the server chooses.

    The token (or user:password) is in MILVUS_TOKEN. A path that ends in .db is a file of Milvus Lite.
    """

    extra: ClassVar[str | None] = "milvus"
    credentials: ClassVar[str] = "MILVUS_TOKEN"
    name_form: ClassVar[str] = r"(?!\.+$)[^/\\\0]{1,255}"
    name_rule: ClassVar[str] = "at most 255 characters without slashes, not only dots"

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(uri, name)
        self._module = self.client("pymilvus")
        with self.connecting():
            self._client = self._module.MilvusClient(uri=uri, token=os.environ.get("MILVUS_TOKEN", ""))

    def position(self) -> Position | None:
        """Return the position in the properties of the collection."""
        if not self._client.has_collection(self.name):
            return None
        properties = self._client.describe_collection(self.name).get("properties") or {}
        if _KEY not in properties:
            raise self.foreign("collection")
        return self.parsed(properties[_KEY])

    def create(self, schema: pa.Schema, position: Position) -> None:
        """Create the collection, its index and its position."""
        if self._client.has_collection(self.name):
            self._client.drop_collection(self.name)
        kinds = self._module.DataType
        fields = self._client.create_schema(auto_id=False, enable_dynamic_field=True)
        if pa.types.is_string(schema.field("id").type):
            fields.add_field("id", kinds.VARCHAR, is_primary=True, max_length=_MAX_ID_BYTES)
        else:
            fields.add_field("id", kinds.INT64, is_primary=True)
        fields.add_field("vector", kinds.FLOAT_VECTOR, dim=schema.field("vector").type.list_size)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="AUTOINDEX", metric_type="COSINE")
        self._client.create_collection(
            self.name,
            schema=fields,
            index_params=index,
            properties={_KEY: position.model_dump_json()},
            consistency_level="Strong",
        )

    def upsert(self, rows: pa.Table) -> None:
        """Upsert the rows in requests of some megabytes."""
        if pa.types.is_uint64(rows["id"].type) and (largest := pc.max(rows["id"]).as_py()) > _MAX_ID:
            raise DataError(self.where, f"ids of at most {_MAX_ID}", f"{largest}", "convert the ids to texts")
        vectors = vector_matrix(rows["vector"])
        data = [row | {"vector": vector} for row, vector in zip(json_rows(rows), vectors, strict=True)]
        for batch in in_requests(data, _row_bytes):
            self._client.upsert(self.name, data=batch)

    def delete(self, ids: pa.Array) -> None:
        """Delete the rows."""
        literals = map(_literal, ids.to_pylist())
        for batch in in_requests(literals, lambda literal: len(literal.encode()), most=_BATCH_IDS):
            # The client does not escape its argument `ids`.
            self._client.delete(self.name, filter=f"id in [{', '.join(batch)}]")

    def ids(self) -> Iterator[pa.Array]:
        """Read the ids of all rows, in their order.

        The client's own iterator does not escape the id after which a page begins.
        """
        after = ""
        options = {"iterator": "True", "reduce_stop_for_best": "True"}  # rows in the order of their ids
        while rows := self._client.query(
            self.name, filter=after, output_fields=["id"], limit=self.page_ids, **options
        ):
            yield id_array([row["id"] for row in rows])
            after = f"id > {_literal(rows[-1]['id'])}"

    def store_position(self, position: Position) -> None:
        """Store the position in the properties of the collection."""
        self._client.alter_collection_properties(self.name, properties={_KEY: position.model_dump_json()})

    def count(self) -> int | None:
        """Count the rows of the collection."""
        (found,) = self._client.query(self.name, filter="", output_fields=["count(*)"])
        return int(found["count(*)"])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def explain(self, error: Exception) -> PipelineError | None:
        """Distinguish requests that the server refuses from a server that does not answer."""
        errors: Any = self._module.exceptions
        rpc: Any = self.client("grpc")
        # the client raises this for answers after which it does not repeat a request
        if isinstance(error, rpc.RpcError):
            status = error.code().name
        elif isinstance(error, errors.MilvusException):
            status = str(error.code)
        else:
            return None
        # `is_input_error` is what the server says, which clients before 3.0 do not pass on. Subclasses of
        # MilvusException are errors of the client.
        is_input = getattr(error, "is_input_error", False) or status in _REFUSALS
        lost = ("ConnectError", "MilvusUnavailableException", "SchemaMismatchRetryableException")
        is_client = isinstance(error, errors.MilvusException) and type(error) is not errors.MilvusException
        if is_input or (is_client and type(error).__name__ not in lost):
            return self.refused(error, "check the address, the name, MILVUS_TOKEN, and the values of the row")
        return self.unreachable(error)


def _literal(row_id: str | int) -> str:
    """Return an id as a literal of a filter.

    Milvus has other escapes than JSON, but takes all characters as they are, except for these four.
    """
    if not isinstance(row_id, str):
        return str(row_id)
    for character, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        row_id = row_id.replace(character, escape)
    return f'"{row_id}"'


def _row_bytes(row: dict[str, Any]) -> int:
    """Return the size of a row in a request."""
    return int(row["vector"].nbytes) + len(json.dumps({**row, "vector": None}))

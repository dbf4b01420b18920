"""An index of OpenSearch with k-NN: documents with id, vector and kept columns.

Servers would guess the type of a field from its first value: a text that looks like a date would make a field
of dates, which refuses other texts.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from pipeline.errors import ConfigError, DataError, PipelineError, TransientError
from pipeline.store.rows.schema import vector_matrix
from pipeline.targets.requests import in_requests, is_refusal
from pipeline.targets.target import TARGETS, Position, Target
from pipeline.targets.values import id_array, json_rows

# the type that servers guess for texts
_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
_UNPARSED = {"type": "object", "enabled": False}  # stored, but not searchable

# Types of Arrow, and the types of fields that take their values in JSON.
_TYPES = (
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_uint64, {"type": "unsigned_long"}),
    (pa.types.is_integer, {"type": "long"}),
    (pa.types.is_float64, {"type": "double"}),
    (pa.types.is_floating, {"type": "float"}),
    (pa.types.is_duration, {"type": "double"}),
    (pa.types.is_date, {"type": "date"}),
    (pa.types.is_timestamp, {"type": "date"}),
    (pa.types.is_time, {"type": "keyword"}),
    (pa.types.is_decimal, {"type": "keyword"}),
    (pa.types.is_string, _TEXT),
    (pa.types.is_large_string, _TEXT),
    (pa.types.is_string_view, _TEXT),
    (pa.types.is_binary, {"type": "binary"}),
    (pa.types.is_large_binary, {"type": "binary"}),
    (pa.types.is_fixed_size_binary, {"type": "binary"}),
)


def field_type(kind: pa.DataType) -> dict[str, Any]:
    """Return the type of the field for a column. Lists have the type of their values."""
    if isinstance(kind, pa.BaseExtensionType):
        return {"type": "keyword"} if kind.extension_name == "arrow.uuid" else field_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return field_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return field_type(kind.value_type)
    if pa.types.is_struct(kind):
        return {"type": "object", "properties": {field.name: field_type(field.type) for field in kind}}
    return next((dict(found) for holds, found in _TYPES if holds(kind)), _UNPARSED)


_KEY = "manta"  # key of the position in the metadata of the index
_MAX_ID_BYTES = 512  # limit of the server
REMEDY = "check the address, its certificate, the name, and the variables with user and password"


@TARGETS.register("opensearch")
class OpenSearchTarget(Target):
    """An index NAME. User and password are in OPENSEARCH_USER and OPENSEARCH_PASSWORD."""

    extra: ClassVar[str | None] = "opensearch"
    credentials: ClassVar[str] = "OPENSEARCH_USER and OPENSEARCH_PASSWORD"
    takes_paths: ClassVar[bool] = False
    name_form: ClassVar[str] = r'(?![-_+.])[^A-Z\\/*?"<>| ,#:\0]{1,255}'
    name_rule: ClassVar[str] = (
        'at most 255 characters without capitals, blanks and \\ / * ? " < > | , # :, and without - _ + . '
        "at the beginning"
    )
    module: ClassVar[str] = "opensearchpy"
    """package of the client"""
    settings: ClassVar[dict[str, Any]] = {"index.knn": True}

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(uri, name)
        self._module = self.client(self.module)
        with self.connecting():
            self._client = self.connect()

    def connect(self) -> Any:
        """Return the client."""
        user, password = (os.environ.get(f"OPENSEARCH_{part}") for part in ("USER", "PASSWORD"))
        authorization = (user, password) if user and password else None
        return self._module.OpenSearch(hosts=[self.uri], http_auth=authorization, timeout=60)

    def vector_type(self, dim: int) -> dict[str, Any]:
        """Return the type of the field of vectors."""
        return {"type": "knn_vector", "dimension": dim, "space_type": "cosinesimil"}

    def position(self) -> Position | None:
        """Return the position in the metadata of the index."""
        if not self._client.indices.exists(index=self.name):
            return None
        indices = self._client.indices.get_mapping(index=self.name)
        if self.name not in indices:
            advice = "choose the name of an index as --name; an alias can point to it"
            raise ConfigError(self.where, "an index", f"an alias of {', '.join(sorted(indices))}", advice)
        found = indices[self.name]["mappings"].get("_meta", {})
        if _KEY not in found:
            raise self.foreign("index")
        return self.parsed(found[_KEY])

    def create(self, schema: pa.Schema, position: Position) -> None:
        """Create the index with the position as metadata."""
        if self._client.indices.exists(index=self.name):
            self._client.indices.delete(index=self.name)
        id_type = field_type(schema.field("id").type)
        properties = {field.name: field_type(field.type) for field in schema}
        properties["id"] = {"type": "keyword"} if id_type["type"] == "text" else id_type
        properties["vector"] = self.vector_type(schema.field("vector").type.list_size)
        mappings = {
            "dynamic": "strict",
            "properties": properties,
            "_meta": {_KEY: position.model_dump_json()},
        }
        self._client.indices.create(index=self.name, body={"settings": self.settings, "mappings": mappings})

    def upsert(self, rows: pa.Table) -> None:
        """Write the documents in requests of some megabytes."""
        vectors = vector_matrix(rows["vector"])
        lines = (
            (
                json.dumps({"index": {"_id": _document_id(row["id"])}}),
                json.dumps(row | {"vector": vector.tolist()}),
            )
            for row, vector in zip(json_rows(rows), vectors, strict=True)
        )
        self._send(lines)

    def delete(self, ids: pa.Array) -> None:
        """Delete the documents."""
        self._send((json.dumps({"delete": {"_id": _document_id(each)}}),) for each in ids.to_pylist())

    def ids(self) -> Iterator[pa.Array]:
        """Read the field `id` of all documents, sorted by this field."""
        self._client.indices.refresh(index=self.name)
        body = {"size": self.page_ids, "query": {"match_all": {}}, "sort": [{"id": "asc"}], "_source": ["id"]}
        while hits := self._client.search(index=self.name, body=body)["hits"]["hits"]:
            yield id_array([hit["_source"]["id"] for hit in hits])
            body["search_after"] = hits[-1]["sort"]

    def store_position(self, position: Position) -> None:
        """Store the position in the metadata of the index."""
        meta = {"_meta": {_KEY: position.model_dump_json()}}
        self._client.indices.put_mapping(index=self.name, body=meta)

    def count(self) -> int | None:
        """Make all changes visible to searches, and count the documents."""
        self._client.indices.refresh(index=self.name)
        return int(self._client.count(index=self.name)["count"])

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def explain(self, error: Exception) -> PipelineError | None:
        """Distinguish requests that the server refuses from a server that does not answer."""
        module = self._module
        if not isinstance(error, module.OpenSearchException):
            return None
        # status_code is a text for errors without an answer: "N/A", "TIMEOUT"
        status = error.status_code if isinstance(error, module.TransportError) else None
        is_refused = isinstance(status, int) and is_refusal(status)
        is_own = isinstance(error, module.ImproperlyConfigured | module.SSLError)
        return self.refused(error, REMEDY) if is_refused or is_own else self.unreachable(error)

    def _send(self, operations: Iterator[tuple[str, ...]]) -> None:
        """Send operations, each of one line or two, in bulk requests."""
        for batch in in_requests(operations, lambda lines: sum(map(len, lines)) + len(lines)):
            self._send_lines([line for lines in batch for line in lines])

    def _send_lines(self, lines: list[str]) -> None:
        answer = self._client.bulk(body="\n".join(lines) + "\n", index=self.name)
        results = [next(iter(item.values())) for item in answer["items"]] if answer["errors"] else []
        for result in results:
            if "error" not in result:  # deleting a document that does not exist is no error, either
                continue
            found = json.dumps(result["error"])[:500]
            if result["status"] in (404, 429) or result["status"] >= 500:  # 404: the index was deleted
                raise TransientError(self.where, "a server that takes the rows", found, "run again later")
            raise DataError(
                self.where, f"a row that the index can store, {result['_id']}", found, "correct the corpus"
            )


def _document_id(row_id: Any) -> str:
    """Return the id of a document: the row's id, or its sha256 if it is longer than the server takes."""
    text = str(row_id)
    encoded = text.encode()
    return text if len(encoded) <= _MAX_ID_BYTES else "sha256:" + hashlib.sha256(encoded).hexdigest()

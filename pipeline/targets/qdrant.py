"""A collection of Qdrant: points with the raw vector, and id and kept columns as payload."""

import json
import os
import re
import sqlite3
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from pipeline.errors import ConfigError, PipelineError
from pipeline.store.rows.schema import vector_matrix
from pipeline.targets.requests import in_requests, is_refusal
from pipeline.targets.target import TARGETS, Position, Target
from pipeline.targets.values import id_array, json_rows

_IDS = uuid.UUID("b2f0c7c6-3c1e-5f0e-9a53-6d0a9f3b7a11")  # namespace of the ids of points
_KEY = "manta"  # key of the position in the collection's metadata
_VALUE_BYTES = 20  # a number in JSON
_HOST = re.compile(r"localhost|\d+(\.\d+){3}|\[.*\](:\d+)?|[^/\\]+:\d+", re.IGNORECASE)
"""names and addresses of hosts, which the client would take for a folder"""


@TARGETS.register("qdrant")
class QdrantTarget(Target):
    """A collection NAME, with cosine similarity. The key of the API is in QDRANT_API_KEY.

    Qdrant does not take arbitrary texts as ids, so the id of a point is the UUID (version 5) of the row's id.
    Qdrant stores vectors scaled to length 1.
    """

    extra: ClassVar[str | None] = "qdrant"
    credentials: ClassVar[str] = "QDRANT_API_KEY"
    looks_like_corpus: ClassVar[bool] = True  # meta.json
    name_form: ClassVar[str] = r'[^<>:"/\\|?*\0\x1f]{1,255}'
    name_rule: ClassVar[str] = 'at most 255 characters without < > : " / \\ | ? *'

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(uri, name)
        if _HOST.fullmatch(uri):
            raise ConfigError(
                f"TARGET {uri!r}",
                "the URL of a server, or a folder",
                "a host without http:// or https://",
                f"write http://{uri}, with the port if it is not 6333, or ./{uri} for a folder",
            )
        self._module = self.client("qdrant_client")
        with self.connecting():
            if "://" in uri:
                key = os.environ.get("QDRANT_API_KEY")
                self._client = self._module.QdrantClient(url=uri, api_key=key, timeout=60)
            else:
                self._client = self._module.QdrantClient(path=uri)

    def position(self) -> Position | None:
        """Return the position in the collection's metadata."""
        if not self._client.collection_exists(self.name):
            return None
        metadata = self._client.get_collection(self.name).config.metadata or {}
        if _KEY not in metadata:
            raise self.foreign("collection", "choose another --name; Qdrant must be of version 1.16 or newer")
        return self.parsed(metadata[_KEY])

    def create(self, schema: pa.Schema, position: Position) -> None:
        """Create the collection with the position as metadata."""
        if self._client.collection_exists(self.name):
            self._client.delete_collection(self.name)
        models = self._module.models
        dim = schema.field("vector").type.list_size
        self._client.create_collection(
            self.name,
            vectors_config=models.VectorParams(size=dim, distance=models.Distance.COSINE),
            metadata={_KEY: position.model_dump_json()},
        )

    def upsert(self, rows: pa.Table) -> None:
        """Upsert the points in requests of some megabytes."""
        vectors = vector_matrix(rows["vector"])
        vector_bytes = vectors.shape[1] * _VALUE_BYTES
        points = zip(_point_ids(rows["id"]), vectors, json_rows(rows), strict=True)
        for batch in in_requests(points, lambda point: vector_bytes + len(json.dumps(point[2]))):
            ids, batch_vectors, payloads = zip(*batch, strict=True)
            self._client.upsert(
                self.name,
                points=self._module.models.Batch(
                    ids=list(ids),
                    vectors=[vector.tolist() for vector in batch_vectors],
                    payloads=list(payloads),
                ),
                wait=True,
            )

    def delete(self, ids: pa.Array) -> None:
        """Delete the points, some thousands in a request."""
        for batch in in_requests(_point_ids(ids), len):
            selector = self._module.models.PointIdsList(points=batch)
            self._client.delete(self.name, points_selector=selector, wait=True)

    def ids(self) -> Iterator[pa.Array]:
        """Read the ids from the payload of all points."""
        position = None
        while True:
            points, position = self._client.scroll(
                self.name, limit=self.page_ids, offset=position, with_payload=["id"], with_vectors=False
            )
            if points:
                yield id_array([point.payload["id"] for point in points])
            if position is None:
                return

    def store_position(self, position: Position) -> None:
        """Store the position in the collection's metadata."""
        self._client.update_collection(self.name, metadata={_KEY: position.model_dump_json()})

    def count(self) -> int | None:
        """Count the points."""
        return int(self._client.count(self.name, exact=True).count)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def explain(self, error: Exception) -> PipelineError | None:
        """Distinguish requests that the server refuses from a server that does not answer."""
        errors = self.client("qdrant_client.http.exceptions")
        if isinstance(error, sqlite3.OperationalError):  # from a folder, such as one on a full disk
            return self.unreachable(error)
        status = getattr(error, "status_code", None)  # an UnexpectedResponse has a status
        if isinstance(error, ValueError) or is_refusal(status):
            return self.refused(error, "check the address, the name and QDRANT_API_KEY")
        # another client has opened the folder
        is_locked = isinstance(error, RuntimeError) and "already accessed" in str(error)
        return self.unreachable(error) if is_locked or isinstance(error, errors.ApiException) else None


def _point_ids(ids: pa.Array | pa.ChunkedArray) -> list[Any]:
    return [str(uuid.uuid5(_IDS, str(each))) for each in ids.to_pylist()]

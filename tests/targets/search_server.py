"""A server in memory with the requests that exports send to OpenSearch and Elasticsearch.

It refuses documents as these servers do: by the types of their fields, and by limits of a request.
"""

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Refused(Exception):
    """A document that does not fit the mapping."""


class SearchIndex:
    """Documents by id, and their mapping."""

    def __init__(self, mappings: dict[str, Any]) -> None:
        self.mappings = mappings
        self.documents: dict[str, dict[str, Any]] = {}

    def put(self, name: str, document: dict[str, Any]) -> None:
        """Insert or replace a document. Raises Refused if a value has another type than its field."""
        properties = self.mappings.setdefault("properties", {})
        for field, value in document.items():
            if field not in properties and self.mappings.get("dynamic") == "strict":
                raise Refused(f"strict_dynamic_mapping_exception: {field}")
            _check(value, properties.setdefault(field, _guess(value)), field)
        self.documents[name] = document


def _guess(value: Any) -> dict[str, Any]:
    """Return the type that a server guesses for a field by its first value."""
    if isinstance(value, str):
        with contextlib.suppress(Refused):
            _check(value, {"type": "date"}, "")
            return {"type": "date"}
    return {"type": "object", "enabled": False}


def _check(value: Any, kind: dict[str, Any], field: str) -> None:
    if value is None or kind.get("enabled") is False:
        return
    if kind["type"] in ("knn_vector", "dense_vector"):
        if len(value) != kind.get("dimension", kind.get("dims")):
            raise Refused(f"mapper_parsing_exception: {field} has {len(value)} dimensions")
    elif isinstance(value, list):
        for each in value:
            _check(each, kind, field)
    elif kind.get("type") == "object":
        for name, each in value.items():
            _check(each, kind["properties"][name], f"{field}.{name}")
    else:
        try:
            fits = _FITS[kind["type"]](value)
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise Refused(f"mapper_parsing_exception: {field} of type {kind['type']}, found {value!r}")


_FITS: dict[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "long": lambda value: isinstance(value, int) and -(2**63) <= value < 2**63,
    "unsigned_long": lambda value: isinstance(value, int) and 0 <= value < 2**64,
    "float": lambda value: abs(value) < 3.5e38,
    "double": lambda value: isinstance(value, int | float),
    "text": lambda value: isinstance(value, str),
    "keyword": lambda value: isinstance(value, str),
    "date": lambda value: bool(datetime.fromisoformat(value)),
    "binary": lambda value: base64.b64decode(value, validate=True) is not None,
}


class SearchServer(ThreadingHTTPServer):
    """Indices by name, aliases, and the sizes of the bulk requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.indices: dict[str, SearchIndex] = {}
        self.aliases: dict[str, str] = {}
        self.bulk_bytes: list[int] = []

    @property
    def uri(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return status and JSON of the answer to a request."""
        name, _, action = path.strip("/").partition("/")
        name = self.aliases.get(name, name)
        if not name:
            return 200, {"version": {"number": "9.0.0", "distribution": "opensearch"}}
        if action == "_bulk":
            self.bulk_bytes.append(len(body))
            return 200, self._bulk(name, body.splitlines())
        if method == "PUT" and not action:
            if name in self.indices:
                return 400, {"error": {"type": "resource_already_exists_exception"}, "status": 400}
            self.indices[name] = SearchIndex(json.loads(body or b"{}").get("mappings", {}))
            return 200, {"acknowledged": True}
        if name not in self.indices:
            return 404, {"error": {"type": "index_not_found_exception"}, "status": 404}
        if method == "DELETE":
            del self.indices[name]
        elif action == "_mapping" and method == "GET":
            return 200, {name: {"mappings": self.indices[name].mappings}}
        elif action == "_mapping":
            self.indices[name].mappings |= json.loads(body)
        elif action == "_count":
            return 200, {"count": len(self.indices[name].documents)}
        elif action == "_search":
            return self._search(self.indices[name], json.loads(body))
        return 200, {"acknowledged": True}

    def _search(self, index: SearchIndex, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the documents after a position in the order of a field that can be sorted."""
        (((field, _),),) = (each.items() for each in body["sort"])
        if body["size"] > 10_000 or index.mappings["properties"][field]["type"] == "text":
            return 400, {"error": {"type": "illegal_argument_exception"}, "status": 400}
        first = body.get("search_after", [None])[0]
        found = [each for each in index.documents.values() if first is None or each[field] > first]
        hits = [
            {"_source": {name: each[name] for name in body["_source"]}, "sort": [each[field]]}
            for each in sorted(found, key=lambda each: each[field])[: body["size"]]
        ]
        return 200, {"hits": {"hits": hits}}

    def _bulk(self, name: str, lines: list[bytes]) -> dict[str, Any]:
        items, waiting = [], iter(lines)
        for line in waiting:
            ((operation, target),) = json.loads(line).items()
            document = json.loads(next(waiting)) if operation == "index" else None
            items.append({operation: {"_id": target["_id"], **self._change(name, target["_id"], document)}})
        return {"errors": any("error" in each for item in items for each in item.values()), "items": items}

    def _change(self, name: str, document_id: str, document: dict[str, Any] | None) -> dict[str, Any]:
        """Insert or replace a document, or delete it if it is None."""
        index = self.indices.get(name)
        if index is None:
            return {"status": 404, "error": {"type": "index_not_found_exception"}}
        if document is None:
            found = index.documents.pop(document_id, None)
            return {"status": 200} if found else {"status": 404, "result": "not_found"}
        try:
            index.put(document_id, document)
        except Refused as refused:
            return {"status": 400, "error": {"type": str(refused)}}
        return {"status": 200}


class _Handler(BaseHTTPRequestHandler):
    server: SearchServer
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer = self.server.answer(self.command, urlsplit(self.path).path, body)
        content = b"" if self.command == "HEAD" else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Elastic-Product", "Elasticsearch")  # the client refuses other servers
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no line for each request."""


@contextlib.contextmanager
def running() -> Iterator[SearchServer]:
    """Run a server during the block."""
    with SearchServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

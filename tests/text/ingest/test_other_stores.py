"""Corpora in Google Cloud Storage, Azure Blob Storage and the Hugging Face Hub, on local servers."""

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.server import Server

# Every night is a process of its own, so that file systems find the server in its environment.
NIGHT = """
import sys
from pipeline.errors import PipelineError
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.store.records.units import Corpus

uri, out, parent = sys.argv[1:]
store = open_store(out)
before = Corpus.load(store, parent) if parent else None
try:
    parent = PreviousCorpus(before, before.next_ordinal if before else 0)
    found = ingest(CorpusSettings(uri=uri), 8, store, parent)
except PipelineError as error:
    print(type(error).__name__, error)
else:
    print(found.rows, found.read_files, f"keys/{found.id}/corpus.json")
"""
WRITE = """
import sys
import fsspec

uri, name = sys.argv[1:]
system, path = fsspec.core.url_to_fs(uri)
bucket = path.split("/")[0]
if not system.exists(bucket):
    system.mkdir(bucket)
system.pipe_file(f"{path}/{name}", sys.stdin.buffer.read())
"""


def content_of(*ids: int) -> bytes:
    """A Parquet file of rows with these ids."""
    stream = io.BytesIO()
    pq.write_table(pa.table({"id": ids, "text": [f"text {number}" for number in ids]}), stream)
    return stream.getvalue()


def run(script: str, arguments: list[str], environment: dict[str, str], content: bytes = b"") -> list[str]:
    command = [sys.executable, "-c", script, *arguments]
    result = subprocess.run(
        command, input=content, env=os.environ | environment, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().split()


def check_nights(uri: str, out: Path, environment: dict[str, str]) -> None:
    """Two files are read; then one of them changes, and it alone is read again."""
    for name, ids in (("in/a.parquet", (1, 2)), ("in/b.parquet", (3,))):
        run(WRITE, [uri, name], environment, content_of(*ids))
    rows, read, parent = run(NIGHT, [f"{uri}/in", str(out), ""], environment)
    assert (rows, read) == ("3", "2")
    run(WRITE, [uri, "in/b.parquet"], environment, content_of(3, 4))
    assert run(NIGHT, [f"{uri}/in", str(out), parent], environment)[:2] == ["4", "1"]
    assert run(NIGHT, [f"{uri}/in/*.parquet", str(out), ""], environment)[:2] == ["4", "2"]
    assert run(NIGHT, [f"{uri}/nothing", str(out), ""], environment)[0] == "DataError"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["azure", "google"])
def test_nights_over_a_corpus_in_another_cloud(kind: str, servers: Callable[[str], Server], tmp_path: Path):
    server = servers(kind)
    check_nights(f"{server.uri}/{tmp_path.name}", tmp_path, dict(server.variables))


class _Hub(BaseHTTPRequestHandler):
    """Answers the calls of huggingface_hub for one data set."""

    files: dict[str, bytes]

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if path.startswith("/datasets/people/texts/resolve/main/"):
            self._send_file(self.files.get(path.removeprefix("/datasets/people/texts/resolve/main/")))
        elif path.startswith("/api/datasets/people/texts/tree/main"):
            folder = path.removeprefix("/api/datasets/people/texts/tree/main").strip("/")
            found = [_entry(*file) for file in self.files.items() if file[0].startswith(f"{folder}/")]
            if found:
                self._send_json(found)
            else:
                self._send(b"", 404, {"X-Error-Code": "EntryNotFound"})
        elif path.startswith("/api/datasets/people/texts"):
            self._send_json({"id": "people/texts", "sha": "0" * 40, "siblings": []})
        else:
            self._send(b"", 404, {"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        wanted = self.rfile.read(int(self.headers["Content-Length"]))
        paths = json.loads(wanted)["paths"]
        folders = [
            {"type": "directory", "path": path, "oid": "0"}
            for path in paths
            if any(name.startswith(f"{path}/") for name in self.files)
        ]
        files = [_entry(path, self.files[path]) for path in paths if path in self.files]
        self._send_json([*files, *folders])

    def _send_json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), 200, {"Content-Type": "application/json"})

    def _send_file(self, content: bytes | None) -> None:
        if content is None:
            self._send(b"", 404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{hash(content)}"', "X-Repo-Commit": "0" * 40}
        if "Range" in self.headers:
            start, _, stop = self.headers["Range"].removeprefix("bytes=").partition("-")
            end = min(int(stop), len(content) - 1) if stop else len(content) - 1
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            self._send(content[int(start) : end + 1], 206, headers)
        else:
            self._send(content, 200, headers)

    def _send(self, content: bytes, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": f"{hash(content):x}"}


@pytest.mark.slow
def test_nights_over_a_data_set_of_the_hub(tmp_path):
    files = {"data/a.parquet": content_of(1, 2), "data/b.parquet": content_of(3), "README.md": b"#"}
    handler = type("Handler", (_Hub,), {"files": files})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            environment = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
            uri, out = "hf://datasets/people/texts/data", str(tmp_path)
            rows, read, parent = run(NIGHT, [uri, out, ""], environment)
            assert (rows, read) == ("3", "2")
            files["data/b.parquet"] = content_of(3, 4)
            assert run(NIGHT, [uri, out, parent], environment)[:2] == ["4", "1"]
            assert run(NIGHT, ["hf://datasets/people/other", out, ""], environment)[0] == "DataError"
        finally:
            server.shutdown()
            thread.join()

"""Unfinished uploads are aborted on every page of their listing, however many pages the server needs."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from pipeline.store.files.open_store import open_store

PAGE = 3  # uploads of one page; S3 lists 1,000


class _Server(ThreadingHTTPServer):
    """A bucket with unfinished uploads: (key, upload id), as S3 orders them."""

    uploads: list[tuple[str, str]]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        """List the uploads after a pair of markers."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        after = query.get("key-marker", ""), query.get("upload-id-marker", "")
        remaining = [upload for upload in sorted(self.server.uploads) if upload > after]
        page = "".join(
            f"<Upload><Key>{key}</Key><UploadId>{upload}</UploadId>"
            "<Initiated>2010-11-10T20:48:33.000Z</Initiated></Upload>"
            for key, upload in remaining[:PAGE]
        )
        if len(remaining) > PAGE:
            key, upload = remaining[PAGE - 1]
            page += f"<NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>{upload}</NextUploadIdMarker>"
        is_truncated = f"<IsTruncated>{str(len(remaining) > PAGE).lower()}</IsTruncated>"
        self._answer(
            200, f"<ListMultipartUploadsResult>{page}{is_truncated}</ListMultipartUploadsResult>".encode()
        )

    def do_DELETE(self) -> None:
        """Abort an upload."""
        url = urlsplit(self.path)
        key = url.path.removeprefix("/bucket/")
        self.server.uploads.remove((key, parse_qs(url.query)["uploadId"][0]))
        self._answer(204, b"")

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    """A server on loopback, which the environment names."""
    server = _Server(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with server:
        yield server
        server.shutdown()


def test_uploads_on_every_page_are_aborted(server: _Server):
    # uploads of one key are on two pages
    server.uploads = [(f"root/large-{number // 4}", f"id-{number:02}") for number in range(11)]
    open_store("s3://bucket/root").sweep(0)
    assert len(server.uploads) == 11, "every upload began after that time"
    open_store("s3://bucket/root").sweep(time.time())
    assert server.uploads == []

"""Web addresses are refused where a folder, a root or a corpus is expected, without a request."""

import socket
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.models.folder.locate import locate
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.sources.sources import list_corpus

OPENERS = {
    "encoder": locate,
    "root": open_store,
    "corpus": lambda uri: list_corpus(CorpusSettings(uri=uri)),
}


@pytest.mark.parametrize("scheme", ["http", "https", "HTTPS", "ftp", "ftps"])
@pytest.mark.parametrize("opener", OPENERS)
def test_a_web_address_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, opener: str
):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("a request"))
    with pytest.raises(ConfigError, match=r"expected a path.*a hub id has the form owner/name"):
        OPENERS[opener](f"{scheme}://host.invalid/owner/name")

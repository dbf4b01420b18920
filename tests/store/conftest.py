"""Stores that several tests share."""

from pathlib import Path

import pytest

from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from tests.faults import FaultyProxy
from tests.store.copies import CONTENT, ENCODER


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store on disk."""
    return open_store(tmp_path)


@pytest.fixture
def remote_store(faulty: FaultyProxy, s3: str, cache: Path, tmp_path: Path) -> Store:
    """A store in S3 behind the faulty proxy, with a file and an encoder; calls are counted from here."""
    store = open_store(f"{s3}/{tmp_path.name}")
    store.write("index.faiss", CONTENT)
    for name, content in ENCODER.items():
        store.write(f"encoder/{name}", content)
    faulty.calls.clear()
    return store

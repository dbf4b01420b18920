"""A folder of input files, and a store for the corpus that is read from it."""

from pathlib import Path

import pytest

from pipeline.settings import CorpusSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusSettings:
    """Settings of a corpus in an empty folder."""
    (tmp_path / "in").mkdir()
    return CorpusSettings(uri=str(tmp_path / "in"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store beside the folder of the corpus."""
    return open_store(tmp_path / "out")

"""Encoders that several tests share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.folders import FAMILIES, save_folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a random model each, by family."""
    top = tmp_path_factory.mktemp("encoders")
    return {family: save_folder(top / family, family) for family in FAMILIES}


@pytest.fixture
def bert(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the random BERT, which the test may damage."""
    return Path(shutil.copytree(folders["bert"], tmp_path / "bert"))


@pytest.fixture(scope="module")
def cache_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of remote and converted files that the tests of one file share."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MANTA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

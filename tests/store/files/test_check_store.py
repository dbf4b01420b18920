"""A store that overwrites files that it should create is refused before a run; other stores pass."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.store.files.check_store import check_store, clock
from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from tests.conftest import REMOTE


class Forgetful(LocalStore):
    """A store that ignores the condition of a conditional write."""

    def create(self, path: str, data: bytes) -> bool:
        self.write(path, data)
        return True


@pytest.mark.parametrize("kind", ["local", *REMOTE])
def test_a_store_with_create_once_passes(kind: str, tmp_path: Path, bucket_at: Callable[[str], str]):
    store = open_store(tmp_path if kind == "local" else f"{bucket_at(kind)}/{tmp_path.name}")
    check_store(store, creates_once=True)
    assert abs(clock(store) - time.time()) < 60
    assert store.list() == [], "the probe leaves nothing"


def test_a_store_without_create_once_is_refused_for_commits_only(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"release\.commits_root") as caught:
        check_store(Forgetful(str(tmp_path)), creates_once=True)
    assert caught.value.exit_code == 2
    check_store(Forgetful(str(tmp_path)), creates_once=False)


def test_an_unwritable_root_is_named():
    with pytest.raises(ConfigError, match="/proc/nothing"):
        check_store(open_store("/proc/nothing"), creates_once=True)

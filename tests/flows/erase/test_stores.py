"""An erasure in an object store that is killed again and again leaves nothing in the store and the cache."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.flows.erase.choose import EraseRequest
from pipeline.flows.erase.erase import erase
from pipeline.flows.workers.cluster import connect
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import content_faults
from tests.conftest import REMOTE
from tests.erased.roots import Nights, people, person
from tests.erased.scan import Sought, traces
from tests.flows.erase.here import Here, Killed

GONE = [person(number)["id"] for number in (3, 20)]
KILLS = (1, 12, 25, 40, 60, 61, 70, 90)
"""changes of the store, counted from the beginning of each attempt, at which it is killed"""


def mortal(store: Store, changes: int) -> Store:
    """Let a store raise Killed instead of its change number `changes`, and at every later one."""
    left = [changes]

    def until_the_end(name: str) -> Callable[..., Any]:
        change = getattr(store, name)

        def changed(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return change(*arguments)

        return changed

    for name in ("write", "create", "put", "delete"):
        setattr(store, name, until_the_end(name))
    return store


def download(uri: str, folder: Path) -> Path:
    """Copy every file of a root to a folder."""
    store = open_store(uri)
    for entry in store.list():
        file = folder / entry.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(store.read(entry.path))
    return folder


@pytest.fixture
def here() -> Iterator[None]:
    """Tasks run in this process, so that kills reach their changes, too."""
    with connect(ClusterSettings(), Stages(), local=Here()):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("server", REMOTE)
def test_an_erasure_that_is_killed_again_and_again_leaves_nothing_in_store_and_cache(
    server: str, bucket_at: Callable[[str], str], tmp_path: Path, cache: Path, here: None
):
    uri = f"{bucket_at(server)}/erased/{tmp_path.name}"
    nights = Nights(tmp_path, "index.kind=ivf_sq8", "whiten.mode=off", root=uri)
    nights.night(people(range(60)))
    nights.night([row for row in people(range(62)) if row["id"] not in GONE])
    open_release(uri, 1).search(person(3)["text"], 3, texts=True)
    sought = Sought.of(download(uri, tmp_path / "before"), GONE)
    assert traces([cache], sought), "the cache has files of the first release"
    request = EraseRequest(frozenset(GONE), ignore_leases=True)
    was_erased = []
    for changes in KILLS:
        store = mortal(open_store(uri), changes)
        with contextlib.suppress(Killed):
            erase(Releases(store), request, Stages())
        releases = Releases(open_store(uri))
        for lease in releases.store.list("erasures", ".json"):
            if "/lease-" in lease.path:
                releases.store.delete(lease.path)
        was_erased.append(releases.history()[-1].kind == "erase")
        assert content_faults(releases.store, releases.get_or_current(None)) == []
        assert open_release(uri).search(person(5)["text"], 1)["id"].to_pylist() == [person(5)["id"]]
    assert was_erased == sorted(was_erased)
    assert not was_erased[0]
    erase(Releases(open_store(uri)), request, Stages())
    after = download(uri, tmp_path / "after")
    assert traces([after, cache], sought.learn(after)) == []
    for number in releases.numbers():
        assert content_faults(releases.store, Releases(open_store(uri)).get(number)) == []

"""An erasure that is killed at any change of a file: readers see all releases before it or after it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from pipeline.flows.erase.choose import EraseRequest
from pipeline.flows.erase.erase import erase
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import content_faults
from tests.erased.roots import Nights, people, person
from tests.erased.scan import Sought, traces
from tests.flows.erase.here import Here, Killed, MortalStore

GONE = [person(number)["id"] for number in (3, 20)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, child: LocalWorkers) -> Path:
    """A root of two nights; the second one lost two rows."""
    with connect(ClusterSettings(), Stages(), local=child):
        nights = Nights(tmp_path_factory.mktemp("nights") / "of", "index.kind=flat", "whiten.mode=off")
        nights.night(people(range(40)))
        nights.night([row for row in people(range(41)) if row["id"] not in GONE])
    return Path(nights.root)


@pytest.fixture
def here() -> Iterator[None]:
    """Tasks run in this process, so that kills reach their changes, too."""
    with connect(ClusterSettings(), Stages(), local=cast(LocalWorkers, Here())):
        yield


def run(store: MortalStore) -> None:
    request = EraseRequest(frozenset(GONE), reason="request 17", ignore_leases=True)
    erase(Releases(store), request, Stages())


def changes_of(root: Path, folder: Path) -> int:
    """Count the calls of a whole erasure at which it can be killed."""
    shutil.copytree(root, folder)
    store = MortalStore(str(folder))
    store.alive = 1_000_000
    run(store)
    return 1_000_000 - store.alive


def check_readers(folder: Path) -> bool:
    """Check that every release can be read and searched. Returns whether the erasure has taken effect."""
    releases = Releases(MortalStore(str(folder)))
    history = releases.history()
    is_erased = history[-1].kind == "erase"
    current = releases.current()
    assert current is not None
    assert current.release == 2
    assert content_faults(releases.store, current) == []
    earlier = releases.get(1)
    assert earlier.rows in (40, 38)
    assert current.rows == 39
    found = open_release(str(folder)).search(np.ones((1, 24), np.float32), 40)["id"].to_pylist()
    assert len(found) == 39
    assert not set(found) & set(GONE)
    return is_erased


def check_killed_at(root: Path, folder: Path, sought: Sought, call: int) -> bool:
    """Kill an erasure at one call, then run it again. Returns whether it had taken effect before."""
    shutil.copytree(root, folder)
    store = MortalStore(str(folder))
    store.alive = call
    with pytest.raises(Killed):
        run(store)
    for lease in folder.glob("erasures/lease-*.json"):
        lease.unlink()  # the lease of a killed process expires
    is_erased = check_readers(folder)
    run(MortalStore(str(folder)))
    assert check_readers(folder)
    assert [each for each in traces([folder], sought) if each.what != "address"] == []
    assert not [each for each in folder.glob("erasures/*/**/*") if each.is_file()], "no work is left"
    assert len(list(folder.glob("erasures/*.json"))) == 1, "there is one receipt"
    shutil.rmtree(folder)
    return is_erased


def test_a_killed_erasure_is_whole_or_nothing_and_is_completed_by_the_next(
    root: Path, tmp_path: Path, here: None
):
    sought = Sought.of(root, GONE)
    calls = changes_of(root, tmp_path / "all")
    chosen = sorted({*np.linspace(3, calls - 8, 10).astype(int).tolist()})
    effects = [check_killed_at(root, tmp_path / f"at-{call}", sought, call) for call in chosen]
    assert effects == sorted(effects), "it takes effect at one moment"
    assert set(effects) == {False, True}


@pytest.mark.slow
def test_kills_before_and_after_every_change(root: Path, tmp_path: Path, here: None):
    sought = Sought.of(root, GONE)
    calls = changes_of(root, tmp_path / "all")
    effects = [check_killed_at(root, tmp_path / f"at-{call}", sought, call) for call in range(1, calls - 2)]
    assert effects == sorted(effects)
    assert calls > 100

"""Nights erase rows that the corpus has not had for some days, none that it has, and no protected ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError
from pipeline.flows.erase.choose import EraseRequest
from pipeline.flows.erase.deleted import DEAD_SINCE, erase_deleted
from pipeline.flows.erase.due import erase_due
from pipeline.flows.erase.erase import erase
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.publish import NightOutcome
from pipeline.log import Stages
from pipeline.store.files.lease import SERVED, lease
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.conftest import CommandResult
from tests.erased.roots import Nights, people, person
from tests.erased.scan import Sought, traces
from tests.flows.export.nights import released_rows

SETTINGS = ("whiten.mode=off", "index.kind=flat", "index.queries=20", "encode.unit_rows=10")

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def days_later(monkeypatch: pytest.MonkeyPatch):
    """Let the root's clock be some days later."""
    from pipeline.flows.erase import deleted

    real = deleted.clock

    def later(days: int) -> None:
        monkeypatch.setattr(deleted, "clock", lambda store: real(store) + days * 86_400)

    return later


def due_night(nights: Nights, rows: list[dict[str, Any]] | None = None, *settings: str) -> NightOutcome:
    """Run a night that begins with the erasure of what is due, as the command does."""
    if rows is not None:
        nights.write(rows)
    return nightly(nights.job(*settings), Stages(), before=erase_due)


def live(root: str) -> dict[str, bytes]:
    current = Releases(open_store(root)).get_or_current(None)
    return {
        name: bytes(str(row), "utf-8") for name, row in released_rows(Path(root), current.release).items()
    }


def run(root: str, days: int = 30, protected: frozenset[str] = frozenset()) -> dict[str, int]:
    return erase_deleted(Releases(open_store(root)), days, protected, Stages())


def test_rows_are_erased_when_they_are_gone_for_so_many_days_and_others_stay(tmp_path: Path, days_later):
    nights = Nights(tmp_path, *SETTINGS)
    nights.night(people(range(40)))
    gone, changed = person(7)["id"], person(9)["id"]
    nights.night([person(number, version=number == 9) for number in range(40) if number != 7])
    root = Path(nights.root)
    sought, before = Sought.of(root, [gone]), live(nights.root)
    assert run(nights.root) == {"erased": 0, "protected": 0}
    assert pq.read_schema(root / DEAD_SINCE).names == ["address", "day"]
    days_later(29)
    assert run(nights.root)["erased"] == 0
    assert traces([root], sought)
    days_later(31)
    assert run(nights.root, protected=frozenset({gone})) == {"erased": 0, "protected": 1}
    assert run(nights.root) == {"erased": 0, "protected": 0}, "looked at again after as many days"
    days_later(62)
    assert run(nights.root) == {"erased": 1, "protected": 0}
    assert traces([root], sought.learn(root)) == []
    assert live(nights.root) == before
    assert Releases(open_store(nights.root)).numbers() == [1, 2]
    old_version = Sought.of(root, [changed])
    assert [each for each in traces([root], old_version) if each.what == "text"], "its id is in the corpus"
    assert run(nights.root)["erased"] == 0
    nights.night([person(number, version=0) for number in range(40) if number not in (7, 9)])
    days_later(130)
    assert run(nights.root)["erased"] == 1
    assert traces([root], old_version.learn(root)) == [], "all versions of a row go together"


def test_a_night_begins_with_it_and_goes_on_if_a_service_uses_the_root(tmp_path: Path, days_later):
    nights = Nights(tmp_path, *SETTINGS, "release.erase_after_days=1")
    nights.night(people(range(30)))
    nights.night(people(range(1, 30)))
    sought = Sought.of(Path(nights.root), [person(0)["id"]])
    due_night(nights)
    days_later(3)
    store = open_store(nights.root)
    with lease(store, SERVED, release=2):
        outcome = due_night(nights, people(range(1, 33)))
    assert outcome.status == "published"
    assert [each for each in outcome.failures if each.startswith("erase failed: ")]
    assert traces([Path(nights.root)], sought)
    (tmp_path / "hold.txt").write_text(f"{person(0)['id']}\n")
    outcome = due_night(nights, None, f"release.protected={tmp_path / 'hold.txt'}")
    assert outcome.facts["after"] == [{"step": "erase", "erased": 0, "protected": 1}]
    days_later(6)
    outcome = due_night(nights)
    assert (outcome.status, outcome.failures) == ("unchanged", ())
    assert outcome.facts["after"] == [{"step": "erase", "erased": 1, "protected": 0}]
    assert traces([Path(nights.root)], sought.learn(Path(nights.root))) == []


def test_an_erasure_refuses_protected_ids(tmp_path: Path):
    nights = Nights(tmp_path, *SETTINGS)
    nights.night(people(range(20)))
    nights.night(people(range(2, 20)))
    ids = frozenset(person(number)["id"] for number in range(2))
    releases = Releases(open_store(nights.root))
    sought = Sought.of(Path(nights.root), ids)
    request = EraseRequest(ids=ids, protected=frozenset({person(1)["id"], "another"}))
    with pytest.raises(ConfigError, match="1 protected id of 2"):
        erase(releases, request, Stages())
    assert len({each.what for each in traces([Path(nights.root)], sought)}) > 4


def test_the_command_refuses_protected_ids_of_the_settings_and_of_its_option(
    tmp_path: Path, manta: Callable[..., CommandResult]
):
    nights = Nights(tmp_path, *SETTINGS)
    hold, ids, none = (tmp_path / name for name in ("hold.txt", "ids.txt", "none.txt"))
    for file, numbers in ((hold, (1,)), (ids, (0, 1)), (none, ())):
        file.write_text("".join(f"{person(number)['id']}\n" for number in numbers))
    nights.night(people(range(20)))
    nights.night(people(range(2, 20)), f"release.protected={hold}")
    refused = manta("erase", nights.root, "--ids", str(ids))
    assert refused.code == 2
    assert "1 protected id of 2" in refused.err
    assert manta("erase", nights.root, "--ids", str(ids), "--protected", str(ids)).code == 2
    hold.unlink()
    unreadable = manta("erase", nights.root, "--ids", str(ids))
    assert unreadable.code == 2, "nothing is erased if it is not known what is protected"
    assert "release.protected" in unreadable.err
    assert manta("erase", nights.root, "--ids", str(ids), "--protected", str(none)).code == 0


def test_rows_of_a_release_that_was_rolled_back_are_not_due_at_once(
    tmp_path: Path, days_later, monkeypatch: pytest.MonkeyPatch
):
    nights = Nights(tmp_path, *SETTINGS)
    long_ago = "2026-01-01T00:00:00+00:00"
    with monkeypatch.context() as clock:
        clock.setattr("pipeline.store.releases.release.utc_now", lambda: long_ago)
        nights.night(people(range(20)))
    nights.night(people(range(30)))
    Releases(open_store(nights.root)).rollback(1)
    assert run(nights.root)["erased"] == 0
    assert Releases(open_store(nights.root)).get(2).rows == 30
    days_later(31)
    assert run(nights.root)["erased"] == 10, "the current release has not had them for so long"

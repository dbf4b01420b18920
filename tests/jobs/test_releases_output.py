"""What people wrote into a root cannot forge a line of what is printed."""

from collections.abc import Callable
from pathlib import Path

from pipeline.store.release import Releases
from pipeline.store.store import open_store
from tests.conftest import Ended
from tests.store.test_release import publish


def test_a_reason_with_a_line_break_stays_on_its_line(tmp_path: Path, manta: Callable[..., Ended]):
    root = str(tmp_path / "root")
    release = publish(open_store(root), "one")
    Releases(open_store(root)).hold(release.release, "why\nforged")
    ended = manta("releases", "list", root)
    assert ended.code == 0, ended.err
    assert "why\ufffdforged" in ended.out
    assert "forged" not in ended.out.splitlines()

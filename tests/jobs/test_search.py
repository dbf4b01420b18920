"""`manta search`: every query has its own answers, and the command that a night prints finds the release."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.nightly import search_command
from pipeline.config import load_settings
from pipeline.settings import Job
from pipeline.store.store import open_store
from tests.conftest import Ended
from tests.index.published import Publisher
from tests.models.folders import save_folder

Manta = Callable[..., Ended]


@pytest.fixture
def published(tmp_path: Path) -> tuple[str, str]:
    """(root, root of the commits) of a release of three texts whose commits lie in a store of their own."""
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "encoder", "bert"), tmp_path)
    publish(["two dogs run", "a girl reads", "Schnee am Fluss"])
    (tmp_path / "apart").mkdir()
    (tmp_path / "root" / "commits").rename(tmp_path / "apart" / "commits")
    return str(tmp_path / "root"), str(tmp_path / "apart")


def test_commits_in_a_store_of_their_own_are_found_by_the_command_that_a_night_prints(published: tuple[str, str], manta: Manta):
    root, commits = published
    assert manta("search", root, "a girl reads").code == 3
    job = load_settings(Job, None, (f"release.root={root}", f"release.commits_root={commits}"))
    name, *arguments = shlex.split(search_command(job))
    assert name == "manta"
    assert len(manta(*arguments, "--json").out.splitlines()) == 3


def test_one_text_asked_twice_is_answered_once_each_time(published: tuple[str, str], manta: Manta):
    root, commits = published
    shown = manta("search", root, "two dogs run", "a girl reads", "two dogs run", "--commits-root", commits, "-k", "2").out
    parts = shown.strip().split("\n\n")
    assert [part.splitlines()[0] for part in parts] == ["two dogs run", "a girl reads", "two dogs run"]
    assert [len(part.splitlines()) for part in parts] == [4, 4, 4]
    lines = [json.loads(line) for line in manta("search", root, "two dogs run", "two dogs run", "--commits-root", commits, "-k", "2", "--json").out.splitlines()]
    assert [(line["query"], line["rank"]) for line in lines] == [("two dogs run", 1), ("two dogs run", 2)] * 2


def test_an_id_cannot_move_the_cursor_or_forge_a_row(tmp_path: Path, manta: Manta):
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "encoder", "bert"), tmp_path)
    forged = ["\x1b]52;c;ZXZpbA==\x07", "one\n   1  1.0000  forged", "\u202egnorw", "\x9b2Jgone"]
    publish(["two dogs run", "a girl reads", "a cat sleeps", "the river"], ids=forged)
    shown = manta("search", str(tmp_path / "root"), "a girl reads", "-k", "4").out
    assert len(shown.splitlines()) == 1 + 4
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    lines = manta("search", str(tmp_path / "root"), "a girl reads", "-k", "4", "--json").out
    assert not set("\x1b\x07\x9b\u202e") & set(lines)
    assert sorted(json.loads(line)["id"] for line in lines.splitlines()) == sorted(forged), "a program gets what was stored"


def test_an_error_is_one_line_whatever_it_quotes(tmp_path: Path, manta: Manta):
    ended = manta("nightly", f"corpus.uri={tmp_path}/no\nerror: all is well \x1b[2J", f"release.root={tmp_path / 'root'}")
    assert ended.code == 3
    assert "\x1b" not in ended.err
    assert not [line for line in ended.err.splitlines() if line.startswith("error: all is well")]

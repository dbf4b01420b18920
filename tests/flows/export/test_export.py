"""After any sequence of releases and kills, a target equals the release, and only changes are written."""

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError, SpaceMismatch, TransientError
from pipeline.flows.export.export import _refuse_folder_of_corpus, export
from pipeline.log import Stages
from pipeline.store.files.base import Entry
from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.targets.lancedb import LanceTarget
from pipeline.targets.parquet import ParquetTarget
from pipeline.targets.qdrant import QdrantTarget
from pipeline.targets.target import TARGETS, Position
from tests.conftest import ROOT, CommandResult
from tests.flows.export.nights import (
    LAST,
    DictTarget,
    Killed,
    Rows,
    StoppingTarget,
    released_rows,
    run_export,
)

KILLS = st.none() | st.tuples(st.integers(1, 30), st.sampled_from(["before", "half", "after"]))
WALKS = st.lists(st.tuples(st.integers(1, LAST), KILLS), min_size=1, max_size=8)


@pytest.fixture(scope="session")
def released(root: Path) -> dict[int, Rows]:
    """The rows of each release."""
    return {number: released_rows(root, number) for number in range(1, LAST + 1)}


def test_the_nights_have_every_kind_of_change(released):
    first, second, third, fourth, *_ = (released[number] for number in range(1, LAST + 1))
    assert first.keys() - second.keys()
    assert second.keys() - first.keys()
    assert any(first[name] != second[name] for name in first.keys() & second.keys())
    assert ("no vector" in second, "no vector" in third) == (False, True)
    assert ("new-1" in second, "new-1" in third) == (True, False)
    assert all(third[name]["vector"] != fourth[name]["vector"] for name in third.keys() & fourth.keys())


def test_a_missing_unit_is_named_and_nothing_becomes_visible(
    root, tmp_path, manta: Callable[..., CommandResult]
):
    shutil.copytree(root, tmp_path / "root")
    unit = open_store(tmp_path / "root").uri_of(Releases(open_store(root)).get(LAST).units[-1].path)
    Path(unit).unlink()
    command = ("export", str(tmp_path / "root"), "parquet", str(tmp_path / "out"))
    ended = manta(*command)
    assert ended.code == 3
    assert f"error: {unit}: expected a unit of vectors, found no such file; restore the unit" in ended.err
    assert not list(tmp_path.glob("out/**/manifest.json"))
    shutil.copy(unit.replace(str(tmp_path / "root"), str(root)), unit)
    assert manta(*command).code == 0, "the export continues"


def test_a_target_in_a_folder_below_another_is_another_target(root, tmp_path):
    for name, number in (("docs", 1), ("docs/new", 3), ("docs/00000001/x", 2)):
        assert run_export(root, number, ParquetTarget(str(tmp_path), name)).status == "done"
    outer = ParquetTarget(str(tmp_path), "docs")
    assert [each.number for each in outer.change_sets()] == [1]
    assert run_export(root, 3, outer).before == (1,)


@pytest.mark.parametrize(("folder", "name"), [(".", "units"), ("releases", "docs"), ("x/..", "commits/a")])
def test_no_export_is_written_where_prune_would_remove_it(root, tmp_path, folder, name):
    shutil.copytree(root, tmp_path / "root")
    with pytest.raises(ConfigError, match="expected a folder outside the root, or its folder exports, found"):
        run_export(tmp_path / "root", 1, ParquetTarget(f"{tmp_path}/root/{folder}", name))
    run_export(tmp_path / "root", 1, ParquetTarget(f"{tmp_path}/root/exports", name))
    run_export(tmp_path / "root", 1, ParquetTarget(f"{tmp_path}/rooted", "units"))
    prune(Releases(open_store(tmp_path / "root")), keep=1, grace_s=0)
    assert len(list(tmp_path.glob(f"root/exports/{name}/*/upserts*"))) > 0


def test_no_export_is_written_among_the_files_of_the_corpus(root, tmp_path):
    corpus = Releases(open_store(root)).get(1).settings["corpus"]["uri"]
    (tmp_path / "link").symlink_to(corpus)
    for folder in (corpus, f"{corpus}/below", f"file://{corpus}", str(tmp_path / "link")):
        with pytest.raises(ConfigError, match=r"docs: expected a folder that is not below corpus\.uri"):
            run_export(root, 1, ParquetTarget(folder, "docs"))
    assert not list(Path(corpus).rglob("docs"))


@pytest.mark.parametrize(
    ("uri", "kind", "is_refused"),
    [
        ("{}/**", ParquetTarget, True),
        ("{}", QdrantTarget, True),
        ("{}", LanceTarget, False),
        (".", ParquetTarget, False),
    ],
)
def test_only_folders_whose_files_the_corpus_surely_reads_are_refused(
    root, tmp_path, monkeypatch, uri, kind, is_refused
):
    """A relative URI is relative to a folder that the release does not name."""
    monkeypatch.chdir(tmp_path)
    manifest = Releases(open_store(root)).get(1)
    corpus = {**manifest.settings["corpus"], "uri": uri.format(tmp_path)}
    manifest = manifest.model_copy(update={"settings": {**manifest.settings, "corpus": corpus}})
    with pytest.raises(ConfigError, match="not below") if is_refused else contextlib.nullcontext():
        _refuse_folder_of_corpus(manifest, kind(str(tmp_path), "docs"))


def exported_to_memory(root: Path, number: int | None) -> dict:
    """Return the stored values of a target that holds a release, or nothing."""
    target = DictTarget()
    if number:
        run_export(root, number, target)
    return target.stored


def duplicate(stored: dict) -> dict:
    return {name: dict(value) if name == "rows" else value for name, value in stored.items()}


# A kill before a call leaves the target as a kill after the previous call does.
KILLED = pytest.mark.parametrize("when", ["half", "after"])


@KILLED
def test_an_export_that_is_killed_at_any_call_continues_to_the_same_or_another_release(root, released, when):
    for start, wanted in ((None, 2), (2, 3), (3, 1)):
        beginning, calls = exported_to_memory(root, start), 0
        while True:
            calls += 1
            stored = duplicate(beginning)
            try:
                run_export(root, wanted, StoppingTarget(DictTarget(stored), calls, when))
            except Killed:
                for following in (wanted, 5):
                    target = DictTarget(duplicate(stored))
                    run_export(root, following, target)
                    assert target.stored["rows"] == released[following]
            else:
                break
        assert calls > 5


def test_finished_steps_are_not_repeated(root, released):
    stored: dict = {}
    target = StoppingTarget(DictTarget(stored), 6, "after")
    with pytest.raises(Killed):
        run_export(root, 1, target)
    done = Position.model_validate_json(stored["position"]).steps
    exported = run_export(root, 1, DictTarget(stored))
    assert done == 2
    assert exported.written == len(released[1]) - 50


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 4), (4, 5), (5, 1), (2, 1), (6, 5)])
def test_only_differing_rows_are_written(root, released, before, after):
    old, new = released[before], released[after]
    target = DictTarget()
    run_export(root, before, target)
    exported = run_export(root, after, target)
    differing = sum(old.get(name) != each for name, each in new.items())
    assert exported.deleted == len(old.keys() - new.keys())
    if 4 not in (before, after) and {before, after} != {5, 1}:  # these rows have other addresses
        assert exported.written == differing
    assert exported.written >= differing
    assert run_export(root, after, target).status == "unchanged"


def applied(folder: Path, changes: list, before: Rows | None = None) -> Rows:
    """Apply change sets to the rows `before`, as a reader of the files would."""
    rows = Rows(before or {})
    for change in changes:
        rows = Rows() if change.is_whole else rows
        upserts = [pq.read_table(folder / file.path).to_pylist() for file in change.upserts]
        names = [each.pop("id") for part in upserts for each in part]
        assert len(names) == len(set(names))
        rows.update(zip(names, [each for part in upserts for each in part], strict=True))
        for file in change.deletes:
            deleted = pq.read_table(folder / file.path)["id"].to_pylist()
            assert not set(names) & set(deleted)
            for name in deleted:
                del rows[name]
    return rows


@pytest.mark.hypothesis
@given(WALKS)
def test_change_sets_give_the_release_and_are_visible_only_when_complete(
    root, released, tmp_path_factory, walk
):
    folder = tmp_path_factory.mktemp("changes")
    held, rows, known = None, Rows(), 0
    for number, kill in [*walk, (walk[0][0], None)]:
        target = ParquetTarget(str(folder), "docs")
        try:
            run_export(root, number, StoppingTarget(target, *kill) if kill else target)
            held = number
        except Killed:
            pass
        changes = ParquetTarget(str(folder), "docs").change_sets()
        if changes and changes[-1].position.held.number != held:
            assert kill is not None, "the manifest was written before the kill"
            held = changes[-1].position.held.number
        assert [change.number for change in changes] == list(range(1, len(changes) + 1))
        rows, known = applied(folder, changes[known:], rows), len(changes)
        assert rows == (released[held] if held else {})
    assert applied(folder, changes) == rows, "no change set was changed later"


def test_the_documented_reader_of_change_sets_gives_the_release(root, released, tmp_path):
    for number in (1, 2, 3, 5):
        run_export(root, number, ParquetTarget(str(tmp_path), "docs"))
    document = (ROOT / "pipeline" / "store" / "README.md").read_text()
    (block,) = (
        each for each in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "is_whole" in each
    )
    names: dict = {}
    exec(block.replace("out/changes", str(tmp_path)), names)
    found = {name: {key: each[key] for key in each if key != "id"} for name, each in names["rows"].items()}
    assert found == released[5]


def test_a_change_set_has_no_more_than_the_changes_although_another_export_was_stopped(
    root, released, tmp_path
):
    run_export(root, 1, ParquetTarget(str(tmp_path), "docs"))
    with pytest.raises(Killed):
        run_export(root, 4, StoppingTarget(ParquetTarget(str(tmp_path), "docs"), 5, "after"))
    exported = run_export(root, 2, ParquetTarget(str(tmp_path), "docs"))
    changes = ParquetTarget(str(tmp_path), "docs").change_sets()
    assert exported.before == (1,)
    assert sum(file.rows for file in changes[-1].deletes) == len(released[1].keys() - released[2].keys())
    assert applied(tmp_path, changes) == released[2]


def test_a_target_of_another_root_is_refused(root):
    target = DictTarget()
    run_export(root, 1, target)
    position = json.loads(target.stored["position"])
    position["releases"][0]["sha256"] = "0" * 64
    target.stored["position"] = json.dumps(position)
    rows = dict(target.stored["rows"])
    with pytest.raises(DataError, match="of another root"):
        run_export(root, 2, target)
    assert target.stored == {"rows": rows, "position": json.dumps(position)}
    assert run_export(root, 2, target, replace=True).status == "done"


def copy_of(root: Path, folder: Path) -> Path:
    """Copy the root by hard links, so that releases can be pruned."""
    return Path(shutil.copytree(root, folder / "root", copy_function=os.link))


def test_after_prune_all_rows_are_written_and_the_surplus_deleted(root, released, tmp_path, capsys):
    copied, target = copy_of(root, tmp_path), DictTarget()
    run_export(copied, 2, target)
    prune(Releases(open_store(copied)), 1, grace_s=0)
    exported = run_export(copied, None, target)
    assert (exported.before, exported.written) == ((2,), len(released[LAST]))
    assert exported.deleted == len(released[2].keys() - released[LAST].keys()) > 0
    assert target.stored["rows"] == released[LAST]
    assert "memory: rows: release 2 was pruned, so all rows are written" in capsys.readouterr().err
    assert run_export(copied, None, target).status == "unchanged"


@KILLED
@pytest.mark.parametrize("is_killed_before_prune", [True, False])
def test_an_export_that_is_killed_at_any_call_continues_after_prune(
    root, released, tmp_path, when, is_killed_before_prune
):
    pruned, beginning = copy_of(root, tmp_path), exported_to_memory(root, 3)
    prune(Releases(open_store(pruned)), 2, grace_s=0)
    for wanted, following in ((LAST, LAST), (5, LAST)):
        calls = 0
        while True:
            calls += 1
            target = DictTarget(duplicate(beginning))
            try:
                stopping = StoppingTarget(target, calls, when)
                run_export(root if is_killed_before_prune else pruned, wanted, stopping)
            except Killed:
                run_export(pruned, following, target)
                assert target.stored["rows"] == released[following]
            else:
                break
        assert calls > 5


def test_rows_are_listed_only_if_the_target_has_too_many(root, released, tmp_path, monkeypatch):
    copied, target = copy_of(root, tmp_path), DictTarget()
    run_export(copied, 5, target)  # release 6 has all of its ids
    prune(Releases(open_store(copied)), 1, grace_s=0)
    monkeypatch.setattr(DictTarget, "ids", None)
    assert run_export(copied, None, target).deleted == 0
    assert target.stored["rows"] == released[LAST]


def test_a_pruned_release_of_another_root_is_refused(root, tmp_path):
    copied, target = copy_of(root, tmp_path), DictTarget()
    run_export(copied, 2, target)
    prune(Releases(open_store(copied)), 1, grace_s=0)
    with pytest.raises(Killed):
        run_export(copied, None, StoppingTarget(target, 2, "after"))
    stored = target.position()
    other = [each.model_copy(update={"sha256": "other"}) if each.number == 2 else each
             for each in stored.releases]  # fmt: skip
    target.store_position(stored.model_copy(update={"releases": tuple(other)}))
    with pytest.raises(DataError, match="rows of release 2 of another root"):
        run_export(copied, None, target)


STEPS = st.tuples(st.integers(1, LAST), KILLS) | st.integers(1, LAST)


@pytest.mark.hypothesis
@given(st.lists(STEPS, min_size=1, max_size=8))
def test_after_any_sequence_of_releases_kills_and_prunes_the_target_equals_the_release(
    root, released, tmp_path_factory, walk
):
    copied = copy_of(root, tmp_path_factory.mktemp("pruned"))
    stored: dict = {}
    for step in [*walk, (LAST, None)]:
        kept = Releases(open_store(copied)).numbers()
        if isinstance(step, int):
            prune(Releases(open_store(copied)), step, grace_s=0)
            continue
        number, kill = max(step[0], kept[0]), step[1]
        target = DictTarget(stored)
        with contextlib.suppress(Killed):
            run_export(copied, number, StoppingTarget(target, *kill) if kill else target)
            assert stored["rows"] == released[number]


def test_after_prune_a_change_set_has_the_whole_release(root, released, tmp_path, capsys):
    copied = copy_of(root, tmp_path)
    for number in (1, 2):
        run_export(copied, number, ParquetTarget(str(tmp_path), "docs"))
    prune(Releases(open_store(copied)), 1, grace_s=0)
    with pytest.raises(Killed):
        run_export(copied, None, StoppingTarget(ParquetTarget(str(tmp_path), "docs"), 5, "after"))
    assert "docs: release 2 was pruned, so all rows are written" in capsys.readouterr().err
    exported = run_export(copied, None, ParquetTarget(str(tmp_path), "docs"))
    changes = ParquetTarget(str(tmp_path), "docs").change_sets()
    assert exported.written < len(released[LAST]), "the stopped export continues"
    assert [change.is_whole for change in changes] == [True, False, True]
    assert applied(tmp_path, changes) == released[LAST]
    assert applied(tmp_path, changes[:2]) == released[2]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"space_id": "another"}, SpaceMismatch, "expected vectors of space"),
        ({"columns": {"id": "string", "vector": "fixed_size_list<element: float not null>[32]"}}, DataError,
         r"\[24\].*found id string, vector .*\[32\]"),
    ],
)  # fmt: skip
def test_other_spaces_and_dimensions_are_refused(root, change, error, words):
    target = DictTarget()
    run_export(root, 1, target)
    position = Position.model_validate_json(target.stored["position"]).model_copy(update=change)
    target.store_position(position)
    with pytest.raises(error, match=words):
        run_export(root, 2, target)
    assert target.position() == position


def test_rows_of_another_program_are_noticed(root):
    target = DictTarget()
    run_export(root, 1, target)
    target.stored["rows"]["mine"] = {}
    with pytest.raises(DataError, match=r"expected \d+ rows.*another program"):
        run_export(root, 2, target)
    position = target.position()
    assert position is not None
    assert position.held is None


def test_two_exports_at_once_are_refused(root, monkeypatch):
    target = DictTarget()
    inside = []

    class Nested(DictTarget):
        def create(self, schema, position):
            with pytest.raises(TransientError, match="no other export to this target"):
                run_export(root, 1, target)
            inside.append(True)
            super().create(schema, position)

    Nested.__name__ = "DictTarget"
    run_export(root, 1, Nested(target.stored))
    assert inside == [True]


class Meeting(LocalStore):
    """A store in which the first listings of leases by two threads end together."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._together, self._met = threading.Barrier(2), threading.local()

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        entries = super().list(prefix, suffix)
        if prefix.startswith("exports/") and not hasattr(self._met, "before"):
            self._met.before = True
            self._together.wait()
        return entries


def test_exports_of_two_releases_that_start_together_do_not_interleave(root, released):
    store, writing, target = Meeting(str(root)), threading.Lock(), DictTarget()

    class Guarded(DictTarget):
        def position(self):
            assert writing.acquire(blocking=False), "two exports write to the target"
            time.sleep(0.2)
            return super().position()

        def count(self):
            writing.release()
            return super().count()

    def run(number: int) -> str:
        try:
            return export(Releases(store), number, Guarded(target.stored), Stages()).status
        except TransientError:
            return "refused"

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run, (3, 4)))
    assert "done" in ended
    assert set(ended) <= {"done", "refused"}
    held = target.position().held.number
    assert target.stored["rows"] == released[held]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("parquet", "changes", "./changes/"),
        ("parquet", "changes", "file://{folder}/changes"),
        ("opensearch", "https://Host:9200", "https://host:9200/"),
        ("pgvector", "postgresql://host/db", "postgresql://HOST/db/"),
    ],
)
def test_spellings_of_one_address_are_one_target(tmp_path, monkeypatch, kind, one, other):
    monkeypatch.chdir(tmp_path)
    addresses = []
    for uri in (one, other.format(folder=tmp_path)):
        target = object.__new__(TARGETS[kind])  # without a client
        target.uri = uri
        addresses.append(target.address)
    assert addresses[0] == addresses[1]


def test_a_replacing_export_that_is_killed_before_the_old_rows_are_gone_leaves_none(root, released):
    class LateTarget(DictTarget):
        """Stores the position before it drops the old rows, and is killed between."""

        def create(self, schema, position):
            self.store_position(position)
            raise Killed

    for following in (2, 3):  # the same export continues, or another begins; both lack rows of release 1
        target = DictTarget()
        run_export(root, 1, target)
        with pytest.raises(Killed):
            run_export(root, 2, LateTarget(target.stored), replace=True)
        run_export(root, following, target)
        assert target.stored["rows"] == released[following]


def test_the_command_exports_and_says_what_it_did(
    root, released, tmp_path, manta: Callable[..., CommandResult]
):
    arguments = ["export", str(root), "parquet", str(tmp_path / "changes"), "--name", "docs"]
    first = manta(*arguments, "--release", "1", "--json")
    assert first.code == 0, first.err
    facts = json.loads(first.out)
    assert (facts["status"], facts["written"], facts["before"]) == ("done", len(released[1]), [0])
    second = manta(*arguments)
    assert f"holds release {LAST} now" in second.out
    assert "nothing to do" in manta(*arguments).out
    changes = ParquetTarget(str(tmp_path / "changes"), "docs").change_sets()
    assert applied(tmp_path / "changes", changes) == released[LAST]
    vectors = pq.read_table(tmp_path / "changes" / changes[0].upserts[0].path)["vector"]
    assert np.isfinite(np.stack(vectors.to_pylist())).all()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["parket", "x"], 2, "did you mean 'parquet'"),
        (["parquet", "s3://key:word@bucket/changes"], 2, "credentials"),
        (["parquet", "x", "--release", "99"], 3, "release 99"),
    ],
)
def test_wrong_input_is_explained(root, manta: Callable[..., CommandResult], arguments, code, words):
    ended = manta("export", str(root), *arguments)
    assert ended.code == code, ended.err
    assert words in ended.err

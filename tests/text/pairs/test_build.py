"""Rows of every kind are the same to the last byte, whatever the files, the order of rows and the buckets."""

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.log import Stages
from pipeline.settings.training import SourceSettings
from pipeline.text.key_tables import keys
from pipeline.text.pairs import build
from pipeline.text.pairs.build import TEST, TRAIN, build_rows, open_build
from pipeline.text.pairs.builder import BUILDERS
from pipeline.text.rows.training_rows import open_training_rows
from tests.conftest import ROOT
from tests.text.pairs.building import DATA, Rows, read_test_set, running_text, settings_of, write_data
from tests.text.pairs.building import build as build_training_rows

every_kind = pytest.mark.parametrize("kind", BUILDERS.names())


def files_of(folder: Path) -> list[bytes]:
    return [(folder / "pairs" / "made" / name).read_bytes() for name in (TRAIN, TEST)]


def built_bytes(folder: Path, kind: str, rows: Rows, files: int = 1, **changes: Any) -> list[bytes]:
    write_data(folder, rows, files)
    build_rows(open_build(settings_of(folder, kind, test=0.3, **changes)), Stages())
    return files_of(folder)


def keys_of(rows: Rows) -> set[str]:
    """First words of all texts: each names the premise, group or document of its text."""
    return {text.split()[0] for row in rows for text in row.values()}


@every_kind
def test_rows_do_not_depend_on_files_order_and_buckets(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = DATA[kind](60)
    expected = built_bytes(tmp_path / "one", kind, rows)
    shuffled = random.Random(0).sample(rows, len(rows))
    assert built_bytes(tmp_path / "four", kind, shuffled, files=4) == expected
    monkeypatch.setattr(keys, "BUCKET_ROWS", len(rows) // 3)
    assert keys.bucket_count(len(rows)) == 4
    assert built_bytes(tmp_path / "buckets", kind, shuffled, files=3) == expected


def test_more_buckets_than_files_that_a_process_may_open_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = DATA["nli"](11)
    expected = built_bytes(tmp_path / "one", "nli", rows)
    monkeypatch.setattr(keys, "BUCKET_ROWS", 1)
    assert keys.bucket_count(len(rows)) == 64
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, limits[1]))
        assert built_bytes(tmp_path / "buckets", "nli", rows) == expected
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@every_kind
def test_another_seed_draws_other_rows(kind: str, tmp_path: Path):
    rows = DATA[kind](60)
    assert built_bytes(tmp_path / "0", kind, rows) != built_bytes(tmp_path / "1", kind, rows, seed=1)


@every_kind
def test_no_group_is_in_both_splits(kind: str, tmp_path: Path):
    rows = DATA[kind](300)
    everything = build_training_rows(tmp_path / "all", kind, rows)
    train = build_training_rows(tmp_path / "split", kind, rows, test=0.3)
    test = read_test_set(tmp_path / "split")
    assert not keys_of(train) & keys_of(test)
    assert sorted(map(str, [*train, *test])) == sorted(map(str, everything))
    assert 0.2 < len(keys_of(test)) / len(keys_of(everything)) < 0.4


@every_kind
def test_repeated_rows_change_nothing(kind: str, tmp_path: Path):
    rows = DATA[kind](30)
    once = build_training_rows(tmp_path / "1", kind, rows)
    twice = build_training_rows(tmp_path / "2", kind, [*rows, *rows])
    assert once == twice


@every_kind
def test_a_run_that_fails_keeps_its_units_and_shows_no_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = DATA[kind](60)
    expected = built_bytes(tmp_path / "whole", kind, rows)
    write_data(tmp_path / "part", rows)
    monkeypatch.setattr(keys, "BUCKET_ROWS", len(rows) // 3)
    opened = open_build(settings_of(tmp_path / "part", kind, test=0.3))
    build_unit, calls = build._build_unit, []

    def fail_at_the_third(*arguments: Any) -> build.BuiltUnit:
        calls.append(arguments[-1])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return build_unit(*arguments)

    monkeypatch.setattr(build, "_build_unit", fail_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        build_rows(opened, Stages())
    folder = tmp_path / "part" / "pairs" / "made"
    assert not list(folder.glob("*.parquet"))
    status, _ = build_rows(opened, Stages())
    assert status == "built"
    assert len(calls) == 3 + 2, "the first two of the four units are not built again"
    assert files_of(tmp_path / "part") == expected
    assert not list(folder.rglob("_units/*"))


def test_a_file_that_changes_while_it_is_read_gives_no_rows(tmp_path: Path):
    write_data(tmp_path, [{"group": 1, "text": text} for text in "ab"])
    opened = open_build(settings_of(tmp_path, "groups"))
    pq.write_table(pa.table({"group": [1, 1], "text": ["c", "d"]}), tmp_path / "data" / "0.parquet")
    with pytest.raises(TransientError, match=r"0\.parquet: expected a file that does not change"):
        build_rows(opened, Stages())
    assert not list((tmp_path / "pairs").rglob("*.parquet"))


def test_the_same_command_does_nothing_and_another_is_refused(tmp_path: Path):
    write_data(tmp_path, DATA["groups"](20))
    first = build_rows(open_build(settings_of(tmp_path, "groups")), Stages())
    stamp = (tmp_path / "pairs" / "made" / TRAIN).stat().st_mtime_ns
    assert build_rows(open_build(settings_of(tmp_path, "groups")), Stages()) == ("unchanged", first[1])
    assert (tmp_path / "pairs" / "made" / TRAIN).stat().st_mtime_ns == stamp
    with pytest.raises(ConfigError, match=r"found others: options, seed changed; set pairs\.name"):
        build_rows(open_build(settings_of(tmp_path, "groups", seed=1, options={"most": 2})), Stages())
    (tmp_path / "pairs" / "made" / TRAIN).unlink()
    assert build_rows(open_build(settings_of(tmp_path, "groups")), Stages()) == first


def test_without_a_name_other_settings_get_another_folder(tmp_path: Path):
    write_data(tmp_path, DATA["groups"](20))
    stores = {
        open_build(settings_of(tmp_path, "groups", name=None, seed=seed)).store.uri for seed in (0, 1, 0)
    }
    assert len(stores) == 2
    assert all(Path(uri).name.startswith("groups-") for uri in stores)


def test_a_training_on_the_folder_reads_no_test_row(tmp_path: Path):
    build_training_rows(tmp_path, "sections", DATA["sections"](60), test=0.3)
    training_rows = open_training_rows(
        SourceSettings(uri=str(tmp_path / "pairs" / "made")), ["anchor", "positive"], ["negative"]
    )
    (file,) = {group.file.uri for group in training_rows.groups}
    assert Path(file).name == TRAIN
    assert training_rows.roles == ("anchor", "positive", "negative")


@pytest.mark.parametrize(
    ("kind", "rows", "expected"),
    [
        (
            "nli",
            [{"premise": "p", "hypothesis": "h"}],
            "a column 'label' for the role label, found the columns",
        ),
        (
            "nli",
            [{"premise": "p", "hypothesis": "h", "label": "maybe"}],
            "row 0 .*, label: expected one of entailment",
        ),
        (
            "nli",
            [{"premise": "p", "hypothesis": "h", "label": "entailment"}],
            "an entailed and a contradicting hypothesis, found none .*1 premises without every label",
        ),
        ("groups", [{"group": 1, "text": "a"}, {"group": 2, "text": "b"}], "two different texts, found none"),
        (
            "sections",
            [{"document": "d", "section": "s", "text": text} for text in "abc"],
            "with two sections, .*found none .*1 documents of one section",
        ),
        (
            "sections",
            [
                {"document": None, "section": "s", "text": "a"},
                {"document": "d", "section": None, "text": "a"},
            ],
            "1 without document, 1 without section",
        ),
        ("neighbours", [{"document": 1, "position": 2 * n, "text": "a"} for n in range(5)], "rise by one"),
        ("neighbours", [{"document": 1, "position": 0, "text": t} for t in "ab"], "two at position 0 of doc"),
        (
            "neighbours",
            [{"document": 1, "position": "one", "text": "a"}],
            "a column of integers for the role position",
        ),
    ],
)
def test_data_that_no_row_can_be_built_from_is_refused(kind: str, rows: Rows, expected: str, tmp_path: Path):
    with pytest.raises(DataError, match=expected):
        build_training_rows(tmp_path, kind, rows)
    assert not list((tmp_path / "pairs").rglob(TRAIN))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": None}, "pairs.kind: expected one of groups, neighbours, nli, sections"),
        ({"data": None}, "pairs.data: expected files"),
        ({"kind": "group"}, "did you mean 'groups'"),
        ({"options": {"mots": 3}}, "did you mean 'most'"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], expected: str, tmp_path: Path):
    write_data(tmp_path, DATA["groups"](20))
    with pytest.raises(ConfigError, match=expected):
        open_build(settings_of(tmp_path, **{"kind": "groups", **changes}))


def test_a_test_set_without_rows_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r": test: .* or change pairs.test"):
        build_training_rows(tmp_path, "groups", [{"group": 1, "text": text} for text in "ab"], test=1e-9)


@pytest.mark.slow
def test_a_killed_command_continues_to_the_same_bytes(tmp_path: Path):
    rows = running_text(3_000)
    expected = built_bytes(tmp_path / "whole", "neighbours", rows)
    write_data(tmp_path / "killed", rows)
    # Small buckets; each process is killed when it has built `remaining` units.
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pipeline.log import Stages
from pipeline.text.pairs import build
from pipeline.text.key_tables import keys
from tests.text.pairs.building import settings_of
from pathlib import Path
keys.BUCKET_ROWS, remaining, build_unit = 1_000, int(sys.argv[1]), build._build_unit
def build_or_be_killed(*arguments):
    global remaining
    remaining -= 1
    if remaining < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return build_unit(*arguments)
build._build_unit = build_or_be_killed
opened = build.open_build(settings_of(Path({str(tmp_path / "killed")!r}), "neighbours", test=0.3))
print(build.build_rows(opened, Stages())[0])
"""
    exit_codes = []
    for remaining in (1, 4, 7, 100):
        ended = subprocess.run(
            [sys.executable, "-c", program, str(remaining)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=os.environ,
            timeout=120,
        )
        exit_codes.append(ended.returncode)
        if ended.returncode:
            assert not list((tmp_path / "killed" / "pairs").rglob("made/*.parquet"))
    assert exit_codes == [-signal.SIGKILL] * 3 + [0], ended.stderr
    assert files_of(tmp_path / "killed") == expected


@pytest.mark.slow
@pytest.mark.skipif("MANTA_EVAL_DATA" not in os.environ, reason="needs the evaluation data")
def test_every_sentence_of_real_documents_with_two_neighbours_makes_a_row(tmp_path: Path):
    source = Path(os.environ["MANTA_EVAL_DATA"]) / "running" / "documents.parquet"
    data = {"uri": str(source), "columns": {"document": "doc_id"}}
    _, build_record = build_rows(open_build(settings_of(tmp_path, "neighbours", data=data)), Stages())
    documents = pq.read_table(source, columns=["doc_id"])["doc_id"]
    lengths = pa.table({"document": documents}).group_by("document").aggregate([([], "count_all")])
    assert build_record.train.rows == sum(max(0, count - 2) for count in lengths["count_all"].to_pylist())

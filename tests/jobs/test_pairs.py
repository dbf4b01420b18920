"""`manta pairs` on the command line: its answers for people and for programs, also if the pairs exist."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult
from tests.text.pairs.building import grouped, write_data

Manta = Callable[..., CommandResult]


def test_the_answer_names_files_rows_and_what_was_left_out(
    manta: Manta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, [*grouped(30), {"group": 0, "text": " "}])
    given = ("pairs", "pairs.kind=groups", "pairs.data=data", "pairs.name=texts", "pairs.test=0.5")
    answer = json.loads(manta(*given, "--json").out)
    folder = tmp_path / "pairs" / "texts"
    assert (answer["status"], answer["root"]) == ("built", str(folder))
    assert (answer["train"], answer["test"]) == (str(folder / "train.parquet"), str(folder / "_test.parquet"))
    # Five groups of each of the sizes 1 to 6; of the largest, 10 of 15 pairs.
    assert sum(answer["rows"].values()) == 5 * (1 + 3 + 6 + 10 + 10)
    assert answer["counts"]["groups_of_one_text"] == 5
    assert answer["counts"]["blank_text"] == 1
    shown = manta(*given).out
    assert shown.startswith("these rows were built before; nothing to do\nof data: 106 rows")
    assert "1 blank text" in shown
    assert f"train  {folder / 'train.parquet'}: {answer['rows']['train']} rows" in shown


def test_rows_are_not_written_among_the_files_that_are_read(manta: Manta, tmp_path: Path):
    """The next command would read them, too."""
    write_data(tmp_path, grouped(6))
    given = ("pairs", "pairs.kind=groups", f"pairs.data={tmp_path}", f"pairs.root={tmp_path}/pairs")
    code, _, said = manta(*given)
    assert (code, "expected a folder that is not below pairs.data" in said) == (2, True)
    assert not (tmp_path / "pairs").exists()


def test_a_root_of_releases_that_is_not_used_is_named(
    manta: Manta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, grouped(6))
    given = ("pairs", "pairs.kind=groups", "pairs.data=data", "pairs.name=texts")
    words = "release.root is not used here: results go to pairs.root, pairs"
    assert words in manta(*given, "release.root=releases").err
    assert "release.root" not in manta(*given).err
    assert "release.root" not in manta(*given, "release.root=releases", "pairs.root=other").err

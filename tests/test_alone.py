"""A run of the tests that are marked `alone` can be stopped and continued; its table shows its record."""

import json
from pathlib import Path

import pytest

from tests import alone
from tests.alone import BEGIN, END, README, Pass, Recorder, read_passes, table
from tests.flows.test_machine_faults import CELLS, COMMANDS, ENDS, FAULTS

_TESTS = """
import pytest
def test_passes(): pass
def test_fails(): assert False
def test_is_skipped(): pytest.skip("there is no such machine")
"""


def test_a_run_repeats_no_pass_of_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alone, "PASSES", tmp_path / "passes.jsonl")
    file = tmp_path / "test_three.py"
    file.write_text(_TESTS)
    passes: dict[str, Pass] = {}

    def run(commit: str) -> list[str]:
        """Run the tests in this process; return the names of those that ran."""
        seen: list[str] = []

        class Seen:
            def pytest_runtest_logstart(self, nodeid: str) -> None:
                seen.append(nodeid.rpartition("::")[2])

        options = [str(file), "-n", "0", "-p", "no:cacheprovider", "-c", str(tmp_path / "none.ini"), "-q"]
        pytest.main(options, plugins=[Recorder(passes, commit), Seen()])
        return seen

    (tmp_path / "none.ini").write_text("[pytest]\n")
    everything = ["test_passes", "test_fails", "test_is_skipped"]
    assert run("a") == everything
    assert run("a") == ["test_fails"]
    assert run("b") == everything
    recorded = {name.rpartition("::")[2]: found for name, found in read_passes().items()}
    assert recorded.keys() == {"test_passes", "test_is_skipped"}
    assert {found.commit for found in recorded.values()} == {"b"}
    assert recorded["test_is_skipped"].skipped == "there is no such machine"
    lines = table(passes).splitlines()
    assert sum("no such machine" in line for line in lines) == 1


def test_the_table_of_the_document_shows_the_recorded_passes():
    text = README.read_text(encoding="utf-8")
    found = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert found == table(read_passes()).strip(), "python -m tests.alone --table"


def test_the_record_has_a_line_for_each_test():
    lines = [json.loads(line) for line in alone.PASSES.read_text(encoding="utf-8").splitlines()]
    assert [line["test"] for line in lines] == sorted({line["test"] for line in lines})


def test_the_cells_are_few_and_every_fault_and_command_has_some():
    assert len(CELLS) <= 40
    assert ENDS.keys() == FAULTS.keys()
    assert {command for _, command in CELLS} == COMMANDS.keys()

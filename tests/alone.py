"""Run all tests that are marked `alone`, record their passes, and write the table of infra/README.md.

python -m tests.alone            runs those that have not passed at this commit
python -m tests.alone -k NAME    of these, only those of that name; other options of pytest are possible, too
python -m tests.alone --table    writes the table, and runs nothing

The same command continues a run that was stopped.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "infra" / "README.md"
PASSES = ROOT / "tests" / "alone.jsonl"
BEGIN, END = "<!-- written by python -m tests.alone -->\n", "<!-- end of the table -->\n"
_COMMANDS_BY_FAULTS = "tests/flows/test_machine_faults.py"


class Pass(NamedTuple):
    """The last run of a test that passed or was skipped."""

    test: str
    date: str
    commit: str
    seconds: int
    skipped: str = ""
    """why it was skipped; empty if it passed"""


def read_passes() -> dict[str, Pass]:
    """Return the last passes, by test."""
    lines = PASSES.read_text(encoding="utf-8").splitlines() if PASSES.exists() else []
    return {found.test: found for found in (Pass(**json.loads(line)) for line in lines)}


def commit() -> str:
    """Return the last commit that changed more than the record; "-changed" if there are later changes."""
    others = [".", *(f":!{file.relative_to(ROOT)}" for file in (PASSES, README))]
    last, changes = (
        subprocess.run(
            ["git", *words, "--", *others], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for words in (["log", "-1", "--format=%h"], ["status", "--porcelain"])
    )
    return last.strip() + ("-changed" if changes else "")


@dataclass
class Recorder:
    """A plugin of pytest that leaves out what passed at this commit, and records passes as they come."""

    passes: dict[str, Pass]
    commit: str

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if self._is_done(item.nodeid)]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item not in done]

    def _is_done(self, test: str) -> bool:
        return test in self.passes and self.passes[test].commit == self.commit

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(f"\n{report.nodeid}\n{report.longreprtext[-4000:]}", flush=True)
        skipped = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
        if skipped or (report.when == "call" and report.passed):
            date, seconds = time.strftime("%Y-%m-%d", time.gmtime()), round(report.duration)
            found = Pass(report.nodeid, date, self.commit, seconds, skipped.removeprefix("Skipped: "))
            self.passes[found.test] = found
            lines = (json.dumps(each._asdict()) for _, each in sorted(self.passes.items()))
            PASSES.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def table(passes: dict[str, Pass]) -> str:
    """Return the table of last passes, as Markdown: a line for each function, one for each pair of faults."""
    return "".join(f"{line}\n" for line in (*_functions(passes), "", *_cells(passes)))


def _functions(passes: dict[str, Pass]) -> Iterator[str]:
    yield "| test | passed | skipped | minutes | on | at |"
    yield "|---|---|---|---|---|---|"
    for name, each in groupby(sorted(passes.values()), lambda found: found.test.partition("[")[0]):
        cases = list(each)
        skipped = [case for case in cases if case.skipped]
        minutes = sum(case.seconds for case in cases) / 60
        dates, commits = (
            ", ".join(sorted({getattr(case, fact) for case in cases})) for fact in ("date", "commit")
        )
        reasons = "; ".join(sorted({case.skipped for case in skipped}))
        left_out = f"{len(skipped)}: {reasons}" if skipped else ""
        path, _, function = name.partition("::")
        shown = f"`{path}` {function.removeprefix('test_').replace('_', ' ')}"
        yield f"| {shown} | {len(cases) - len(skipped)} | {left_out} | {minutes:.0f} | {dates} | {commits} |"


def _cells(passes: dict[str, Pass]) -> Iterator[str]:
    from tests.flows.test_machine_faults import COMMANDS, ENDS, FAULTS

    test = f"{_COMMANDS_BY_FAULTS}::test_a_command_ends_as_documented_and_loses_nothing"
    yield f"| fault | {' | '.join(COMMANDS)} |"
    yield f"|---|{'---|' * len(COMMANDS)}"
    for fault, ends in ENDS.items():
        cells = []
        for command in COMMANDS:
            found = passes.get(f"{test}[{fault} {command}]")
            ran = (
                "not run"
                if found is None or found.skipped
                else str(ends[command].code)
                if command in ends
                else ""
            )
            cells.append(ran if command in ends else "")
        yield f"| {FAULTS[fault]} | {' | '.join(cells)} |"


def write_table(passes: dict[str, Pass]) -> None:
    """Write the table into infra/README.md."""
    text = README.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n{table(passes)}\n{END}{after}", encoding="utf-8")


def main(options: list[str]) -> int:
    """Run the tests that have not passed; return the exit code of pytest."""
    passes, code = read_passes(), 0
    if "--table" not in options:
        given = ["-m", "alone", "-n", "0", "-p", "no:cacheprovider", *options]
        code = pytest.main(given, plugins=[Recorder(passes, commit())])
    write_table(passes)
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

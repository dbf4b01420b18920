"""The command line: help for people, one JSON object for programs, an exit code for each kind of error."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command

from jobs.cli import app
from tests.conftest import ROOT, CommandResult

Manta = Callable[..., CommandResult]
# Jobs of one module each; `releases` and `completion` are tested by themselves.
JOBS = (
    "init",
    "plan",
    "preflight",
    "train",
    "pairs",
    "augment",
    "count",
    "encode",
    "whiten",
    "index",
    "evaluate",
    "search-template",
    "nightly",
    "search",
    "export",
    "serve",
    "query-log",
    "duplicates",
    "erase",
)
OF_RELEASES = (
    *("list", "show", "diff", "quarantine", "verify"),
    *("promote", "rollback", "hold", "release", "prune", "copy"),
)


@pytest.fixture
def python_m(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs `python -m MODULE` in this process and returns its standard output."""

    def run(module: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        monkeypatch.delitem(sys.modules, module, raising=False)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__")
        assert not ended.value.code
        return capfd.readouterr().out

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    pq.write_table(
        pa.table({"id": ["a", "b"], "text": ["one text", "another text"]}), tmp_path / "corpus.parquet"
    )
    return tmp_path / "corpus.parquet"


def test_the_command_line_runs_as_a_program(tmp_path: Path):
    command = [sys.executable, "-m", "jobs.cli", "search", str(tmp_path), "words"]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
        timeout=120,
    )
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "expected a published release, found none" in ended.stderr


@pytest.mark.parametrize(
    ("argument", "suggestion"),
    [("--corpus.uri=x", "corpus.uri=x"), ("--encode.unit_rows", "encode.unit_rows=VALUE")],
)
def test_a_setting_that_is_written_as_an_option_is_shown_without_dashes(argument: str, suggestion: str):
    command = [sys.executable, "-m", "jobs.cli", "nightly", argument]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert f"error: {argument}: settings have no dashes; did you mean {suggestion}?" in ended.stderr


def test_preflight_says_on_standard_error_which_checks_found_a_problem(
    tmp_path: Path, corpus: Path, manta: Manta
):
    ended = manta(
        "preflight",
        f"corpus.uri={corpus}",
        "corpus.id=key",
        "encoder.path=ftp://host/model",
        f"release.root={tmp_path / 'root'}",
    )
    assert ended.code == 2
    assert "error: 2 of 5 checks found a problem: encoder, corpus" in ended.err


def test_help_names_every_command_and_the_exit_codes(manta: Manta):
    commands = get_command(app).commands
    assert sorted(commands) == sorted((*JOBS, "releases", "completion"))
    assert sorted(commands["releases"].commands) == sorted(OF_RELEASES)
    shown = manta("--help").out
    assert [command for command in commands if f"\n  {command} " not in shown] == []
    assert "Exit codes: 0 done, 2 configuration, 3 data, 4 model, 5 a gate refused" in " ".join(shown.split())


@pytest.mark.parametrize("command", JOBS)
def test_help_of_a_command_equals_help_of_its_module(
    command: str, manta: Manta, python_m: Callable[..., str]
):
    ours = manta(command, "--help")
    assert ours.code == 0
    assert len(ours.out.splitlines()) > 10
    assert "--json" in ours.out
    module = python_m(f"jobs.{command.replace('-', '_')}", "--help")
    assert ours.out.split("Options:")[1].split() == module.split("Options:")[1].split(), (
        "the words are equal, for any width of the terminal"
    )


@pytest.mark.parametrize("command", OF_RELEASES)
def test_help_of_every_command_on_releases_names_the_root(
    command: str, manta: Manta, python_m: Callable[..., str]
):
    assert "ROOT" in manta("releases", command, "--help").out
    assert "ROOT" in python_m("jobs.releases", command, "--help")


def test_the_output_of_print_config_loads_to_the_same_settings(tmp_path: Path, manta: Manta):
    printed = manta("nightly", "--print-config", "encode.unit_rows=7", "whiten.mode=off").out
    (tmp_path / "job.yaml").write_text(printed)
    assert manta("encode", "--config", str(tmp_path / "job.yaml"), "--print-config").out == printed
    as_json = json.loads(manta("nightly", "--print-config", "--json", "encode.unit_rows=7").out)
    assert as_json["encode"]["unit_rows"] == 7


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nightly", "encode.unt_rows=3"), 2, "did you mean 'unit_rows'"),
        (("nightly", "--config", "none.yaml"), 2, "no such file"),
        (("nightly", "mail.yaml"), 2, "to read settings from a file, write --config mail.yaml"),
        (("plan", "--rows", "many"), 2, "--rows: expected a whole number from 1 to 1e+12"),
        (("plan", "--rows", "1.5"), 2, "found '1.5'"),
        (("plan", "--rows-per-s", "0"), 2, "--rows-per-s: expected a number above 0, found 0"),
        (("plan", "cluster.nodes.gpus=1"), 2, "a value of count, the number of nodes"),
        (("plan", "cluster.nodes=0"), 2, "cluster.nodes.count"),
        (("encode", "corpus.uri=/nowhere/at/all"), 3, "/nowhere/at/all"),
        (
            ("encode", "corpus.uri={corpus}", "corpus.id=key", "release.root={root}"),
            3,
            "a column 'key' (corpus.id), found the columns id, text",
        ),
        (
            ("encode", "corpus.uri={corpus}", "corpus.text=body", "release.root={root}"),
            3,
            "a column 'body' (corpus.text)",
        ),
        (
            ("encode", "corpus.uri={corpus}", "encoder.path=/nowhere/model", "release.root={root}"),
            4,
            "/nowhere/model",
        ),
        (("search", "{root}", "words"), 3, "expected a published release, found none"),
        (("releases", "rollback", "4", "{root}"), 3, "release 4"),
        (("releases", "rollback", "{root}", "4"), 3, "release 4"),
        (("releases", "rollback", "{root}", "four"), 2, "the number of a release"),
        (("releases", "diff", "{root}", "4"), 3, "release 4"),
        (("releases", "diff", "4", "{root}"), 3, "release 4"),
        (("releases", "diff", "4", "5", "{root}"), 3, "release 4"),
        (("releases", "diff", "{root}", "4", "five"), 2, "the number of a release"),
        (("releases", "hold", "{root}"), 3, "expected a published release"),
        (("releases", "verify", "{root}"), 3, "expected a published release"),
        (("releases", "copy", "{root}", "{root}-2"), 3, "expected a published release"),
        (("releases", "copy", "{root}", "{root}/copy"), 2, "a root outside"),
        (("releases", "promote", "{root}", "0123456789", "--by", "Ann"), 5, "that waits, found none"),
        (("releases", "promote", "{root}", "it", "--by", "Ann"), 2, "at least 6 digits of its id"),
        (("pairs",), 2, "pairs.kind: expected one of groups, neighbours, nli, sections, rescore, found none"),
        (("pairs", "pairs.kind=group", "pairs.data={corpus}"), 2, "did you mean 'groups'"),
        (("pairs", "pairs.kind=groups", "pairs.data={corpus}"), 3, "a column 'group' for the role group"),
        (("pairs", "pairs.data={{uri: x, weight: 2}}"), 2, "data without a weight"),
        (("evaluate", "release.root={root}"), 3, "expected a published release"),
    ],
)
def test_every_kind_of_error_has_its_exit_code_and_a_message(
    tmp_path: Path, corpus: Path, manta: Manta, arguments: tuple[str, ...], code: int, words: str
):
    filled = [argument.format(corpus=corpus, root=tmp_path / "root") for argument in arguments]
    ended = manta(*filled)
    assert ended.code == code, ended.err
    assert words in ended.err
    assert "Traceback" not in ended.err
    as_json = manta(*filled, "--json")
    answer = json.loads(as_json.out)
    assert (as_json.code, answer["exit_code"], answer["status"]) == (code, code, "error")
    assert words in answer["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "{parent}", "words"),
        ("releases", "verify", "{parent}"),
        ("releases", "list", "{parent}"),
        ("releases", "prune", "{parent}", "--keep", "1"),
        ("releases", "release", "{parent}"),
        ("releases", "hold", "{parent}", "1"),
        ("releases", "copy", "{parent}", "{parent}/../copy"),
        ("releases", "rollback", "{parent}", "1"),
        ("releases", "diff", "{parent}", "1", "2"),
        ("evaluate", "release.root={parent}"),
    ],
)
def test_a_folder_of_roots_is_answered_with_its_roots(
    tmp_path: Path, manta: Manta, arguments: tuple[str, ...]
):
    for name in ("b", "a"):
        (tmp_path / name / "commits").mkdir(parents=True)
    (tmp_path / "corpus").mkdir()
    ended = manta(*(argument.format(parent=tmp_path) for argument in arguments))
    assert ended.code == 3
    assert "expected a published release, found none" in ended.err
    assert f"name a root below it: {tmp_path / 'a'}, {tmp_path / 'b'}" in ended.err


def test_a_hold_is_not_ended_in_a_folder_without_releases(tmp_path: Path, manta: Manta):
    """Exit code 0 would say that nights publish again, while the root that was meant is still held."""
    ended = manta("releases", "release", str(tmp_path))
    assert ended.code == 3
    assert "expected a published release, found none" in ended.err


def test_an_empty_root_lists_no_release(tmp_path: Path, manta: Manta):
    assert json.loads(manta("releases", "list", str(tmp_path), "--json").out) == {
        "root": str(tmp_path),
        "current": None,
        "held": None,
        "commits": [],
        "waiting": None,
        "unpublished": [],
    }
    assert "no release yet" in manta("releases", "list", str(tmp_path)).out

"""The command line: help for people, one JSON object for programs, exit codes that mean something, and light to start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parent.parent.parent
COMMANDS = ("plan", "preflight", "encode", "whiten", "index", "evaluate", "nightly", "search", "releases")


def manta(*arguments: str, module: str = "jobs.cli") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=environment, timeout=120)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["one text", "another text"]}), tmp_path / "corpus.parquet")
    return tmp_path / "corpus.parquet"


def test_help_names_every_command_and_the_exit_codes():
    shown = manta("--help").stdout
    assert all(f"\n  {command} " in shown for command in COMMANDS)
    assert "Exit codes: 0 done, 2 configuration, 3 data, 4 model, 5 a gate refused" in " ".join(shown.split())


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "releases"])
def test_every_command_explains_itself_both_ways(command: str):
    ours, module = manta(command, "--help"), manta("--help", module=f"jobs.{command}")
    assert ours.returncode == module.returncode == 0
    assert len(ours.stdout.splitlines()) > 10
    assert "--json" in ours.stdout
    assert ours.stdout.split("Options:")[1] == module.stdout.split("Options:")[1]


@pytest.mark.parametrize("command", ["list", "show", "rollback", "prune"])
def test_releases_explains_its_verbs(command: str):
    assert "ROOT" in manta("releases", command, "--help").stdout
    assert "ROOT" in manta(command, "--help", module="jobs.releases").stdout


def test_print_config_gives_a_file_that_means_the_same(tmp_path: Path):
    printed = manta("nightly", "--print-config", "encode.unit_rows=7", "whiten.mode=off").stdout
    (tmp_path / "job.yaml").write_text(printed)
    assert manta("encode", "--config", str(tmp_path / "job.yaml"), "--print-config").stdout == printed
    assert json.loads(manta("nightly", "--print-config", "--json", "encode.unit_rows=7").stdout)["encode"]["unit_rows"] == 7


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (("nightly", "encode.unt_rows=3"), 2, "did you mean 'unit_rows'"),
    (("nightly", "--config", "none.yaml"), 2, "no such file"),
    (("encode", "corpus.uri=/nowhere/at/all"), 3, "/nowhere/at/all"),
    (("encode", "corpus.uri={corpus}", "corpus.id=key", "release.root={root}"), 3, "a column 'key' (corpus.id), found the columns id, text"),
    (("encode", "corpus.uri={corpus}", "corpus.text=body", "release.root={root}"), 3, "a column 'body' (corpus.text)"),
    (("encode", "corpus.uri={corpus}", "encoder.path=/nowhere/model", "release.root={root}"), 4, "/nowhere/model"),
    (("search", "{root}", "words"), 3, "expected a published release, found none"),
    (("releases", "rollback", "4", "{root}"), 3, "release 4"),
    (("evaluate", "release.root={root}"), 3, "expected a published release"),
])
def test_what_goes_wrong_has_its_exit_code_and_a_sentence(tmp_path: Path, corpus: Path, arguments: tuple[str, ...], code: int, words: str):
    filled = [argument.format(corpus=corpus, root=tmp_path / "root") for argument in arguments]
    ended = manta(*filled)
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    as_json = manta(*filled, "--json")
    answer = json.loads(as_json.stdout)
    assert (as_json.returncode, answer["exit_code"], answer["status"]) == (code, code, "error")
    assert words in answer["message"]


def test_an_empty_root_lists_no_release(tmp_path: Path):
    assert json.loads(manta("releases", "list", str(tmp_path), "--json").stdout) == {"root": str(tmp_path), "current": None, "commits": []}
    assert "no release yet" in manta("releases", "list", str(tmp_path)).stdout

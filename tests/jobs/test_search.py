"""`manta search`: every query gets its own answers, and the command that a night prints finds the release."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len

from jobs.nightly import search_command
from jobs.queries import Query
from jobs.search import _format_answers, _Searcher
from pipeline.config import load_settings
from pipeline.errors import DataError
from pipeline.log import listening
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.release import Releases
from pipeline.text.formats.queries import read_texts
from tests.conftest import ROOT, CommandResult
from tests.index.published import Publisher
from tests.models.folders import edit_json, save_folder
from tests.models.inference.poisoned import CODE, REFUSED, Poisoned

Manta = Callable[..., CommandResult]


@pytest.fixture
def published(tmp_path: Path) -> tuple[str, str]:
    """Publish three texts, with the commits in a store of their own. Returns (root, root of the commits)."""
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "encoder", "bert"), tmp_path)
    publish(["two dogs run", "a girl reads", "Schnee am Fluss"])
    (tmp_path / "apart").mkdir()
    (tmp_path / "root" / "commits").rename(tmp_path / "apart" / "commits")
    return str(tmp_path / "root"), str(tmp_path / "apart")


def test_the_printed_search_command_finds_commits_in_a_separate_store(
    published: tuple[str, str], manta: Manta
):
    root, commits = published
    assert manta("search", root, "a girl reads").code == 3
    job = load_settings(Job, None, (f"release.root={root}", f"release.commits_root={commits}"))
    name, *arguments = shlex.split(search_command(job))
    assert name == "manta"
    assert len(manta(*arguments, "--json").out.splitlines()) == 3


def test_a_search_announces_the_warnings_of_its_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manta: Manta
):
    folder, root = save_folder(tmp_path / "encoder", "bert"), tmp_path / "root"
    edit_json(folder / "config_sentence_transformers.json", similarity_fn_name="dot")
    Publisher(open_store(root), folder, tmp_path)(["two dogs run", "a girl reads"])
    monkeypatch.setattr("pipeline.models.folder.folder._announced", set())
    ended = manta("search", str(root), "a girl reads")
    assert f"warning: {root}/encoders/e: similarity_fn_name is dot" in ended.err


def test_a_repeated_query_has_an_answer_for_each_repetition(published: tuple[str, str], manta: Manta):
    root, commits = published
    shown = manta(
        "search", root, "two dogs run", "a girl reads", "two dogs run", "--commits-root", commits, "-k", "2"
    ).out
    parts = shown.strip().split("\n\n")
    assert [part.splitlines()[0] for part in parts] == ["two dogs run", "a girl reads", "two dogs run"]
    assert [len(part.splitlines()) for part in parts] == [4, 4, 4]
    lines = [
        json.loads(line)
        for line in manta(
            "search", root, "two dogs run", "two dogs run", "--commits-root", commits, "-k", "2", "--json"
        ).out.splitlines()
    ]
    assert [(line["query"], line["rank"]) for line in lines] == [("two dogs run", 1), ("two dogs run", 2)] * 2


def test_search_imports_only_needed_libraries(published: tuple[str, str]):
    root, commits = published
    python, question = [sys.executable, "-X", "importtime", "-m"], "a girl reads"
    command = [*python, "jobs.cli", "search", root, question, "--commits-root", commits]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert {"torch", "faiss", "pyarrow"} < imported
    needless = {"pandas", "ray", "transformers", "scipy", "sklearn", "sympy", "rich", "fsspec"}
    assert imported & needless == set()


CORPUS = [
    "two dogs run",
    "a girl reads a book on the grass near the old river bank",
    "Schnee am Fluss",
    "雪が川の上に積もっている",
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Publish texts that only the corpus units hold. Output is formatted as for a pipe, without a width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "encoder", "bert"), tmp_path)
    publish.in_units = True
    publish(CORPUS)
    return str(tmp_path / "root")


def test_texts_are_shown_although_no_column_was_kept(root: str, manta: Manta, tmp_path: Path):
    """They are shown by default, but with --json only if --texts is given."""
    (tmp_path / "q.txt").write_text("a girl reads\n")
    for asked in (["a girl reads"], ["--queries", str(tmp_path / "q.txt")]):
        command = ("search", root, *asked, "-k", "4")
        lines = map(json.loads, manta(*command, "--json", "--texts").out.splitlines())
        texts = {line["id"]: line["text"] for line in lines}
        assert texts == {f"row-{row}": text for row, text in enumerate(CORPUS)}
        assert all(text in manta(*command).out for text in CORPUS)
        assert "text" not in manta(*command, "--no-texts").out
        assert "text" not in json.loads(manta(*command, "--json").out.splitlines()[0])


def test_a_text_that_is_kept_under_another_name_is_shown_once(root: str, manta: Manta):
    """The kept column already shows the text."""
    releases = Releases(open_store(root))
    corpus = {"id": "id", "text": "body", "keep": ["body"]}
    before = releases.get(1)
    manifest = before.model_copy(
        update={"parent": 1, "release": 0, "settings": {**before.settings, "corpus": corpus}}
    )
    releases.publish(manifest, str)
    command = ("search", root, CORPUS[0], "-k", "1")
    assert "text" not in manta(*command).out.split()
    assert CORPUS[0] in manta(*command, "--texts").out
    assert CORPUS[0] in manta(*command, "--release", "1").out


@pytest.mark.parametrize("width", [None, 20, 80])
def test_a_kept_column_without_a_value_is_shown_empty(width: int | None):
    lines = [{"rank": 1, "score": 0.5, "id": "a", "lang": None, "text": "None of it"}]
    assert _format_answers(lines, width).count("None") == 1


def test_a_release_without_corpus_units_answers_with_a_warning(root: str, manta: Manta):
    shutil.rmtree(Path(root, "units"))
    ended = manta("search", root, "a girl reads", "two dogs run", "-k", "4", "--json", "--texts")
    assert (ended.code, len(ended.out.splitlines())) == (0, 8)
    assert ended.err.count("answers come without their texts") == 1
    assert "units/corpus/" in ended.err


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_id_is_cut(
    width: int, root: str, manta: Manta, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = manta("search", root, "a girl reads", "-k", "4").out.splitlines()
    assert all(cell_len(line) <= width for line in lines)
    assert all(any(f"row-{row}" in line.split() for line in lines) for row in range(4))
    assert any("a girl reads" in line for line in lines)
    assert len(lines) == (5 if width > 50 else 13), (
        "columns that do not fit beside the id are on lines of their own below it"
    )


def test_a_query_file_equals_standard_input_and_the_command_line(root: str, manta: Manta, tmp_path: Path):
    texts = [f"{text} {number}" for number in range(100) for text in CORPUS]
    (tmp_path / "queries.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts).encode() + b"\n")
    pq.write_table(pa.table({"n": range(400), "query": texts}), tmp_path / "queries.parquet")
    asked = manta("search", root, "-k", "2", "--json", "--texts", *texts).out
    assert [line["query"] for line in map(json.loads, asked.splitlines())] == [
        text for text in texts for _ in range(2)
    ]
    for name in ("queries.txt", "queries.parquet", f"file://{tmp_path}/queries.parquet"):
        file = name if "://" in name else str(tmp_path / name)
        assert manta("search", root, "-k", "2", "--json", "--texts", "--queries", file).out == asked
    program = [sys.executable, "-m", "jobs.cli", "search", root, "-", "-k", "2", "--json", "--texts"]
    ended = subprocess.run(
        program, input="\n".join(texts), text=True, capture_output=True, cwd=ROOT, check=True, timeout=120
    )
    assert ended.stdout == asked


def test_blank_lines_are_skipped_and_counted_in_line_numbers(root: str, manta: Manta, tmp_path: Path):
    (tmp_path / "q.txt").write_text("\ntwo dogs run\n   \na girl reads\n")
    ended = manta("search", root, "--queries", str(tmp_path / "q.txt"), "-k", "1", "--json")
    assert "text" not in json.loads(ended.out.splitlines()[0])
    assert [(line["number"], line["query"]) for line in map(json.loads, ended.out.splitlines())] == [
        (2, "two dogs run"),
        (4, "a girl reads"),
    ]
    assert "blank queries left out: 2" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "expected texts, or --queries FILE, found neither"),
        (["text", "--queries", "q.txt"], 2, "found both"),
        (["-", "text"], 2, "found - among other queries"),
        (["text", "--column", "q"], 2, "a Parquet file in --queries"),
        (["--queries", "missing.txt"], 2, "queries: missing.txt: expected a file, found no such file"),
        (["--queries", "."], 2, "queries: .: expected a file, found a folder"),
        (["--queries", "empty.txt/q"], 2, "queries: empty.txt/q: expected a file, found no such file"),
        (["--queries", "empty.txt"], 3, "empty.txt: expected a query, found none"),
        (["--queries", "latin.txt"], 3, "latin.txt, line 2: expected UTF-8, found byte 0xe9"),
        (["--queries", "two.parquet"], 3, "name the column with --column"),
        (["--queries", "two.parquet", "--column", "n"], 3, "expected a column n of strings"),
        (["--queries", "lines.jsonl"], 3, "expected one query on each line, or Parquet, found JSON"),
        (["--queries", "table.csv"], 3, "found a table with a header; write the texts of its queries to"),
        (["--queries", "broken.parquet"], 3, "one query on each line, or Parquet"),
    ],
)
def test_queries_that_cannot_be_read_are_explained(
    arguments: list[str], code: int, sentence: str, root: str, manta: Manta, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n")
    Path("latin.txt").write_bytes(b"two dogs\ncaf\xe9\n")
    Path("broken.parquet").write_bytes(b"no Parquet")
    Path("lines.jsonl").write_text('{"query": "two dogs"}\n')
    Path("table.csv").write_text("id,query\n1,two dogs\n")
    pq.write_table(pa.table({"a": ["x"], "b": ["y"], "n": [1]}), "two.parquet")
    ended = manta("search", root, *arguments)
    assert (ended.code, ended.out) == (code, "")
    assert sentence in ended.err


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        (["{ return x; }", "{ return y; }"], False),
        (['{"a": 1}', "{ return y; }"], False),
        (["[{x}, {y}]"], False),
        (["{}"], True),
        (['{"a": [1]}', "", '{"a": 2}'], True),
        (['[{"a": 1},', '{"a": 2}]'], True),
        (['[{"a": 1}, {"a": 2}]'], True),
        (['{"a":' * 100_000], False),
    ],
)
def test_only_lines_of_json_objects_are_refused_as_queries(tmp_path: Path, lines: list[str], refused: bool):
    file = tmp_path / "queries.txt"
    file.write_text("\n".join(lines) + "\n")
    expected = pytest.raises(DataError, match="found JSON") if refused else contextlib.nullcontext()
    with expected:
        assert list(read_texts(str(file))) == lines


def test_words_without_quotes_are_reported_as_several_queries(root: str, manta: Manta):
    said = manta("search", root, "two", "dogs", "-k", "1").err
    assert (
        '2 queries of one word each: "two", "dogs". For one query of several words, put it in quotes: '
        f'manta search {root} "two dogs"'
    ) in said
    assert manta("search", root, "two dogs", "girl", "-k", "1").err == ""


def test_fewer_answers_than_asked_for_are_explained_once(root: str, manta: Manta):
    ended = manta("search", root, "two dogs run", "a girl reads", "-k", "7", "--json")
    assert len(ended.out.splitlines()) == 8
    assert ended.err.splitlines() == ["7 answers were asked for, and release 1 has 4 rows"]


@dataclass
class ShortRelease:
    """A release of many rows whose index finds only one of them."""

    kind: str
    number = 1

    @property
    def manifest(self) -> SimpleNamespace:
        return SimpleNamespace(index=SimpleNamespace(kind=self.kind))

    def __len__(self) -> int:
        return 100

    def search(
        self, queries: list[str], k: int, texts: bool = False, where: str | None = None, group: bool = False
    ) -> pa.Table:
        return pa.table({"query": list(range(len(queries))), "rank": [1] * len(queries)})


@pytest.mark.parametrize(
    ("kind", "effort"),
    [
        ("hnsw", "a higher efSearch finds none"),
        ("ivf_sq8", "nprobe was raised to all lists"),
        ("IVF64_HNSW32,SQ8", "nprobe was raised to all lists"),
    ],
)
def test_an_index_that_finds_too_few_answers_is_named_once_with_its_effort(kind: str, effort: str):
    searcher = _Searcher(cast(Any, ShortRelease(kind)), 3, texts=False)
    with listening() as said:
        for number in range(2):
            searcher.search([Query(number, "two dogs run")])
    assert said == [
        f"a query has 1 of 3 answers: an index of kind {kind} finds no more rows ({effort}). Ask for fewer, "
        "or use index.kind=flat"
    ]


def test_a_search_of_a_forged_root_runs_none_of_its_code(root: str, manta: Manta, tmp_path: Path):
    """The copy of the encoder names code, and the manifest has the sha256 of the forged files."""
    releases = Releases(open_store(root))
    manifest, witness = releases.get(1), tmp_path / "witness"
    folder = Poisoned(tmp_path / "root" / manifest.encoder.path, witness)
    folder.code(f"{CODE}.py")
    REFUSED["the model's class"](folder)
    forged = [folder.path / f"{CODE}.py", folder.path / "config.json"]
    kept = [file for file in manifest.encoder.files if file.path != "config.json"]
    files = [
        FileRef(
            path=file.name,
            sha256=sha256(file.read_bytes()).hexdigest(),
            bytes=file.stat().st_size,
        )
        for file in forged
    ]
    encoder = manifest.encoder.model_copy(update={"files": (*kept, *files)})
    releases.publish(manifest.model_copy(update={"parent": 1, "release": 0, "encoder": encoder}), str)
    ended = manta("search", root, "a girl reads")
    assert (ended.code, ended.out, witness.exists()) == (4, "", False), ended.err
    assert "code from a folder is not run, found auto_map, which names the code evil" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_closed_pipe_ends_the_command_quietly(root: str):
    command = f"{shlex.quote(sys.executable)} -m jobs.cli search {shlex.quote(root)} - -k 1 --json | head -1"
    many = b"two dogs run\n" * 20_000
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        input=many,
        capture_output=True,
        cwd=ROOT,
        check=False,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (ended.returncode, ended.stderr.decode()) == (0, "")
    assert json.loads(ended.stdout)["rank"] == 1


def test_an_id_cannot_move_the_cursor_or_forge_a_row(tmp_path: Path, manta: Manta):
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "encoder", "bert"), tmp_path)
    forged = ["\x1b]52;c;ZXZpbA==\x07", "one\n   1  1.0000  forged", "\u202egnorw", "\x9b2Jgone"]
    publish(["two dogs run", "a girl reads", "a cat sleeps", "the river"], ids=forged)
    shown = manta("search", str(tmp_path / "root"), "a girl reads", "-k", "4").out
    assert len(shown.splitlines()) == 1 + 4
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    lines = manta("search", str(tmp_path / "root"), "a girl reads", "-k", "4", "--json").out
    assert not set("\x1b\x07\x9b\u202e") & set(lines)
    ids = [json.loads(line)["id"] for line in lines.splitlines()]
    assert sorted(ids) == sorted(forged), "a program gets the ids as stored"


def test_answers_are_json_whatever_the_kept_columns_hold(tmp_path: Path, manta: Manta):
    """Neither NaN nor a time after the year 9999 is in JSON's or Python's reach, and no column is lost."""
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "encoder", "bert"), tmp_path)
    publish.kept = {
        "number": pa.array([7, 8, 9]),
        "ratio": pa.array([float("nan"), float("-inf"), 0.5]),
        "raw": pa.array([b"\xff", None, b""]),
        "until": pa.array([253_402_300_800, 0, None], pa.timestamp("s")),
    }
    publish(["two dogs run", "a girl reads", "a cat sleeps"])
    command = ("search", str(tmp_path / "root"), "a girl reads", "two dogs run", "-k", "3")
    lines = [
        json.loads(line, parse_constant=pytest.fail) for line in manta(*command, "--json").out.splitlines()
    ]
    assert [line["number"] for line in lines] == [1, 1, 1, 2, 2, 2], "of the query"
    names = ("kept.number", "ratio", "raw", "until")
    assert {line["id"]: tuple(line[name] for name in names) for line in lines} == {
        "row-0": (7, None, "/w==", "10000-01-01T00:00:00"),
        "row-1": (8, None, None, "1970-01-01T00:00:00"),
        "row-2": (9, 0.5, "", None),
    }
    assert manta(*command).out.count("10000-01-01T00:00:00") == 2


def test_an_error_is_one_line_whatever_it_quotes(tmp_path: Path, manta: Manta):
    ended = manta(
        "nightly",
        f"corpus.uri={tmp_path}/no\nerror: all is well \x1b[2J",
        f"release.root={tmp_path / 'root'}",
    )
    assert ended.code == 3
    assert "\x1b" not in ended.err
    assert not [line for line in ended.err.splitlines() if line.startswith("error: all is well")]


def test_a_filter_restricts_the_answers_and_its_errors_have_exit_code_2(root: str, manta: Manta):
    command = ("search", root, "a girl reads", "-k", "3", "--json")
    lengths = {f"row-{row}": len(text) for row, text in enumerate(CORPUS)}
    ended = manta(*command, "--where", "length < 20")
    found = {line["id"]: line["length"] for line in map(json.loads, ended.out.splitlines())}
    assert found == {name: length for name, length in lengths.items() if length < 20}
    ended = manta(*command, "--where", "length > 20")
    assert [json.loads(line)["id"] for line in ended.out.splitlines()] == ["row-1"]
    assert ended.err.splitlines() == ["3 answers were asked for, and the filter lets 1 row of release 1 pass"]
    assert "no row passes the filter" in manta("search", root, "a girl", "--where", "id = 'x'").out
    for where, sentence in {
        "lenght < 20": "where, position 1: expected one of the columns id, length, found 'lenght'; did you",
        "length < 'x'": "where, position 10: expected a number, because column length is of type int64",
    }.items():
        ended = manta(*command[:-1], "--where", where)
        assert (ended.code, ended.out) == (2, "")
        assert sentence in ended.err

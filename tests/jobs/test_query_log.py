"""`manta query-log` makes a file for gates.queries of logs, and forgets queries in both."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.index.search.search import OpenRelease, open_release
from pipeline.store.files.open_store import open_store
from pipeline.text.formats.user_queries import read_user_queries_file
from pipeline.text.query_log.file import QueryLogFile, read_log
from pipeline.text.query_log.lines import encode_vector
from tests.conftest import CommandResult
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder
from tests.text.query_log.lines import logged

Manta = Callable[..., CommandResult]
PRIVATE = "my name is Jo Example"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> OpenRelease:
    """A release."""
    folder = tmp_path_factory.mktemp("root")
    Publisher(open_store(folder / "root"), save_folder(folder / "bert", "bert"), folder)(texts(20))
    return open_release(str(folder / "root"))


def write_log(path: Path, *lines: tuple[str, str | None], release: OpenRelease | None = None) -> str:
    """Write a log of (text, logged text), each by a client of its own; with vectors of the release."""
    log = QueryLogFile(path)
    for number, (text, shown) in enumerate(lines):
        vector = release.encode([text])[0] if release else np.array([1, len(text)], np.float32)
        space = release.space_id if release else "space"
        log.append(logged(text[:4], number, text=shown, vector=vector, space_id=space))
    return str(path)


def test_a_file_is_made_of_several_logs_with_counts_that_add_up(
    manta: Manta, tmp_path: Path, release: OpenRelease
):
    first = write_log(tmp_path / "1", ("one", None), ("two", "two"), ("four", None), release=release)
    second = write_log(tmp_path / "2", ("four", "four"), ("five", None), release=release)
    with open(second, "a") as file:
        file.write('{"time": "2026-')
    ended = manta("query-log", first, second, "--out", str(tmp_path / "q.parquet"), "--json")
    facts = json.loads(ended.out)
    assert (facts["lines"], facts["queries"]) == (6, 4)
    assert {reason: count for reason, count in facts["left_out"].items() if count} == {
        "damaged": 1,
        "repeated": 1,
    }
    assert (facts["from"], facts["until"]) == ("2026-11-29", "2026-11-29")
    assert (tmp_path / "q.parquet").stat().st_mode & 0o777 == 0o600
    assert "client" not in pq.read_schema(tmp_path / "q.parquet").names
    queries = read_user_queries_file(str(tmp_path / "q.parquet"), 1_000)
    assert queries.spaces == {release.space_id}
    assert queries.times == ("2026-11-29", "2026-11-29")
    assert len(queries) == 4
    text = manta("query-log", first, second, "--out", str(tmp_path / "q.parquet")).out
    assert "6 lines of logs" in text
    assert max(map(len, text.replace(str(tmp_path), "").splitlines())) <= 110


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("LOG",), 2, "expected --out FILE or --forget TEXTS, found neither"),
        (("LOG", "--out", "x", "--forget", "TEXTS"), 2, "found both"),
        (("missing", "--out", "x"), 2, "expected a log of queries"),
        (("EMPTY", "--out", "x"), 3, "found no line"),
        (("LOG", "--forget", "TEXTS"), 2, "add --root ROOT"),
        (("TEXTS", "--forget", "TEXTS"), 2, "a log of queries, or an empty file, found another file"),
        (("LOG", "--forget", "EMPTY"), 3, "expected a text on each line"),
    ],
)
def test_other_command_lines_are_refused_and_change_nothing(
    manta: Manta, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
):
    files = {"LOG": write_log(tmp_path / "log", ("one", None))}
    for name, content in (("TEXTS", f"{PRIVATE}\n"), ("EMPTY", "")):
        (tmp_path / name).write_text(content)
        files[name] = str(tmp_path / name)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    ended = manta("query-log", *(files.get(each, each) for each in arguments))
    assert (ended.code, message in ended.err) == (code, True), ended.err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_text_is_forgotten_in_logs_and_files_with_and_without_texts(
    manta: Manta, tmp_path: Path, release: OpenRelease
):
    lines = [("one", None), (PRIVATE, None), ("two", "two"), (f" {PRIVATE}", PRIVATE + " ")]
    log = write_log(tmp_path / "log", *lines, release=release)
    made = str(tmp_path / "q.parquet")
    QueryLogFile(Path(log)).append(logged("else", 9, space_id="another encoder"))
    assert manta("query-log", log, "--out", made).code == 0
    (tmp_path / "texts").write_text(f"{PRIVATE}\nnever asked\n")
    private = release.encode([PRIVATE])[0]
    assert encode_vector(private) in Path(log).read_text()
    root = release.releases.store.uri
    ended = manta("query-log", log, made, "--forget", str(tmp_path / "texts"), "--root", root, "--json")
    counts = json.loads(ended.out)["files"]
    assert counts[log] == {"kept": 2, "forgotten": 2, "not_comparable": 1, "damaged": 0}
    assert counts[made] == {"kept": 2, "forgotten": 1, "not_comparable": 0, "damaged": 0}
    content = Path(log).read_text()
    assert PRIVATE not in content
    assert encode_vector(private) not in content
    assert [query.draw for query in read_log(Path(log))[0]] == [0, 2]
    table = pq.read_table(made)
    assert PRIVATE not in table["text"].to_pylist()
    assert not any(np.allclose(private, vector) for vector in table["vector"].to_pylist())
    assert PRIVATE.encode() not in Path(made).read_bytes()
    assert Path(made).stat().st_mode & 0o777 == 0o600
    again = manta("query-log", log, made, "--forget", str(tmp_path / "texts"), "--root", root, "--json")
    assert all(each["forgotten"] == 0 for each in json.loads(again.out)["files"].values())

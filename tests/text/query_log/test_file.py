"""A query log keeps whole lines, is bounded in age and size, and belongs to one service."""

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.text.query_log.file import LogFull, QueryLogFile, read_log, rewrite_log
from pipeline.text.query_log.lines import LoggedQuery, encode_vector
from tests.text.query_log.lines import logged

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[QueryLogFile]:
    file = QueryLogFile(tmp_path / "queries.jsonl", max_bytes=20_000)
    with file.held():
        yield file


def draws_in(log: QueryLogFile) -> list[int]:
    return [query.draw for query in read_log(log.path)[0]]


def test_lines_come_back_and_only_the_owner_can_read_them(log: QueryLogFile):
    log.path.chmod(0o644)
    query = logged("a", 5, text='a "quoted"\n text \u2028', score=None, answers=0, filtered=True)
    log.append(query)
    assert read_log(log.path) == ([query], 0)
    np.testing.assert_array_equal(query.array(), np.array([1, 5], np.float32))
    with QueryLogFile(log.path.with_name("other.jsonl")).held():
        pass
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in log.path.parent.iterdir()} == {
        "queries.jsonl": "0o644",
        "queries.jsonl.lock": "0o600",
        "other.jsonl": "0o600",
        "other.jsonl.lock": "0o600",
    }
    log.tidy(NOW)


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path):
    (tmp_path / "log").touch(0o644)
    with QueryLogFile(tmp_path / "log").held():
        assert oct((tmp_path / "log").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("cut", [1, 40, -2, -1])
def test_a_line_that_a_kill_cut_off_is_counted_and_spoils_no_other(log: QueryLogFile, cut: int):
    log.append(logged("a", 1))
    whole = logged("a", 2).to_line().encode()
    with open(log.path, "ab") as file:
        file.write(whole[:cut])
    log.append(logged("a", 3))
    queries, damaged = read_log(log.path)
    expected = [1, 2, 3] if cut == -1 else [1, 3]  # only the line's end was missing
    assert ([query.draw for query in queries], damaged) == (expected, len(expected) == 2)
    log.tidy(NOW)
    assert read_log(log.path) == (queries, 0)


@pytest.mark.parametrize(
    "line", ["", "{}", "[1]", "\x00\xff", logged().to_line()[:-1].replace('"vector": "', '"vector": "A')]
)
def test_damaged_lines_are_counted(log: QueryLogFile, line: str):
    log.path.write_text(line + "\n")
    assert read_log(log.path) == ([], 1)


def test_lines_are_removed_when_they_are_too_old_or_from_a_wrong_clock(log: QueryLogFile):
    days = ["2026-11-15", "2026-11-16", "2026-11-29", "2026-12-12", "2026-12-13", "2036-01-01"]
    for draw, day in enumerate(days):
        log.append(logged("a", draw, time=f"{day}T23Z"))
    assert log.tidy(NOW) == 4
    assert draws_in(log) == [1, 2, 3]
    assert oct(log.path.stat().st_mode & 0o777) == "0o600"
    assert log.tidy(datetime(2027, 1, 1, tzinfo=UTC)) is None
    assert draws_in(log) == []


def test_a_log_that_is_too_large_halves_the_samples_of_all_clients(log: QueryLogFile):
    lines = [logged("ab"[draw % 2], draw, per_client=64) for draw in range(1_000)]
    with pytest.raises(LogFull):
        list(map(log.append, lines))
    full = len(draws_in(log))
    lowered = log.tidy(NOW)
    assert lowered is not None
    assert lowered < full / 2
    assert log.path.stat().st_size <= log.max_bytes // 2
    assert draws_in(log) == list(range(2 * lowered))  # the lowest numbers of both clients
    log.append(logged("a", 2_000))


def test_a_log_of_very_many_clients_keeps_a_sample_of_them(log: QueryLogFile):
    for draw in range(60):
        log.append(logged(str(draw), draw * 37 % 61, per_client=2))
    assert log.tidy(NOW) == 1
    assert log.path.stat().st_size <= log.max_bytes // 2
    kept = draws_in(log)
    assert len(kept) > 15
    assert max(kept) < len(kept) + 2  # the lowest numbers


def test_two_services_cannot_write_one_file(log: QueryLogFile):
    code = (
        "import sys; from pathlib import Path; from pipeline.text.query_log.file import QueryLogFile\n"
        "with QueryLogFile(Path(sys.argv[1])).held(): pass"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(log.path)], capture_output=True, text=True)
    assert "a file that no other service writes" in ended.stderr
    assert "give each service a file of its own" in ended.stderr


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "missing folder"])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, kind: str):
    path = tmp_path / "missing" / "log" if kind == "missing folder" else tmp_path / "log"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="--log-queries"), QueryLogFile(path).held():
        pass


def test_on_a_full_disk_no_part_of_a_line_stays(log: QueryLogFile):
    log.append(logged("a", 1))
    size = log.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard))
    try:
        with pytest.raises(OSError, match=r"a part of a line|File too large"):
            log.append(logged("a", 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.path.stat().st_size == size
    log.append(logged("a", 3))
    assert draws_in(log) == [1, 3]


def test_a_log_that_cannot_be_rewritten_stays_as_it_was(log: QueryLogFile):
    for draw in range(8):
        log.append(logged("a", draw))
    content = log.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.tidy(NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.path.read_bytes() == content
    assert {file.name for file in log.path.parent.iterdir()} == {"queries.jsonl", "queries.jsonl.lock"}


def test_a_line_is_not_lost_while_another_process_rewrites_the_log(log: QueryLogFile):
    """The writer waits for the lock of the old file, and then finds the new one by its name."""
    log.append(logged("a", 1))
    log.append(logged("a", 2))
    code = (
        "import sys; from pathlib import Path; from pipeline.text.query_log.file import QueryLogFile\n"
        "from tests.text.query_log.lines import logged\n"
        "QueryLogFile(Path(sys.argv[1])).append(logged('a', 3))"
    )

    def without_first(queries: list[LoggedQuery]) -> list[LoggedQuery]:
        writer = subprocess.Popen([sys.executable, "-c", code, str(log.path)])
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(4)  # it has started, and waits
        writers.append(writer)
        return queries[1:]

    writers: list[subprocess.Popen[bytes]] = []
    rewrite_log(log.path, without_first)
    assert writers[0].wait(60) == 0
    assert draws_in(log) == [2, 3]


def test_a_vector_of_any_order_of_bytes_is_stored_with_the_low_byte_first():
    assert encode_vector(np.array([1.5], ">f4")) == encode_vector(np.array([1.5], "<f4")) == "AADAPw=="


def test_the_lock_ends_with_the_service(tmp_path: Path):
    file = QueryLogFile(tmp_path / "log")
    with file.held():
        pass
    with file.held(), open(tmp_path / "log.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

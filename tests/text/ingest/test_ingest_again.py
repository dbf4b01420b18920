"""Reading a corpus a second time: unchanged, changed, after a kill, and in S3."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError, TransientError
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.ingest.corpus_record import corpus_digest, record_path
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.text.sources.sources import list_files
from pipeline.text.task_map import TaskRunner
from tests.text.ingest.ingesting import random_rows, rows_of, write


def files_below(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in Path(root).rglob("*")
        if path.is_file()
    }


def test_second_run_reads_nothing_and_changed_input_is_another_corpus(tmp_path):
    corpus, store = write(tmp_path / "in", [("a", "text")]), open_store(tmp_path / "out")
    calls = []
    ingested = ingest(corpus, 10, store, runner=TaskRunner(on_progress=lambda *done: calls.append(done)))
    assert calls == [(1, (tmp_path / "in" / "00.parquet").stat().st_size)]
    assert (
        ingest(corpus, 10, store, runner=TaskRunner(on_progress=lambda *done: calls.append(done))) == ingested
    )
    assert len(calls) == 1
    digest = corpus_digest(corpus, list_files(corpus))
    assert store.exists(record_path(ingested.id))
    assert digest == ingested.digest
    os.utime(tmp_path / "in" / "00.parquet", ns=(1, 1))
    assert corpus_digest(corpus, list_files(corpus)) != digest
    assert ingest(corpus, 10, store).units == ingested.units  # equal content is the same unit


def test_same_file_in_another_partition_is_another_corpus(tmp_path):
    for lang in ("en", "de"):
        (tmp_path / f"lang={lang}").mkdir()
        pq.write_table(pa.table({"id": ["a"], "text": ["t"]}), tmp_path / f"lang={lang}" / "a.parquet")
        os.utime(tmp_path / f"lang={lang}" / "a.parquet", ns=(1, 1))
    for keep, digests in (("lang",), 2), ((), 1):
        corpora = [CorpusSettings(uri=str(tmp_path / f"lang={lang}"), keep=keep) for lang in ("en", "de")]
        assert len({corpus_digest(corpus, list_files(corpus)) for corpus in corpora}) == digests


def test_missing_unit_is_written_again(tmp_path):
    corpus, store = write(tmp_path / "in", [("a", "text")]), open_store(tmp_path / "out")
    ingested = ingest(corpus, 10, store)
    store.delete(ingested.units[0].path)
    assert ingest(corpus, 10, store) == ingested
    assert store.exists(ingested.units[0].path)


def test_input_that_changes_while_it_is_read_is_a_transient_error(tmp_path):
    corpus, store = write(tmp_path / "in", [("a", "text")]), open_store(tmp_path / "out")
    with pytest.raises(TransientError, match=r"changed while they were read.*corpus\.fingerprint=full"):
        ingest(
            corpus,
            10,
            store,
            runner=TaskRunner(on_progress=lambda *_: os.utime(tmp_path / "in" / "00.parquet", ns=(1, 1))),
        )
    assert not files_below(tmp_path / "out")


_RUN = """
import sys
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.key_tables import keys
from pipeline.text.ingest.ingest import ingest
keys.BUCKET_ROWS = 2000
print("start", flush=True)
ingest(CorpusSettings(uri=sys.argv[1]), 256, open_store(sys.argv[2]))
"""


@pytest.mark.parametrize(("attempts", "count"), [(2, 8_000), pytest.param(8, 20_000, marks=pytest.mark.slow)])
def test_run_after_a_kill_at_any_moment_writes_the_same_bytes(tmp_path, attempts, count):
    rows = random_rows(count, seed=1, distinct=count - 2_000)
    write(tmp_path / "in", *(rows[start : start + 1000] for start in range(0, count, 1000)))

    def run(out, delay=None):
        """Ingest into `out`, killed after `delay` seconds if given. Returns the seconds from start to end."""
        process = subprocess.Popen([sys.executable, "-c", _RUN, tmp_path / "in", out], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        started = time.monotonic()
        if delay is not None:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        process.communicate()
        return time.monotonic() - started

    duration_s = run(tmp_path / "whole")
    expected = files_below(tmp_path / "whole")
    for attempt in range(1, attempts + 1):
        run(tmp_path / "out", delay=duration_s * attempt / (attempts + 1))
        visible = files_below(tmp_path / "out")
        assert all(
            expected[path] == content for path, content in visible.items() if "/.tmp-" not in f"/{path}"
        )  # every file that readers can see is complete and correct
    run(tmp_path / "out")
    assert {
        path: content for path, content in files_below(tmp_path / "out").items() if "/.tmp-" not in f"/{path}"
    } == expected


def test_corpus_in_s3_gives_the_same_units_as_on_disk(s3, tmp_path):
    rows = random_rows(300, seed=2, distinct=280)
    corpus, store = write(tmp_path / "in", rows[:100], rows[100:]), open_store(tmp_path / "out")
    base = f"{s3}/{uuid.uuid4().hex}"
    system = fsspec.filesystem("s3", use_listings_cache=False)
    system.pipe({f"{base}/in/{path.name}": path.read_bytes() for path in (tmp_path / "in").iterdir()})
    system.pipe(f"{base}/in/99.jsonl", b'{"id":"json","text":"lines"}\n{broken\n')
    (tmp_path / "in" / "99.jsonl").write_bytes(b'{"id":"json","text":"lines"}\n{broken\n')
    ingested = ingest(corpus, 64, store)
    remote = ingest(corpus.model_copy(update={"uri": f"{base}/in"}), 64, open_store(f"{base}/out"))
    assert remote.units == ingested.units
    assert remote.counts == ingested.counts
    assert [bucket.sha256 for bucket in remote.keys] == [bucket.sha256 for bucket in ingested.keys]
    assert rows_of(open_store(f"{base}/out"), remote) == rows_of(store, ingested)
    assert ingest(corpus.model_copy(update={"uri": f"{base}/in"}), 64, open_store(f"{base}/out")) == remote


@pytest.mark.parametrize(("first_id", "kind", "rows"), [(5, "uint64", 4), (-5, "int64", 3)])
def test_ids_above_int64_in_a_later_file_are_read_as_on_a_first_night(tmp_path, first_id, kind, rows):
    corpus, store = CorpusSettings(uri=str(tmp_path / "in"), max_quarantined=1), open_store(tmp_path / "out")
    (tmp_path / "in").mkdir()
    previous = PreviousCorpus()
    for name, ids in (("a", (first_id, 7)), ("b", (8, 2**63))):
        lines = (json.dumps({"id": row_id, "text": f"text {row_id}"}) + "\n" for row_id in ids)
        (tmp_path / "in" / f"{name}.jsonl").write_text("".join(lines))
        ingested = ingest(corpus, 10, store, previous)
        previous = PreviousCorpus(ingested, ingested.next_ordinal)
    from_scratch = ingest(corpus, 10, open_store(tmp_path / "scratch"))
    assert (ingested.id_type, ingested.rows) == (from_scratch.id_type, from_scratch.rows) == (kind, rows)
    assert ingested.read_files == (2 if kind == "uint64" else 1), "only other types need all files"


@pytest.mark.parametrize("bad_files", ["error", "skip"])
def test_a_kept_column_without_values_gets_the_type_of_a_later_file(tmp_path, bad_files):
    corpus = CorpusSettings(uri=str(tmp_path / "in"), keep=("n",), bad_files=bad_files)
    (tmp_path / "in").mkdir()
    store, previous = open_store(tmp_path / "out"), PreviousCorpus()
    for name, values in (("a", pa.nulls(2)), ("b", pa.array([7, 8]))):
        ids = [f"{name}{number}" for number in range(2)]
        pq.write_table(pa.table({"id": ids, "text": ids, "n": values}), tmp_path / "in" / f"{name}.parquet")
        ingested = ingest(corpus, 10, store, previous)
        previous = PreviousCorpus(ingested, ingested.next_ordinal)
    expected = {"a0": None, "a1": None, "b0": 7, "b1": 8}
    assert {row["id"]: row["n"] for row in rows_of(store, ingested)} == expected
    table = pa.table({"id": ["c0"], "text": ["c0"], "n": ["a string"]})
    pq.write_table(table, tmp_path / "in" / "0.parquet")
    if bad_files == "error":
        with pytest.raises(DataError, match=r"\.parquet: expected column 'n' .* found"):
            ingest(corpus, 10, store, previous)
    else:  # the types stay, and with them all rows
        ingested = ingest(corpus, 10, store, previous)
        assert (ingested.rows, ingested.counts["bad_files"], ingested.read_files) == (4, 1, 1)

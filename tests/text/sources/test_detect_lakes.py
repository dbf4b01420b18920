"""Which corpora are read as tables, and the settings of a snapshot."""

import importlib.util
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.flows.night.guess_corpus import guess_corpus
from pipeline.settings import CorpusSettings, Job
from pipeline.text.rows.training_rows import training_files
from pipeline.text.sources.sources import list_files
from tests.text.ingest.lake_tables import delete_by_vector, rows
from tests.text.ingest.table_nights import DeltaNights, IcebergNights


@pytest.mark.parametrize(
    ("format", "module"), [("delta", "deltalake"), ("delta", "pyroaring"), ("iceberg", "pyiceberg")]
)
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, format, module):
    uri, find_spec = delta_or_iceberg(tmp_path, format).corpus.uri, importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find_spec(name))
    with pytest.raises(
        ConfigError, match=rf'the package {module}.*pip install "manta-embeddings\[{format}\]"'
    ) as error:
        list_files(CorpusSettings(uri=uri))
    assert error.value.exit_code == 2


def delta_or_iceberg(folder, format):
    """Nights over a table of two rows."""
    if format == "iceberg":
        return IcebergNights(folder, rows([1, 2]))
    nights = DeltaNights(folder)
    nights.write(rows([1, 2]))
    return nights


KILLED_ONCE = """
import os, signal, sys
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.ingest.ingest import ingest
from pipeline.text.task_map import TaskRunner
from pipeline.text.ingest.tonights_files import PreviousCorpus
def progress(rows, size):
    if sys.argv[3] == "killed" and rows:
        os.kill(os.getpid(), signal.SIGKILL)
corpus, store = CorpusSettings(uri=sys.argv[1], keep=("lang",)), open_store(sys.argv[2])
found = ingest(corpus, 4, store, PreviousCorpus(), TaskRunner(on_progress=progress))
print(found.id, found.rows)
"""


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_killed_run_is_repeated_with_the_same_result(tmp_path, format):
    uri = delta_or_iceberg(tmp_path, format).corpus.uri

    def run(folder, killed):
        command = [sys.executable, "-c", KILLED_ONCE, uri, str(tmp_path / folder), killed]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout.split()

    assert run("out", "killed") == (-signal.SIGKILL, [])
    code, (first, rows_read) = run("out", "")
    assert (code, rows_read) == (0, "2")
    assert run("other", "") == (0, [first, "2"])


def test_columns_of_a_table_are_guessed_from_its_live_rows(tmp_path):
    nights = DeltaNights(tmp_path)
    options = {"partition_by": ["lang"], "configuration": {"delta.enableDeletionVectors": "true"}}
    nights.write(rows(range(30)), **options)
    delete_by_vector(nights.root, nights.file_of(3).table.location, [0, 1, 2])
    guess = guess_corpus(nights.corpus)
    assert (guess.rows, guess.id, guess.text, guess.keep) == (27, "id", "text", ("lang",))


def test_training_rows_are_not_read_from_a_table(tmp_path):
    """The reader of training rows does not know about deleted rows."""
    nights = delta_or_iceberg(tmp_path, "delta")
    with pytest.raises(
        DataError, match=r"version 0 of the Delta table.*write its rows to Parquet files first"
    ):
        training_files(nights.corpus.uri)


def test_a_snapshot_of_a_corpus_without_one_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"corpus\.snapshot: expected a Delta or Iceberg table"):
        list_files(CorpusSettings(uri=str(tmp_path), snapshot=1))


@pytest.mark.parametrize(
    ("written", "snapshot"),
    [
        ("12", 12),
        ("8801879151929518374", 8801879151929518374),
        ("2026-11-26T04:00:00Z", datetime(2026, 11, 26, 4, tzinfo=UTC)),
        ("2026-11-26 05:00:00+01:00", datetime(2026, 11, 26, 4, tzinfo=UTC)),
        ("null", None),
    ],
)
def test_a_snapshot_is_an_id_or_a_time(written, snapshot):
    job = load_settings(Job, None, (f"corpus.snapshot={written}",))
    assert job.corpus.snapshot == snapshot
    assert Job.model_validate(job.model_dump(mode="json")) == job


@pytest.mark.parametrize("written", ["-1", "true", "yesterday", "2026-11-26T04:00:00", "1.5"])
def test_other_snapshots_are_refused(written):
    with pytest.raises(ConfigError, match=r"corpus\.snapshot: expected"):
        load_settings(Job, None, (f"corpus.snapshot={written}",))

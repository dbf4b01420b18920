"""A text that kills its process, or makes the encoder raise, is quarantined with its reason.

All other texts of its unit get their usual vectors.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ModelError
from pipeline.flows.encode.isolate import IsolatedEncoder
from pipeline.flows.encode.unit import Attempts
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.store.releases.release import Releases
from pipeline.store.rows.schema import vector_matrix
from tests.flows.conftest import ON_RAY, ROOT, job_arguments, sentences, write_corpus
from tests.flows.encode.poisoned import HANGS, HANGS_LOADING, KILLS, RAISES

# Python imports sitecustomize before anything else, also in workers and in their children.
_POISON = (
    "import importlib.abc, importlib.machinery, sys\n"
    + """
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "pipeline.models.inference.encoder":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            sys.modules[name] = module
            from tests.flows.encode.poisoned import install
            install()
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
"""
)


@pytest.fixture
def poison(tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose encoders are harmed by the texts of `poisoned`."""
    folder = tmp_path / "poison"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_POISON)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "OMP_NUM_THREADS": "1"}


def test_an_isolated_encoder_gives_the_same_vectors(encoder: Path, tmp_path: Path):
    texts = sentences(1300)
    settings = EncoderSettings(path=str(encoder))
    child = IsolatedEncoder(settings, EncodeSettings(), "cpu", tmp_path)
    batches = [pa.array(texts[:700]), pa.array(texts[700:])]
    found = np.concatenate([encoded.vectors for encoded in child.encode_stream(batches)])
    np.testing.assert_array_equal(found, load_encoder(settings, EncodeSettings(), "cpu").encode(texts))
    assert child.rejected == {}


def test_an_encoder_that_fails_on_every_text_is_named(
    encoder: Path, tmp_path: Path, poison: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.flows.encode.isolate._MAX_REJECTED", 0)
    monkeypatch.setattr("pipeline.flows.encode.isolate.MAX_DEATHS", 1)
    monkeypatch.setenv("PYTHONPATH", poison["PYTHONPATH"])
    child = IsolatedEncoder(EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu", tmp_path)
    with pytest.raises(ModelError, match=r"nearly all texts, found 1 of 2 .*cannot digest"):
        list(child.encode_stream([pa.array([RAISES] * 2)]))


def test_a_child_that_cannot_load_the_encoder_quarantines_no_text(tmp_path: Path):
    (tmp_path / "broken").mkdir()
    child = IsolatedEncoder(EncoderSettings(path=str(tmp_path / "broken")), EncodeSettings(), "cpu", tmp_path)
    with pytest.raises(ModelError, match=r"a process that can load the encoder.*config\.json"):
        list(child.encode_stream([pa.array(["one", "two"])]))
    assert child.rejected == {}


def test_a_text_on_which_the_child_hangs_is_quarantined(
    encoder: Path, tmp_path: Path, poison: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.flows.encode.isolate.MAX_DEATHS", 1)
    monkeypatch.setenv("PYTHONPATH", poison["PYTHONPATH"])
    child = IsolatedEncoder(
        EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu", tmp_path, patience_s=5.0
    )
    (encoded,) = child.encode_stream([pa.array([HANGS])])
    assert encoded.bad.tolist() == [True]
    assert child.rejected == {
        0: ("kills_worker", "alone in a process, 1 times: ended by signal 9 after no progress for 5 s")
    }


def test_a_child_that_hangs_while_loading_is_killed(
    encoder: Path, tmp_path: Path, poison: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", poison["PYTHONPATH"])
    monkeypatch.setenv(HANGS_LOADING, "1")
    child = IsolatedEncoder(
        EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu", tmp_path, patience_s=3.0
    )
    progress_times: list[float] = []
    with pytest.raises(ModelError, match="a process that can load the encoder, found no progress for 3 s"):
        list(
            child.encode_stream(
                [pa.array(["one", "two"])], lambda rows: progress_times.append(time.monotonic())
            )
        )
    assert child.rejected == {}
    assert time.monotonic() - progress_times[-1] > 3.0, "progress was reported to the worker that waits"


@pytest.mark.slow
def test_only_texts_that_crash_the_encoder_are_quarantined(
    encoder: Path, tmp_path: Path, poison: dict[str, str]
):
    write_corpus(tmp_path / "corpus", count=90)
    harmful = pa.table({"id": ["killer", "raiser"], "text": [KILLS, RAISES], "lang": ["en", "en"]})
    pq.write_table(harmful, tmp_path / "corpus" / "part-1b.parquet")
    arguments = [
        *job_arguments(tmp_path, encoder),
        "encode.unit_rows=46",
        "whiten.mode=off",
        "gates.recall_at_10=",
        "cluster.workers=1",
        ON_RAY,
    ]
    night = subprocess.run(
        [sys.executable, "-m", "jobs.nightly", "--json", *arguments],
        cwd=ROOT,
        env=poison,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert night.returncode == 0, night.stderr[-3000:]
    store = open_store(tmp_path / "releases")
    manifest = Releases(store).current()
    assert manifest is not None
    assert (manifest.rows, manifest.counts["total"], manifest.counts["quarantined"]) == (90, 92, 2)
    assert (manifest.counts["quarantined_kills_worker"], manifest.counts["quarantined_encoder_error"]) == (
        1,
        1,
    )
    quarantined = pa.concat_tables(
        [pq.read_table(store.local(unit.quarantine.path)) for unit in manifest.units if unit.quarantine]
    )
    assert {(row["id"], row["reason"]) for row in quarantined.to_pylist()} == {
        ("killer", "kills_worker"),
        ("raiser", "encoder_error"),
    }
    corpus = Corpus.load(store, manifest.corpus.path)
    assert corpus is not None
    rows = pa.concat_tables([pq.read_table(store.local(unit.path)) for unit in manifest.units])
    expected = load_encoder(EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu").encode(
        rows["text"].to_pylist()
    )
    np.testing.assert_array_equal(vector_matrix(rows["vector"]), expected)
    assert not list(Path(tmp_path, "releases", "units").rglob("*.attempts/*")), (
        "no marks of attempts are left of a finished unit"
    )


def test_attempts_of_another_run_do_not_count(tmp_path: Path):
    store = open_store(tmp_path)
    first, second = Attempts(store, "units/u.json", "monday"), Attempts(store, "units/u.json", "tuesday")
    assert [first.begin() for _ in range(3)] == [0, 1, 2]
    assert second.begin() == 0
    assert second.begin() == 1
    second.end()
    assert first.begin() == 0

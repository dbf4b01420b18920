"""Nights over corpora of any Arrow types are published as they are, or refused with a sentence."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import load_settings
from pipeline.flows.export.export import export
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search import open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.targets.parquet import ParquetTarget
from tests.flows.conftest import WORDS, job_arguments, sentences
from tests.models.folder.wordfiles import write_words
from tests.text.corpus.random_values import kinds, meaning
from tests.text.corpus.test_random_values import Written


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random encoder of word vectors."""
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 8)).astype(np.float32)
    file = tmp_path_factory.mktemp("words") / "words.txt.gz"
    write_words(file, WORDS, vectors, "word2vec")
    return file


def settings_of(folder: Path, words: Path, keep: tuple[str, ...]) -> list[str]:
    """Return settings of nights with units of five rows."""
    return [
        *job_arguments(folder, words),
        f"corpus.keep=[{', '.join(keep)}]",
        "corpus.max_quarantined=1",
        "encode.unit_rows=5",
        "whiten.mode=off",
        "index.kind=flat",
        "gates.recall_at_10=",
    ]


def check_release(root: Path, written: Written) -> None:
    """Open the current release as a searcher does, and export it; compare both with what was written."""
    release = open_release(root, verify=True)
    vectors = np.ones((1, 8), np.float32)
    found = [release.search(vectors, k=len(written.good) + 3)]
    for name in written.names:
        with_and_without = (
            release.search(vectors, k=99, where=f"{name} is {not_}null") for not_ in ("", "not ")
        )
        found += [pa.concat_tables(with_and_without)]
    target = ParquetTarget(str(root.parent), "changes")
    export(Releases(open_store(root)), None, target, Stages(), replace=True)
    files = target.change_sets()[-1].upserts
    found += [pa.concat_tables(pq.read_table(root.parent / file.path) for file in files)]
    for table in found:
        rows = {
            row_id: [meaning(table[name][row]) for name in written.names]
            for row, row_id in enumerate(table["id"].to_pylist())
        }
        assert rows == written.good


@pytest.mark.hypothesis
@settings(max_examples=max(1, settings.default.max_examples // 10))
@given(kept=st.lists(kinds, min_size=2, max_size=6), seed=st.integers(0, 2**32))
def test_releases_hold_values_of_any_type(tmp_path_factory, child: LocalWorkers, words, kept, seed):
    """Two nights over several files; the second one has a file more, and one that was written again."""
    folder = tmp_path_factory.mktemp("random")
    written = Written(folder / "corpus", kept, seed, 0.05, sentences(60, seed % 1000))
    for number in range(2):
        written.add(f"file{number}", 9)
    job = load_settings(Job, None, tuple(settings_of(folder, words, written.names)))
    for night in range(2):
        with connect(ClusterSettings(), Stages(), local=child):
            assert nightly(job, Stages()).status == "published"
        check_release(folder / "releases", written)
        if not night:
            os.utime(folder / "corpus" / "file0.parquet", ns=(1, 1))
            written.add("last", 3)

"""Benchmarks compare every kind of index with plain faiss, and measure changes of small corpora, too."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.index.build.index_shape import plan_index
from pipeline.index.library import faiss_threads
from pipeline.index.measure.truth import ExactTopK, Queries
from pipeline.settings import IndexSettings
from pipeline.settings.index_kinds import KINDS
from tests.benchmarks.chunks import edit
from tests.benchmarks.index import IndexBench, compare


@pytest.mark.parametrize("kind", KINDS)
def test_plain_faiss_has_the_recall_of_every_kind(kind: str, tmp_path: Path):
    raw = np.random.default_rng(0).standard_normal((1_000, 16), dtype=np.float32)
    addresses = np.arange(len(raw))
    queries = Queries(addresses[::10], raw[::10])
    plan = plan_index(len(raw), raw.shape[1], IndexSettings(kind=kind))
    with faiss_threads(1):
        truth = ExactTopK(queries).search([(addresses, raw)])
        line = compare(IndexBench(plan, addresses, raw, queries, pairs=1), truth, tmp_path)
    plain, ours, merged = map(float, line[-3:])
    assert plain == ours == merged > 0


@pytest.mark.parametrize("replace", [True, False])
def test_the_nights_of_few_documents_have_a_change(replace: bool):
    texts = [["one", "two"] for _ in range(10)]
    edit(texts, np.random.default_rng(0), replace=replace)
    assert sum(sentences != ["one", "two"] for sentences in texts) == 1

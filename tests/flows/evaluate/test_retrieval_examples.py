"""Examples of what candidates retrieve are those of a direct search."""

from html import unescape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.report import StoredEvaluation, store_evaluation
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.flows.conftest import sentences

QUERIES, TARGETS = sentences(30, seed=1), sentences(30, seed=2)


def evaluated(folder: Path, encoder: Path, candidates: str) -> StoredEvaluation:
    pq.write_table(pa.table({"query": QUERIES, "positive": TARGETS}), folder / "search.parquet")
    settings = (
        f"encoder.path={encoder}",
        f"evaluate.own=[{{kind: retrieval, uri: {folder}/search.parquet}}]",
        f"evaluate.candidates={candidates}",
        f"release.root={folder}/root",
        "evaluate.bootstrap=0",
    )
    return store_evaluation(evaluate(load_settings(Job, None, settings), Stages()), "today")


def ranking(encoder: Path, pooling: str | None) -> np.ndarray:
    """(queries, targets) indices of the targets, nearest first, by cosine."""
    loaded = load_encoder(EncoderSettings(path=str(encoder), pooling=pooling), EncodeSettings(), "cpu")
    left, right = (loaded.encode(texts).astype(np.float64) for texts in (QUERIES, TARGETS))
    lengths = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=1)
    return np.argsort(-(left @ right.T) / lengths, axis=1)


def gain(ranked: np.ndarray) -> np.ndarray:
    """nDCG@10 of each query, whose only relevant target has its own number."""
    ranks = 1 + (ranked == np.arange(len(ranked))[:, None]).argmax(axis=1)
    return np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)


def test_the_queries_that_differ_most_are_shown_with_their_nearest_targets(tmp_path: Path, encoder: Path):
    other_encoder = f"{{name: cls, encoder: {{path: {encoder}, pooling: cls}}}}"
    stored = evaluated(tmp_path, encoder, f"[{{name: mean}}, {other_encoder}]")
    first, other = ranking(encoder, None), ranking(encoder, "cls")
    gaps = np.abs(gain(other) - gain(first))
    shown = np.argsort(-gaps, kind="stable")[:4]
    assert (gaps[shown] > 0).all()
    found = stored.facts["retrieved"]
    assert [each["query"] for each in found] == [QUERIES[query] for query in shown]
    for each, query in zip(found, shown, strict=True):
        assert (each["task"], each["candidates"]) == ("search", ("mean", "cls"))
        for name, ranked in (("first", first), ("other", other)):
            assert [text["text"] for text in each[name]] == [TARGETS[target] for target in ranked[query, :3]]
            assert [text["is_relevant"] for text in each[name]] == (ranked[query, :3] == query).tolist()
    page = unescape(Path(stored.report).read_text())
    assert "What is retrieved in search" in page
    assert all(QUERIES[query] in page for query in shown)
    hits = sum(text["is_relevant"] for each in found for text in (*each["first"], *each["other"]))
    assert page.count(">+ ") == hits > 0


def test_one_candidate_or_equal_ones_have_no_examples(tmp_path: Path, encoder: Path):
    for candidates in ("[{}]", "[{name: a}, {name: b}]"):
        assert evaluated(tmp_path, encoder, candidates).facts["retrieved"] == []

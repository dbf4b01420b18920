"""Queries are compared with rows by the vectors and exact neighbours of both."""

import numpy as np
import pytest

from pipeline.evaluate.two_samples import separability
from pipeline.flows.night.gates.query_drift import compare_queries
from pipeline.index.measure.truth import NOT_A_ROW, ExactTopK, Neighbours, Queries


def measured(users: np.ndarray, corpus: np.ndarray) -> tuple[Queries, Neighbours]:
    """Return every other row of the corpus and the queries, with their exact neighbours in the corpus."""
    addresses = np.r_[np.arange(0, len(corpus), 2), np.full(len(users), NOT_A_ROW)]
    queries = Queries(addresses, np.r_[corpus[::2], users].astype(np.float32))
    return queries, ExactTopK(queries).search([(np.arange(len(corpus)), corpus.astype(np.float32))])


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_values_are_those_of_a_search_of_all_rows():
    rng = np.random.default_rng(1)
    corpus = unit(rng.normal(size=(600, 12)))
    users = unit(rng.normal(size=(100, 12)) + 0.5)
    queries, truth = measured(users, corpus)
    gates = compare_queries(queries, truth, " (2026-11-01 to 2026-11-28)")
    cosines = corpus[::2] @ corpus.T
    cosines[np.arange(300), np.arange(0, 600, 2)] = -1  # a row is not its own neighbour
    threshold = np.quantile(cosines.max(axis=1), 0.05)
    far = np.mean((users @ corpus.T).max(axis=1) < threshold)
    assert gates["far_queries"].value == pytest.approx(far, abs=1e-9)
    assert 0 < far < 1
    assert f"below {threshold:.3f}" in gates["far_queries"].sentence
    assert "100 queries of gates.queries (2026-11-01 to 2026-11-28)" in gates["far_queries"].sentence
    area = separability(queries.vectors[-100:], queries.vectors[:300])
    assert gates["query_drift"].value == area.value
    assert f"{area.low:.3f} to {area.high:.3f}" in gates["query_drift"].sentence
    assert area.low > 0.5
    assert all(gate.passed and gate.threshold is None for gate in gates.values())


def test_queries_like_rows_are_not_distinguished_and_as_far_as_rows():
    rng = np.random.default_rng(2)
    corpus, users = unit(rng.normal(size=(2_000, 8))), unit(rng.normal(size=(400, 8)))
    gates = compare_queries(*measured(users, corpus))
    assert gates["query_drift"].value == pytest.approx(0.5, abs=0.08)
    assert gates["far_queries"].value == pytest.approx(0.05, abs=0.03)


def test_queries_far_from_all_rows_are_found():
    rng = np.random.default_rng(3)
    corpus = unit(rng.normal(size=(200, 8)) + 2)
    gates = compare_queries(*measured(-corpus[:40], corpus))
    assert (gates["query_drift"].value, gates["far_queries"].value) == (1.0, 1.0)


def test_few_queries_are_not_compared_and_that_is_said():
    rng = np.random.default_rng(4)
    gates = compare_queries(*measured(rng.normal(size=(19, 4)), rng.normal(size=(200, 4))))
    assert {gate.value for gate in gates.values()} == {None}
    assert "19 queries" in gates["query_drift"].sentence
    assert "20 of each are needed" in gates["query_drift"].sentence

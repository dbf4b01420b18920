"""Codewords that are parts of erased rows become zero, unless a row that stays has them in its code."""

import faiss
import numpy as np
import pytest

from pipeline.index.build.build import fill, train
from pipeline.index.build.index_shape import plan_index
from pipeline.index.erase.codebook import unused_codewords
from pipeline.index.erase.part import remove_rows
from pipeline.index.erase.training import NearLists, TrainingChange, change_of, rows_in_lists
from pipeline.index.lists import is_one_of
from pipeline.index.structure import set_index_effort, to_space_of, unwrap
from pipeline.settings import IndexSettings
from tests.index.clustered import clustered

ROWS = 300
VECTORS = clustered(ROWS)
ERASED = np.arange(0, ROWS, 6)
KEPT = np.setdiff1d(np.arange(ROWS), ERASED)


def trained(kind: str):
    """Train an empty index on few rows, of which most have codewords of their own."""
    return train(plan_index(ROWS, 32, IndexSettings(kind=kind)), None, VECTORS.raw)


def found_change(index, filled) -> tuple[NearLists, TrainingChange]:
    """Find the change of the training for the erased rows."""
    near = NearLists(index).add([(VECTORS.addresses[ERASED], VECTORS.raw[ERASED])])
    is_erased = is_one_of(VECTORS.addresses[ERASED])
    unused = unused_codewords([filled], near.own.codewords, is_erased)
    remaining = rows_in_lists(filled, near.sums, is_erased) if near.sums else {}
    change = change_of(
        near, remaining, unused, lambda asked: VECTORS.raw[np.searchsorted(VECTORS.addresses, asked)]
    )
    return near, change


def words_of(index) -> np.ndarray:
    """Return the codewords (m, words, d)."""
    pq = unwrap(index).pq
    return np.asarray(faiss.vector_to_array(pq.centroids).reshape(pq.M, pq.ksub, pq.dsub))


@pytest.mark.parametrize("kind", ["IVF4,PQ8x8np", "PQ8x8np", "IVF4,PQ8x4fs", "IVF4,PQ8x8np,Refine(Flat)"])
def test_codewords_of_erased_rows_alone_become_zero(kind: str):
    index = trained(kind)
    filled = faiss.deserialize_index(faiss.serialize_index(index))
    fill(filled, VECTORS.batches(1))
    set_index_effort(filled, 4)
    before = filled.search(VECTORS.raw[KEPT], ROWS)
    near, change = found_change(index, filled)
    words = words_of(index)
    if "8x8" in kind:
        assert len(change.codewords) > 100
    assert {(sub, word) for sub, word in change.codewords.tolist()} <= near.own.codewords
    remove_rows(filled, VECTORS.addresses[ERASED])
    change.apply_in_memory(filled)
    after, own = words_of(filled), words[tuple(change.codewords.T)]
    assert not after[tuple(change.codewords.T)].any()
    is_same = np.ones(words.shape[:2], dtype=bool)
    is_same[tuple(change.codewords.T)] = False
    assert np.array_equal(after[is_same], words[is_same])
    content = faiss.serialize_index(filled).tobytes()
    assert not any(word.tobytes() in content for word in own)
    scores, found = filled.search(VECTORS.raw[KEPT], len(KEPT))
    for row in range(len(KEPT)):
        stays = np.isin(before[1][row], VECTORS.addresses[KEPT])
        if "fs" not in kind:  # its scores are rounded, and equal ones come in the order of blocks
            np.testing.assert_array_equal(found[row][found[row] >= 0], before[1][row][stays])
        np.testing.assert_array_equal(scores[row][found[row] >= 0], before[0][row][stays])


def test_codewords_are_those_that_equal_a_part_of_a_row():
    index = trained("PQ8x8np")
    near, _ = found_change(index, index)
    parts = to_space_of(index, VECTORS.raw[ERASED]).reshape(len(ERASED), 8, 4)
    words = words_of(index)
    expected = {
        (sub, word)
        for sub in range(8)
        for word in range(256)
        if (np.abs(parts[:, sub] - words[sub, word]) < 1e-6).all(axis=1).any()
    }
    assert near.own.codewords == expected
    assert len(expected) > 100


@pytest.mark.parametrize("kind", ["IVF4,SQ8", "SQ8", "HNSW8,SQ8", "IVF4,RaBitQ,Refine(SQ8)"])
def test_bounds_that_are_components_of_erased_rows_are_counted(kind: str):
    index = trained(kind)
    extreme = to_space_of(index, VECTORS.raw)
    near, _ = found_change(index, index)
    assert near.own.bounds
    if "IVF" not in kind:
        lows, highs = (
            {d for d in range(32) if rows[d] in ERASED} for rows in (extreme.argmin(0), extreme.argmax(0))
        )
        assert near.own.bounds == {(0, d) for d in lows} | {(1, d) for d in highs}

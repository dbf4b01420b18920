"""After many nights of changes, an index in one or two parts answers like one that is built from scratch."""

import functools
from pathlib import Path

import faiss
import numpy as np
import pytest

from pipeline.index.build.build import fill, remove, train, write_index
from pipeline.index.build.index_shape import plan_index
from pipeline.index.build.merge import FilledShard, merge_on_disk
from pipeline.index.files.parts import Parts, open_parts
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.index.structure import addresses_of, ivf_of, unwrap
from pipeline.settings import IndexSettings
from pipeline.store.records.sealed_json import FileRef
from tests.index.clustered import clustered, cosines, some_map

POOL = clustered(3_000)  # rows that are added and deleted, each with its address
FIRST = 1_500
CHANGED_IN_PLACE = [
    "flat",
    "ivf_flat",
    "ivf_sq8",
    "opq_ivf_pq",
    "IVF16_HNSW8,Flat",
    "SQ8",
    "PQ7x4",
    pytest.param("PQ7x8", marks=pytest.mark.slow),
]
WITH_DELTA = ["flat", "ivf_flat", "ivf_sq8", "opq_ivf_pq", "on_disk", "hnsw", "IVF16,PQ4x4fs"]
QUERIES = clustered(40, seed=9).raw


@functools.cache
def trained_bytes(kind: str) -> np.ndarray:
    """Train an empty index; returns it serialized."""
    settings = IndexSettings(
        kind="ivf_flat" if kind == "on_disk" else kind,
        nlist=16 if kind in ("ivf_flat", "ivf_sq8", "opq_ivf_pq", "on_disk") else None,
    )
    return faiss.serialize_index(train(plan_index(FIRST, 28, settings), some_map(), POOL.raw[:FIRST]))


def trained(kind: str):
    """Return a copy of an empty, trained index."""
    index = faiss.deserialize_index(trained_bytes(kind))
    if (ivf := ivf_of(index)) is not None:
        ivf.nprobe = 5
    if hasattr(unwrap(index), "hnsw"):
        unwrap(index).hnsw.efSearch = 4_000
    return index


def filled(kind: str, rows: np.ndarray):
    """Fill an index with rows of the pool."""
    index = trained(kind)
    fill(index, [(POOL.addresses[rows], POOL.raw[rows])])
    return index


def nights(seed: int):
    """Yield masks of the live rows before and after each of six nights."""
    rng = np.random.default_rng(seed)
    live = np.arange(len(POOL.raw)) < FIRST
    for _ in range(6):
        after = live & (rng.random(len(live)) > 0.15)
        unused = np.flatnonzero(~live)[-500:]
        after[rng.choice(unused, 120, replace=False)] = True
        yield live, after
        live = after


def assert_same_answers(found, expected):
    """Assert equal rows and scores, except for rows that are tied for the last rank.

    Whitening is a matrix product, whose last bit depends on how many rows are multiplied at once: a component
    on the border of two codes may fall to either side, so the score of one coded vector in a few hundred may
    differ.
    """
    (scores, addresses), (expected_scores, expected_addresses) = found, expected
    differing = 0
    for row in range(len(expected_addresses)):
        known = dict(zip(addresses[row].tolist(), scores[row].tolist(), strict=True))
        untied = (expected_scores[row] > expected_scores[row][-1] + 1e-5) & (
            expected_addresses[row] != NO_NEIGHBOUR
        )
        answers = zip(
            expected_addresses[row][untied].tolist(), expected_scores[row][untied].tolist(), strict=True
        )
        differing += sum(abs(known.get(address, -9.0) - score) > 1e-5 for address, score in answers)
    assert differing <= 0.005 * expected_addresses.size


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", CHANGED_IN_PLACE)
def test_an_index_changed_in_place_answers_like_a_new_one(kind, seed):
    index = filled(kind, np.arange(FIRST))
    for before, after in nights(seed):
        dead, new = np.flatnonzero(before & ~after), np.flatnonzero(after & ~before)
        assert remove(index, POOL.addresses[dead]) == len(dead)
        fill(index, [(POOL.addresses[new], POOL.raw[new])])
        assert_same_answers(
            index.search(QUERIES, 30), filled(kind, np.flatnonzero(after)).search(QUERIES, 30)
        )
        assert sorted(np.concatenate(list(addresses_of(index))).tolist()) == sorted(
            POOL.addresses[after].tolist()
        )


def base_of(kind: str, folder: Path):
    """Open the base of an index through links, as a release is opened."""
    index = filled(kind, np.arange(FIRST))
    if kind != "on_disk":
        return index
    write_index(index, folder / "part.faiss")
    merged, lists = merge_on_disk(
        [
            FilledShard(
                folder / "part.faiss", FIRST, np.zeros(0, np.int64), np.zeros((0, 32), np.float32), "space"
            )
        ],
        folder,
    )
    write_index(merged, folder / "base.faiss")
    references = [FileRef(path="base.faiss", sha256=""), FileRef(path=lists.name, sha256="")]
    return open_parts(references, lambda reference: folder / reference.path).base


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", WITH_DELTA)
def test_base_delta_and_tombstones_answer_like_a_new_index(kind, seed, tmp_path):
    base = base_of(kind, tmp_path)
    for _, after in nights(seed):
        tombstones = POOL.addresses[:FIRST][~after[:FIRST]]
        delta = filled(kind, FIRST + np.flatnonzero(after[FIRST:]))
        parts = Parts([base, delta], tombstones)
        assert parts.ntotal == after.sum()
        found = parts.search(QUERIES, 30)
        assert_same_answers(found, filled(kind, np.flatnonzero(after)).search(QUERIES, 30))
        assert not np.isin(found[1], tombstones).any()


@pytest.mark.parametrize("k", [1, 10, 300, 5_000])
def test_exhaustive_parts_match_numpy_over_live_rows(k):
    live = np.random.default_rng(4).random(1_000) > 0.5
    base, delta = filled("flat", np.arange(600)), filled("flat", 600 + np.flatnonzero(live[600:]))
    scores, addresses = Parts([base, delta], POOL.addresses[:600][~live[:600]]).search(QUERIES, k)
    exact = cosines(QUERIES, POOL.raw[:1_000][live], some_map())
    order = np.argsort(-exact, axis=1)[:, :k]
    count = order.shape[1]
    np.testing.assert_allclose(scores[:, :count], np.take_along_axis(exact, order, axis=1), atol=1e-5)
    assert (addresses[:, :count] == POOL.addresses[:1_000][live][order]).mean() > 0.999
    assert (addresses[:, count:] == NO_NEIGHBOUR).all()


def test_dead_rows_are_skipped_even_if_they_are_the_nearest():
    near = np.argsort(-cosines(QUERIES[:1], POOL.raw[:FIRST], some_map())[0])
    parts = Parts([filled("ivf_flat", np.arange(FIRST))], POOL.addresses[near[:900]])
    _, addresses = parts.search(QUERIES, 10)
    assert not np.isin(addresses, POOL.addresses[near[:900]]).any()
    assert (
        Parts([filled("flat", near[:50])], POOL.addresses[near[:50]]).search(QUERIES, 10)[1] == NO_NEIGHBOUR
    ).all()


TOPICS, TOPIC_ROWS = 21, 143


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["flat", "ivf_flat", "ivf_sq8", "hnsw"])
def test_after_deleting_a_topic_the_nearest_live_rows_are_found(kind, seed):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(TOPICS, 32))
    raw = (np.repeat(centres, TOPIC_ROWS, axis=0) + 0.25 * rng.normal(size=(TOPICS * TOPIC_ROWS, 32))).astype(
        np.float32
    )
    addresses = np.arange(len(raw))
    index = train(
        plan_index(len(raw), 32, IndexSettings(kind=kind, nlist=TOPICS if kind.startswith("ivf") else None)),
        None,
        raw,
    )
    fill(index, [(addresses, raw)])
    if (ivf := ivf_of(index)) is not None:
        ivf.nprobe = 8
    live, queries = addresses[TOPIC_ROWS:], raw[:TOPIC_ROWS:10]
    _, found = Parts([index], addresses[:TOPIC_ROWS]).search(queries, 10)
    expected = live[np.argsort(-cosines(queries, raw[live], None), axis=1)[:, :10]]
    assert (found >= TOPIC_ROWS).all(), "ten live answers for every query"
    assert (
        np.mean([np.isin(row, answers).mean() for row, answers in zip(expected, found, strict=True)]) >= 0.95
    )


def test_an_empty_delta_changes_nothing():
    base = filled("ivf_flat", np.arange(FIRST))
    found, expected = Parts([base, trained("ivf_flat")]).search(QUERIES, 10), base.search(QUERIES, 10)
    np.testing.assert_array_equal(found[1], expected[1])


def test_the_lists_of_all_parts_are_balanced_together():
    parts = Parts([filled("ivf_flat", np.arange(900)), filled("ivf_flat", np.arange(900, FIRST))])
    whole = filled("ivf_flat", np.arange(FIRST))
    assert parts.imbalance() == pytest.approx(ivf_of(whole).invlists.imbalance_factor())
    assert (
        Parts([filled("flat", np.arange(9))]).imbalance() == Parts([trained("ivf_flat")]).imbalance() == 1.0
    )


@pytest.mark.parametrize("kind", ["ivf_flat", "ivf_sq8", "opq_ivf_pq", "on_disk", "IVF16,PQ4x4fs"])
def test_a_query_visits_more_lists_until_it_has_k_rows(kind: str):
    rows = np.arange(FIRST)
    index = filled(kind, rows)
    ivf_of(index).nprobe = 1
    dead = POOL.addresses[rows[::7]]
    parts = Parts([index, filled(kind, np.arange(FIRST, FIRST + 100))], dead)
    live = FIRST + 100 - len(dead)
    everything = (
        (live, live + 50) if not kind.endswith("fs") else ()
    )  # fast-scan sometimes drops a row, because its scores are coarse
    for k in (10, 300, *everything):
        scores, addresses = parts.search_until_k(QUERIES, k)
        found = (addresses != NO_NEIGHBOUR).sum(axis=1)
        assert (found == min(k, live)).all()
        assert not np.isin(addresses, dead).any()
        assert (np.diff(scores, axis=1)[addresses[:, 1:] != NO_NEIGHBOUR] <= 0).all()
        assert all(len(set(row[row != NO_NEIGHBOUR].tolist())) == min(k, live) for row in addresses)
    assert ivf_of(index).nprobe == 1, "the effort of the index is restored"


def test_queries_with_enough_rows_are_not_affected():
    index = filled("ivf_flat", np.arange(FIRST))
    for found, expected in zip(
        Parts([index]).search_until_k(QUERIES, 10), Parts([index]).search(QUERIES, 10), strict=True
    ):
        np.testing.assert_array_equal(found, expected)

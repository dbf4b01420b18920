"""A filtered search finds the nearest passing rows, however many pass and wherever they are."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.index.build.build import fill, train
from pipeline.index.build.index_shape import plan_index
from pipeline.index.files.parts import Parts
from pipeline.index.files.unit_vectors import UnitVectors
from pipeline.index.filter import address_set, filtered_search, selection
from pipeline.index.filter.address_set import AddressSet
from pipeline.index.filter.filtered_search import search_selected
from pipeline.index.filter.selection import SelectedRows, select
from pipeline.index.measure.searched_parts import best_of
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.index.search_parameters import ivf_parameters, nearest_lists, search_lists
from pipeline.index.structure import addresses_of, ivf_of, unwrap
from pipeline.settings import IndexSettings
from pipeline.settings.gates import GateSettings
from pipeline.store.files.open_store import open_store
from tests.index.clustered import Vectors, cosines, some_map
from tests.index.files.test_parts import FIRST, POOL, QUERIES, base_of, filled

DELTA = np.arange(FIRST, FIRST + 500)
DEAD = np.arange(0, FIRST, 9)
LIVE = np.setdiff1d(np.arange(FIRST + 500), DEAD)
COSINES = cosines(QUERIES, POOL.raw, some_map())
GATE = GateSettings().recall_at_10
UNCOMPRESSED = ["flat", "ivf_flat", "IVF16_HNSW8,Flat", "on_disk", "hnsw"]
# Of kinds that compress vectors, recall@10 among all rows, of exhaustive search by their codes.
COMPRESSED = ["ivf_sq8", "SQ8", "opq_ivf_pq", "ivf_rabitq_refine", "PQ7x4", "IVF16,PQ4x4fs"]
SELECTIVITIES = [1.0, 0.5, 0.1, 0.01, 0.001]


@pytest.fixture
def no_units(tmp_path: Path) -> UnitVectors:
    """Units of a release without any."""
    return UnitVectors(open_store(tmp_path / "units"), ())


@pytest.fixture
def search_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search the index however few rows pass."""
    monkeypatch.setattr(selection, "EXACT_ROWS", -1)


def in_two_parts(kind: str, folder: Path) -> Parts:
    """Make an index with a base, a delta and tombstones."""
    base = filled(kind, np.arange(FIRST)) if kind != "on_disk" else base_of(kind, folder)
    return Parts([base, filled(kind, DELTA)], POOL.addresses[DEAD])


def selected(parts: Parts, rows: np.ndarray, units: UnitVectors) -> SelectedRows:
    """Select rows of the pool, some of which may be dead or not in the index."""
    members = AddressSet(10)
    members.add(POOL.addresses[rows])
    return select(parts, members, units)


def recall_of(addresses: np.ndarray, rows: np.ndarray) -> float:
    """Return recall@10 of answers among some rows, by exact cosines."""
    nearest = np.argsort(-COSINES[:, rows], axis=1)[:, :10]
    expected = POOL.addresses[rows[nearest]]
    hits = [np.isin(each, found).mean() for each, found in zip(expected, addresses, strict=True)]
    return float(np.mean(hits))


def passing(selectivity: float) -> np.ndarray:
    """Draw rows of the pool, at least one of which is live."""
    rng = np.random.default_rng(5)
    return np.union1d(np.flatnonzero(rng.random(len(POOL.raw)) < selectivity), LIVE[77:78])


@pytest.mark.parametrize("kind", UNCOMPRESSED)
@pytest.mark.parametrize("selectivity", SELECTIVITIES)
def test_recall_is_at_least_the_gate_and_k_answers_come(kind, selectivity, no_units, tmp_path, search_index):
    parts, rows = in_two_parts(kind, tmp_path), passing(selectivity)
    live = np.intersect1d(rows, LIVE)
    filter_ = selected(parts, rows, no_units)
    scores, addresses = search_selected(parts, filter_, QUERIES, 10)
    assert filter_.rows == len(live)
    assert addresses.shape == scores.shape == (len(QUERIES), min(10, len(live)))
    assert np.isin(addresses, POOL.addresses[live]).all()
    assert recall_of(addresses, live) >= GATE
    exact = np.take_along_axis(COSINES, np.searchsorted(POOL.addresses, addresses), axis=1)
    np.testing.assert_allclose(scores, exact, atol=1e-5)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_recall_of_codes_is_not_lower_than_among_all_rows(kind, no_units, tmp_path, search_index):
    """The fewer rows pass, the farther apart they are, and the less their codes matter."""
    parts, recalls = in_two_parts(kind, tmp_path), []
    for selectivity in SELECTIVITIES:
        rows = passing(selectivity)
        _, addresses = search_selected(parts, selected(parts, rows, no_units), QUERIES, 10)
        assert np.isin(addresses, POOL.addresses[np.intersect1d(rows, LIVE)]).all()
        assert addresses.shape[1] == min(10, len(np.intersect1d(rows, LIVE)))
        recalls.append(recall_of(addresses, np.intersect1d(rows, LIVE)))
    unfiltered = recall_of(parts.search_until_k(QUERIES, 10)[1], LIVE)
    assert min(recalls) >= unfiltered - 0.03
    assert recalls[-1] == 1.0


def test_codes_are_scored_as_in_a_search_of_all_rows(no_units, tmp_path, search_index):
    parts, rows = in_two_parts("PQ7x4", tmp_path), passing(0.3)
    scores, addresses = search_selected(parts, selected(parts, rows, no_units), QUERIES, 10)
    all_scores, all_addresses = parts.search(QUERIES, parts.ntotal)
    is_selected = np.isin(all_addresses, POOL.addresses[np.intersect1d(rows, LIVE)])
    for query, chosen in enumerate(is_selected):
        np.testing.assert_allclose(scores[query], all_scores[query, chosen][:10], atol=1e-5)
        assert (np.diff(scores[query]) <= 0).all()
        by_address = dict(zip(all_addresses[query].tolist(), all_scores[query].tolist(), strict=True))
        expected = [by_address[address] for address in addresses[query].tolist()]
        np.testing.assert_allclose(scores[query], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["flat", "ivf_flat", "on_disk", "hnsw"])
def test_few_rows_are_compared_exactly(kind, no_units, tmp_path):
    parts, rows = in_two_parts(kind, tmp_path), np.arange(0, 2_500, 7)
    filter_ = selected(parts, rows, no_units)
    assert filter_.exact is not None
    _, addresses = search_selected(parts, filter_, QUERIES, 10)
    assert recall_of(addresses, np.intersect1d(rows, LIVE)) == 1.0


@pytest.mark.parametrize("kind", ["ivf_flat", "IVF16_HNSW8,Flat", "hnsw"])
def test_rows_far_from_the_query_are_found(kind, no_units, tmp_path, search_index, monkeypatch):
    """The filter lets only rows pass that are far from the queries, as if another language were asked for."""
    monkeypatch.setattr(filtered_search, "_GRAPH_COST", 0)
    parts = in_two_parts(kind, tmp_path)
    for index in parts.indexes:
        if ivf_of(index) is not None:
            ivf_of(index).nprobe = 2
        else:
            unwrap(index).hnsw.efSearch = 40
    nearness = COSINES.max(axis=0)
    rows = np.flatnonzero(nearness < np.median(nearness[LIVE]))
    live = np.intersect1d(rows, LIVE)
    _, addresses = search_selected(parts, selected(parts, rows, no_units), QUERIES, 10)
    assert np.isin(addresses, POOL.addresses[live]).all()
    assert recall_of(addresses, live) >= 0.9
    without_filter = parts.search(QUERIES, 10)[1]
    assert recall_of(without_filter, LIVE) < recall_of(addresses, live) + 0.1, "the effort itself is low"


GRAPH_KINDS = ["Flat", "RaBitQ,Refine(SQ8)"]


@functools.cache
def many_lists(codes: str) -> tuple[Parts, Vectors]:
    """Make an index of 2,000 lists, found by a graph, in two parts, and random rows in it."""
    raw = np.random.default_rng(0).normal(size=(6_000, 16)).astype(np.float32)
    rows = Vectors(np.arange(6_000), raw / np.linalg.norm(raw, axis=1, keepdims=True))
    index = train(plan_index(6_000, 16, IndexSettings(kind=f"IVF2000_HNSW16,{codes}")), None, rows.raw)
    indexes = [faiss.deserialize_index(faiss.serialize_index(index)) for _ in range(2)]
    for part, each in zip((slice(0, 4_000), slice(4_000, None)), indexes, strict=True):
        fill(each, [(rows.addresses[part], rows.raw[part])])
    return Parts(indexes), rows


@pytest.mark.parametrize("codes", GRAPH_KINDS)
def test_far_rows_are_found_through_a_graph_of_centroids(codes, no_units, search_index):
    """Among few rows far from all queries, the answers equal those of a search that visits every list."""
    parts, rows = many_lists(codes)
    parts = Parts(parts.indexes, effort=64)
    queries = rows.raw[:10] + 0.5 * rows.raw[0]
    nearness = (rows.raw @ queries.T).max(axis=1)
    far = np.flatnonzero(nearness < np.quantile(nearness, 0.02))
    members = AddressSet(10)
    members.add(far)
    filter_ = select(parts, members, no_units)
    _, addresses = search_selected(parts, filter_, queries, 10)
    assert np.isin(addresses, far).all()
    selector, nlist = members.selector(), unwrap(parts.base).nlist
    every = best_of([search_lists(part, queries, 10, nlist, selector) for part in parts.indexes], 10)[1]
    np.testing.assert_array_equal(addresses, every)
    if codes == "Flat":
        nearest = far[np.argsort(-queries @ rows.raw[far].T, axis=1)[:, :10]]
        np.testing.assert_array_equal(every, nearest)


def test_k_answers_come_through_a_graph_of_centroids(no_units, search_index):
    """The lists in which selected rows are counted are those that are visited."""
    parts, rows = many_lists("Flat")
    parts = Parts(parts.indexes, effort=2)
    queries = rows.raw[:100] + 0.5 * rows.raw[0]
    nearness = (rows.raw @ queries[:10].T).max(axis=1)
    members = AddressSet(10)
    members.add(np.flatnonzero(nearness < np.quantile(nearness, 0.1)))
    _, addresses = search_selected(parts, select(parts, members, no_units), queries, 10)
    assert (addresses != NO_NEIGHBOUR).all()


@pytest.mark.parametrize("nprobe", [8, 64, 1_999])
def test_rows_are_counted_in_the_lists_that_are_visited(nprobe):
    parts, rows = many_lists("Flat")
    _, lists = nearest_lists(parts.base, rows.raw[:20], nprobe)
    list_of_row = np.empty(6_000, dtype=np.int64)
    sizes = Parts([parts.base]).list_sizes().astype(np.int64)
    list_of_row[np.concatenate(list(addresses_of(parts.base)))] = np.repeat(np.arange(2_000), sizes)
    for query, numbers in zip(rows.raw[:20], lists, strict=True):
        visited = search_lists(parts.base, query[None], 4_000, nprobe)[1]
        expected = np.flatnonzero(np.isin(list_of_row[:4_000], numbers))
        np.testing.assert_array_equal(np.sort(visited[visited >= 0]), expected)


@pytest.mark.parametrize("codes", GRAPH_KINDS)
def test_lists_found_by_comparing_all_centroids_give_the_answers_of_faiss(codes):
    """With as many lists as there are, the graph finds all of them, if its effort is high enough."""
    parts, rows = many_lists(codes)
    part = parts.base
    scores, addresses = search_lists(part, rows.raw[:40], 4_000 if codes == "Flat" else 20, 2_000)
    expected = part.search(rows.raw[:40], addresses.shape[1], params=ivf_parameters(part, 2_000))
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(addresses, expected[1])
    assert search_lists(part, rows.raw[:0], 5, 2_000)[1].shape == (0, 5)
    if codes == "Flat":
        assert (np.sort(addresses, axis=1) == np.arange(4_000)).all(), "every list is visited"


def test_no_row_and_no_query_give_no_answers(no_units, tmp_path):
    parts = in_two_parts("ivf_flat", tmp_path)
    nothing = selected(parts, DEAD, no_units)
    assert nothing.rows == 0
    assert search_selected(parts, nothing, QUERIES, 10)[1].shape == (len(QUERIES), 0)
    some = selected(parts, LIVE, no_units)
    assert search_selected(parts, some, QUERIES[:0], 10)[1].shape == (0, 10)


def test_more_answers_than_rows_are_all_rows(no_units, tmp_path, search_index):
    parts = in_two_parts("ivf_flat", tmp_path)
    rows = LIVE[::40]
    _, addresses = search_selected(parts, selected(parts, rows, no_units), QUERIES, 500)
    assert (np.sort(addresses, axis=1) == POOL.addresses[rows]).all()


@pytest.mark.parametrize("kind", ["flat", "ivf_flat", "ivf_rabitq_refine", "hnsw"])
def test_threads_with_different_filters_do_not_disturb_each_other(kind, no_units, tmp_path, search_index):
    parts = in_two_parts(kind, tmp_path)
    filters = [selected(parts, np.arange(step, 2_000, step), no_units) for step in (2, 3, 5, 7)]
    expected = [search_selected(parts, each, QUERIES, 10)[1] for each in filters]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: search_selected(parts, each, QUERIES, 10)[1], 5 * filters))
    for number, addresses in enumerate(found):
        np.testing.assert_array_equal(addresses, expected[number % 4])


def test_a_set_of_addresses_equals_a_python_set():
    rng = np.random.default_rng(0)
    every = np.unique(rng.integers(0, 40, 3_000) << 32 | rng.integers(0, 1_000, 3_000))
    added, removed = every[rng.random(len(every)) < 0.5], every[rng.random(len(every)) < 0.3]
    members = AddressSet(40)
    for piece in np.array_split(added, 7):
        members.add(piece)
    members.remove(np.append(removed, 99 << 32))
    expected = set(added.tolist()) - set(removed.tolist())
    asked = np.append(every, [NO_NEIGHBOUR, 40 << 32, 99 << 32]).reshape(-1, 1)
    assert members.contains(asked)[:, 0].tolist() == [each in expected for each in asked[:, 0].tolist()]
    selector = members.selector()
    assert [selector.is_member(each) for each in every.tolist()] == [
        each in expected for each in every.tolist()
    ]
    assert members.contains(np.zeros(0, np.int64)).shape == (0,)


def test_too_little_address_space_is_explained(monkeypatch):
    class NoSpace:
        MAP_PRIVATE = MAP_ANONYMOUS = 0

        def mmap(self, *_: object, **__: object) -> None:
            raise OSError("Cannot allocate memory")

    monkeypatch.setattr(address_set, "mmap", NoSpace())
    with pytest.raises(ConfigError, match=r"expected 5 GiB of address space.*ulimit -v unlimited"):
        AddressSet(10)


def test_the_selectors_of_faiss_agree():
    """The bitmap gives the answers of faiss's own hash set."""
    index = filled("ivf_flat", np.arange(FIRST))
    rows = np.arange(0, FIRST, 3)
    members = AddressSet(10)
    members.add(POOL.addresses[rows])
    found = []
    for selector in (members.selector(), faiss.IDSelectorBatch(POOL.addresses[rows])):
        parameters = faiss.SearchParametersPreTransform(
            index_params=faiss.SearchParametersIVF(nprobe=5, sel=selector)
        )
        found.append(index.search(QUERIES, 10, params=parameters)[1])
    np.testing.assert_array_equal(*found)

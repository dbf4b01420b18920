"""A centroid that is an erased row's vector is replaced, and the rows that stay are found as before."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from pipeline.index.build.build import fill, read_index, train, write_index
from pipeline.index.build.index_shape import plan_index
from pipeline.index.build.merge import FilledShard, merge_on_disk
from pipeline.index.erase.codebook import unused_codewords
from pipeline.index.erase.part import erase_from_part
from pipeline.index.erase.training import NearLists, TrainingChange, change_of, rows_in_lists
from pipeline.index.lists import is_one_of
from pipeline.index.structure import fingerprint, graph_of, ivf_of, set_index_effort, to_space_of
from pipeline.settings import IndexSettings
from tests.index.clustered import Vectors, clustered

KINDS = [
    "IVF21,Flat",
    "IVF21,SQ8",
    "IVF21,PQ4x8np",
    "IVF21,PQ4x4fs",
    "IVF21,RaBitQ",
    "IVF21_HNSW8,Flat",
    "IVF21,RaBitQ,Refine(SQ8)",
    "RR32,IVF21,SQfp16",
]
ROWS = 900
LONE = 411
"""a row far from all others"""


def with_lone_row() -> Vectors:
    """Return clustered vectors; the lone row is far from them."""
    vectors = clustered(ROWS)
    raw = vectors.raw.copy()
    raw[LONE] = -60 * raw.mean(axis=0) + 5
    return Vectors(vectors.addresses, raw)


VECTORS = with_lone_row()


LONE_LIST = 5


def trained(kind: str, raw: np.ndarray = VECTORS.raw):
    """Train an empty index on all rows, and give the lone row a list, as k-means may do."""
    index = train(plan_index(ROWS, 32, IndexSettings(kind=kind)), None, VECTORS.raw)
    own = to_space_of(index, raw[LONE : LONE + 1])
    centroids = centroids_of(index)
    centroids[LONE_LIST] = own / np.linalg.norm(own)
    quantizer = faiss.downcast_index(ivf_of(index).quantizer)
    quantizer.reset()
    quantizer.add(centroids)
    return index


def filled(folder: Path, index, rows: np.ndarray, *, on_disk: bool) -> tuple[Path, ...]:
    """Fill a copy of an index with rows of VECTORS; returns its files."""
    index, vectors = (
        faiss.deserialize_index(faiss.serialize_index(index)),
        Vectors(*(each[rows] for each in (VECTORS.addresses, VECTORS.raw))),
    )
    added = fill(index, vectors.batches())
    folder.mkdir()
    name = "shard.faiss" if on_disk else "index.faiss"
    write_index(index, folder / name)
    if not on_disk:
        return (folder / name,)
    shard = FilledShard(folder / name, added.rows, added.probe_addresses, added.probe_vectors, "space")
    index, lists = merge_on_disk([shard], folder)
    write_index(index, folder / "index.faiss")
    return (folder / "index.faiss", lists)


def change_without(index, part: Path, erased: np.ndarray, *, on_disk: bool) -> TrainingChange:
    """Find the change of a training for erased rows of VECTORS."""
    near = NearLists(index).add([(VECTORS.addresses[erased], VECTORS.raw[erased])])
    opened = read_index(part, on_disk=on_disk)
    remaining = rows_in_lists(opened, near.sums, is_one_of(VECTORS.addresses[erased]))
    is_erased = is_one_of(VECTORS.addresses[erased])
    unused = unused_codewords([opened], near.own.codewords, is_erased)

    def vectors_of(asked: np.ndarray) -> np.ndarray:
        return VECTORS.raw[np.searchsorted(VECTORS.addresses, asked)]

    return change_of(near, remaining, unused, vectors_of)


def centroids_of(index) -> np.ndarray:
    """Return the centroids (nlist, d)."""
    return np.asarray(faiss.downcast_index(ivf_of(index).quantizer).reconstruct_n(0, ivf_of(index).nlist))


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_centroid_of_a_list_with_one_erased_row_becomes_zero(kind: str, on_disk: bool, tmp_path: Path):
    index = trained(kind)
    if on_disk and any(word in kind for word in ("Refine", "fs")):
        pytest.skip("its lists are always in memory")
    number = LONE_LIST
    vector = to_space_of(index, VECTORS.raw[LONE : LONE + 1])[0]
    files = filled(tmp_path / "before", index, np.arange(ROWS), on_disk=on_disk)
    change = change_without(index, files[0], np.array([LONE]), on_disk=on_disk)
    assert change.lists.tolist() == [number]
    assert not change.centroids.any()
    (tmp_path / "after").mkdir()
    count, written = erase_from_part(files, VECTORS.addresses[[LONE]], tmp_path / "after", change)
    assert count == 1
    old, new = (read_index(each[0], mapped=False, on_disk=on_disk) for each in (files, written))
    kept = np.delete(np.arange(21), number)
    assert np.array_equal(centroids_of(new)[kept], centroids_of(old)[kept])
    assert not centroids_of(new)[number].any()
    change.apply_in_memory(index)
    assert fingerprint(index) == fingerprint(new) != fingerprint(old)
    content = b"".join(file.read_bytes() for file in written) + faiss.serialize_index(index).tobytes()
    patterns = [VECTORS.raw[LONE], vector, vector.astype(np.float16), centroids_of(old)[number]]
    assert not any(pattern.tobytes() in content for pattern in patterns)
    for each in (old, new):
        set_index_effort(each, 21)
    asked = np.delete(VECTORS.raw, LONE, axis=0)[::31]
    (old_scores, before), (scores, after) = old.search(asked, 20), new.search(asked, 20)
    assert VECTORS.addresses[LONE] not in before
    assert np.array_equal(after, before)
    assert np.array_equal(scores, old_scores)


# without a rotation: the last bits of a rotated vector depend on the rows beside it
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("RR")])
def test_rows_that_came_later_get_their_own_centroid(kind: str, tmp_path: Path):
    """The lone row's list has a row that is not of the training: its code must not depend on the lone row."""
    index = trained(kind)
    number, rows = LONE_LIST, np.arange(0, ROWS, 2)
    later = VECTORS.raw[LONE] + 8 * np.random.default_rng(0).normal(size=32).astype(np.float32)
    VECTORS.raw[10], previous = later, VECTORS.raw[10].copy()
    try:
        assert LONE not in rows
        files = filled(tmp_path / "before", index, np.append(rows, LONE), on_disk=False)
        change = change_without(index, files[0], np.array([LONE]), on_disk=False)
        assert (change.lists.tolist(), change.addresses.tolist()) == ([number], [VECTORS.addresses[10]])
        (tmp_path / "after").mkdir()
        _, written = erase_from_part(files, VECTORS.addresses[[LONE]], tmp_path / "after", change)
        change.apply_in_memory(index)
        never = filled(tmp_path / "never", index, rows, on_disk=False)
        assert same_codes(read_index(written[0], mapped=False), read_index(never[0], mapped=False), number)
        found = read_index(written[0]).search(later[None], 1)[1]
        assert found[0, 0] == VECTORS.addresses[10]
    finally:
        VECTORS.raw[10] = previous


def same_codes(one, other, number: int) -> bool:
    """Return whether a list has the same ids and codes in two indexes."""
    contents = [faiss.downcast_InvertedLists(ivf_of(each).invlists) for each in (one, other)]
    sizes = [each.list_size(number) for each in contents]
    assert sizes == [1, 1]
    width = ivf_of(one).code_size
    codes = [faiss.rev_swig_ptr(each.get_codes(number), width).tobytes() for each in contents]
    return codes[0] == codes[1]


def test_a_training_of_many_rows_stays(tmp_path: Path):
    index = trained("IVF21,SQ8")
    files = filled(tmp_path / "before", index, np.arange(ROWS), on_disk=False)
    erased = np.delete(np.arange(0, ROWS, 3), LONE // 3)
    assert not change_without(index, files[0], erased, on_disk=False)


def test_two_erased_rows_that_are_the_mean_of_a_list_determined_it():
    raw = VECTORS.raw.copy()
    raw[LONE + 1] = raw[LONE] + 3 * np.random.default_rng(1).normal(size=32)
    means = raw.copy()
    means[LONE] = sum(row / np.linalg.norm(row) for row in raw[LONE : LONE + 2])
    index = trained("IVF21,Flat", means)
    near = NearLists(index).add([(VECTORS.addresses[LONE : LONE + 2], raw[LONE : LONE + 2])])
    assert (near.same, near.determined()) == (set(), {LONE_LIST})
    assert not NearLists(index).add([(VECTORS.addresses[LONE : LONE + 1], raw[LONE : LONE + 1])]).determined()


def test_a_change_is_stored(tmp_path: Path):
    change = TrainingChange(
        np.array([3]),
        np.ones((1, 4), np.float32),
        np.array([7]),
        np.ones((1, 5), np.float32),
        np.array([[1, 2]]),
    )
    loaded = TrainingChange.from_bytes(change.to_bytes())
    assert all(
        np.array_equal(*both) for both in zip(vars(change).values(), vars(loaded).values(), strict=True)
    )
    assert not TrainingChange.none()


def test_a_graph_of_centroids_never_leads_to_an_empty_list():
    index = trained("IVF21_HNSW8,Flat")
    number = LONE_LIST
    zero = TrainingChange(
        np.array([number]),
        np.zeros((1, 32), np.float32),
        np.zeros(0, np.int64),
        np.zeros((0, 32), np.float32),
        np.zeros((0, 2), np.int64),
    )
    zero.apply_in_memory(index)
    graph_of(index).hnsw.efSearch = 64
    _, nearest = ivf_of(index).quantizer.search(to_space_of(index, np.delete(VECTORS.raw, LONE, axis=0)), 3)
    assert number not in nearest

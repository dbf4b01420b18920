"""A part without some rows has the bytes of a part that never had them, and answers for others as before."""

import functools
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.index.build.build import fill, read_index, train, write_index
from pipeline.index.build.index_shape import plan_index
from pipeline.index.build.merge import FilledShard, merge_on_disk
from pipeline.index.erase.part import erase_from_part
from pipeline.index.structure import addresses_of, set_index_effort, to_space_of, unwrap
from pipeline.settings import IndexSettings
from tests.index.clustered import Map, Vectors, clustered, some_map

GRAPHS = ["hnsw", "HNSW16,SQ8"]
LISTS = [
    "ivf_flat",
    "ivf_sq8",
    "ivf_sq6",
    "opq_ivf_pq",
    "ivf_rabitq_refine",
    "ivf_rabitq_refine_fp16",
    "IVF16,PQ4x4fs",
    "IVF16,PQ4x8np,Refine(Flat)",
    "IVF16_HNSW8,Flat",
    "PCA16,IVF16,SQ4",
    "IVF16,SQfp16",
    "IVF16,RaBitQ",
]
FLAT = ["flat", "SQ8", "SQfp16", "PQ4x8np", "PCA8,Flat"]
KINDS = [*FLAT, *LISTS]
ON_DISK = ["ivf_flat", "ivf_sq8", "opq_ivf_pq", "IVF16,RaBitQ"]
ROWS = 700
VECTORS = clustered(ROWS)


@functools.cache
def trained(kind: str, whitened: bool) -> np.ndarray:
    """Train an empty index; returns it serialized."""
    transform = some_map() if whitened else None
    plan = plan_of(kind, transform)
    return faiss.serialize_index(train(plan, transform, VECTORS.raw))


def plan_of(kind: str, transform: Map | None):
    """Plan an index of a kind over VECTORS."""
    nlist = 20 if kind.startswith(("ivf", "opq")) else None
    return plan_index(ROWS, 32 if transform is None else 28, IndexSettings(kind=kind, nlist=nlist))


def filled(folder: Path, kind: str, vectors: Vectors, *, whitened: bool = True, on_disk: bool = False):
    """Fill a part with vectors; returns its files.

    Vectors are added one by one, because the last bits of a transformed vector depend on the rows beside it.
    """
    index = faiss.deserialize_index(trained(kind, whitened))
    added = fill(index, vectors.batches(1))
    folder.mkdir()
    if not on_disk:
        write_index(index, folder / "index.faiss")
        return (folder / "index.faiss",)
    write_index(index, folder / "shard.faiss")
    shard = FilledShard(
        folder / "shard.faiss", added.rows, added.probe_addresses, added.probe_vectors, "space"
    )
    index, lists = merge_on_disk([shard], folder)
    write_index(index, folder / "index.faiss")
    return (folder / "index.faiss", lists)


def some_rows(vectors: Vectors, rows: np.ndarray) -> Vectors:
    """Return the vectors in `rows`."""
    return Vectors(vectors.addresses[rows], vectors.raw[rows])


def codes_in(vector: np.ndarray, kind: str, *, whitened: bool) -> list[bytes]:
    """Return the bytes by which a raw vector (d,) may be stored: floats, and codes of the index."""
    index = faiss.deserialize_index(trained(kind, whitened))
    patterns = [vector.tobytes(), vector.astype(np.float16).tobytes()]
    inside = to_space_of(index, vector[None])[0]
    patterns += [inside.tobytes(), inside.astype(np.float16).tobytes()]
    ann = unwrap(index)
    if isinstance(ann, faiss.IndexIVF) and not isinstance(ann, faiss.IndexIVFFastScan):
        _, lists = ann.quantizer.search(inside[None], 1)
        code = np.zeros(ann.code_size, dtype=np.uint8)
        ann.encode_vectors(1, faiss.swig_ptr(inside), faiss.swig_ptr(lists), faiss.swig_ptr(code))
        patterns.append(code.tobytes())
    elif hasattr(ann, "sa_encode") and not isinstance(ann, faiss.IndexIVF | faiss.IndexHNSW):
        patterns.append(ann.sa_encode(inside[None]).tobytes())
    return [pattern for pattern in patterns if len(pattern) >= 8]


def same_bytes(one: Path, other: Path) -> bool:
    """Return whether two files have the same content; a difference of megabytes is not worth printing."""
    return one.read_bytes() == other.read_bytes()


rows_to_erase = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=60, unique=True).map(np.array)


@pytest.mark.parametrize("kind", KINDS)
@given(erased=rows_to_erase, whitened=st.booleans())
@settings(max_examples=5)
def test_the_file_equals_one_that_never_had_the_rows(kind, tmp_path_factory, erased, whitened):
    whitened &= "_HNSW" not in kind  # these add all rows together
    folder = tmp_path_factory.mktemp("part")
    files = filled(folder / "before", kind, VECTORS, whitened=whitened)
    others = some_rows(VECTORS, np.setdiff1d(np.arange(ROWS), erased))
    expected = filled(folder / "never", kind, others, whitened=whitened)
    (folder / "after").mkdir()
    count, written = erase_from_part(files, VECTORS.addresses[erased], folder / "after")
    assert count == len(erased)
    assert all(same_bytes(*files) for files in zip(written, expected, strict=True))
    content = written[0].read_bytes()
    for vector in VECTORS.raw[erased]:
        assert not any(pattern in content for pattern in codes_in(vector, kind, whitened=whitened))


@pytest.mark.parametrize("kind", ON_DISK)
@given(erased=rows_to_erase)
@settings(max_examples=5)
def test_lists_on_disk_equal_lists_that_never_had_the_rows(kind, tmp_path_factory, erased):
    folder = tmp_path_factory.mktemp("part")
    files = filled(folder / "before", kind, VECTORS, whitened=False, on_disk=True)
    others = some_rows(VECTORS, np.setdiff1d(np.arange(ROWS), erased))
    expected = filled(folder / "never", kind, others, whitened=False, on_disk=True)
    (folder / "after").mkdir()
    count, written = erase_from_part(files, VECTORS.addresses[erased], folder / "after")
    assert count == len(erased)
    assert written[1].name == expected[1].name
    assert same_bytes(written[1], expected[1])  # faiss writes a hole into the index file, this package none
    index = read_index(written[0], on_disk=True)
    set_index_effort(index, 1_000)
    whole = read_index(expected[0], on_disk=True)
    set_index_effort(whole, 1_000)
    answers, wanted = (each.search(VECTORS.raw[::50], 5) for each in (index, whole))
    assert all(np.array_equal(*both) for both in zip(answers, wanted, strict=True))


@pytest.mark.parametrize("kind", [*KINDS, *GRAPHS])
def test_a_part_of_erased_rows_alone_has_no_file(kind, tmp_path):
    files = filled(tmp_path / "before", kind, VECTORS.part(slice(0, 40)))
    assert erase_from_part(files, VECTORS.addresses[:40], tmp_path) == (40, ())


def test_other_addresses_are_ignored(tmp_path):
    files = filled(tmp_path / "before", "ivf_flat", VECTORS)
    count, written = erase_from_part(files, np.array([10**15]), tmp_path)
    assert (count, written) == (0, files)


def reachable(index) -> np.ndarray:
    """Return the rows of an HNSW graph that are linked from its entry point, directly or through others."""
    hnsw = unwrap(index).hnsw
    offsets, levels = faiss.vector_to_array(hnsw.offsets), faiss.vector_to_array(hnsw.levels)
    links = faiss.vector_to_array(hnsw.neighbors)
    seen, waiting = {hnsw.entry_point}, [hnsw.entry_point]
    while waiting:
        row = waiting.pop()
        for other in links[int(offsets[row]) : int(offsets[row]) + hnsw.nb_neighbors(0)].tolist():
            if other >= 0 and other not in seen:
                seen.add(other)
                waiting.append(other)
    assert (np.diff(offsets.astype(np.int64)) >= hnsw.nb_neighbors(0)).all()
    assert hnsw.max_level == levels.max() - 1 == levels[hnsw.entry_point] - 1
    return np.array(sorted(seen))


def found_of_ten(index, rows: np.ndarray) -> float:
    """Return recall@10 of an index for its own rows as queries, in cosines of whitened vectors."""
    vectors = to_space_of(index, VECTORS.raw)
    exact = np.argsort(-(vectors[rows] @ vectors[rows].T), axis=1)[:, :10]
    _, found = index.search(VECTORS.raw[rows], 10)
    return float(
        np.mean([np.isin(VECTORS.addresses[rows[e]], f).mean() for e, f in zip(exact, found, strict=True)])
    )


def clusters_or_rows() -> st.SearchStrategy[np.ndarray]:
    """Draw random rows, or the nearest rows of one row: a whole region of the graph."""
    near = st.tuples(st.integers(0, ROWS - 1), st.integers(1, 200)).map(
        lambda drawn: np.argsort(np.linalg.norm(VECTORS.raw - VECTORS.raw[drawn[0]], axis=1))[: drawn[1]]
    )
    return st.one_of(rows_to_erase, near)


@pytest.mark.parametrize("kind", GRAPHS)
@given(erased=clusters_or_rows())
@settings(max_examples=15)
def test_a_graph_without_rows_still_finds_the_others(kind, tmp_path_factory, erased):
    folder = tmp_path_factory.mktemp("part")
    files = filled(folder / "before", kind, VECTORS)
    before = read_index(files[0], mapped=False)
    others = np.setdiff1d(np.arange(ROWS), erased)
    (folder / "after").mkdir()
    count, written = erase_from_part(files, VECTORS.addresses[erased], folder / "after")
    after, content = read_index(written[0]), written[0].read_bytes()
    assert count == len(erased)
    assert np.array_equal(np.concatenate(list(addresses_of(after))), VECTORS.addresses[others])
    old, new = (faiss.downcast_index(unwrap(each).storage) for each in (before, after))
    assert np.array_equal(
        faiss.vector_to_array(old.codes).reshape(ROWS, -1)[others],
        faiss.vector_to_array(new.codes).reshape(len(others), -1),
    )
    assert len(reachable(after)) == len(others)
    assert found_of_ten(after, others) >= found_of_ten(read_index(files[0]), np.arange(ROWS)) - 0.02
    for row in erased.tolist():
        code = faiss.vector_to_array(old.codes).reshape(ROWS, -1)[row].tobytes()
        patterns = [code, *codes_in(VECTORS.raw[row], kind, whitened=True)]
        assert not any(pattern in content for pattern in patterns)

"""Merged parts answer as one index; parts that do not fit together are refused by name."""

import functools
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest

from pipeline.errors import DataError, SpaceMismatch
from pipeline.index.build.build import fill, read_index, train, write_index
from pipeline.index.build.index_shape import plan_index
from pipeline.index.build.merge import FilledShard, count_duplicates, merge, merge_on_disk
from pipeline.index.structure import addresses_of, graph_of, ivf_of
from pipeline.settings import IndexSettings
from tests.index.clustered import Vectors, clustered, some_map

SHARDABLE = [
    "flat",
    "IVF20_HNSW8,Flat",
    "ivf_flat",
    "ivf_sq8",
    "opq_ivf_pq",
    "ivf_rabitq_refine",
    "ivf_rabitq_refine_fp16",
    "SQ8",
    "PCA16,IVF16,SQ4",
    "PCA8,Flat",
    "PCAR8,IVF16,Flat",
    "OPQ4_8,Flat",
    "RR8,Flat",
    "IVF16,PQ4x8np,Refine(Flat)",
]
ON_DISK = ["ivf_flat", "ivf_sq8", "opq_ivf_pq"]
VECTORS = clustered(2_500)


@functools.cache
def trained_bytes(kind: str, seed: int) -> np.ndarray:
    """Train an empty index; returns it serialized."""
    plan = plan_index(2_500, 28, IndexSettings(kind=kind, nlist=20 if "ivf" in kind else None))
    return faiss.serialize_index(train(plan, some_map(), VECTORS.raw, seed))


def trained(kind: str, seed: int = 0):
    """Return a copy of an empty, trained index."""
    return faiss.deserialize_index(trained_bytes(kind, seed))


def copy_index(index):
    """Copy an index."""
    return faiss.deserialize_index(faiss.serialize_index(index))


def filled_shard(folder: Path, name: str, index, vectors: Vectors) -> FilledShard:
    """Fill a copy of an index with vectors, as a part in a file."""
    index = copy_index(index)
    filled = fill(index, vectors.batches())
    write_index(index, folder / name)
    return FilledShard(folder / name, filled.rows, filled.probe_addresses, filled.probe_vectors, "space")


def three_shards(folder: Path, index) -> list[FilledShard]:
    """Fill three parts of unequal size."""
    return [
        filled_shard(folder, f"part{n}.faiss", index, VECTORS.part(rows))
        for n, rows in enumerate((slice(0, 500), slice(500, 2_000), slice(2_000, None)))
    ]


def unsharded(index):
    """Fill one index with all vectors."""
    whole = copy_index(index)
    fill(whole, VECTORS.batches())
    return whole


def assert_equal_answers(left, right):
    """Assert that two indexes give the same answers."""
    for effort in (1, 5, 20):
        for index in (left, right):
            if (ivf := ivf_of(index)) is not None:
                ivf.nprobe = effort
        (scores, found), (expected_scores, expected) = (
            index.search(VECTORS.raw[::7], 20) for index in (left, right)
        )
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-6)


@pytest.mark.parametrize("kind", SHARDABLE)
def test_merged_parts_answer_like_one_build(kind, tmp_path):
    index = trained(kind)
    merged = merge(three_shards(tmp_path, index))
    assert_equal_answers(merged, unsharded(index))
    write_index(merged, tmp_path / "merged.faiss")
    assert_equal_answers(faiss.read_index(str(tmp_path / "merged.faiss")), unsharded(index))


@pytest.mark.parametrize("kind", ON_DISK)
def test_lists_on_disk_answer_like_one_build_and_can_be_moved(kind, tmp_path, capfd):
    index = trained(kind)
    (tmp_path / "built").mkdir()
    merged, lists = merge_on_disk(three_shards(tmp_path, index), tmp_path / "built")
    assert_equal_answers(merged, unsharded(index))
    write_index(merged, tmp_path / "built" / "index.faiss")
    assert lists.stat().st_size == 2_500 * (ivf_of(merged).code_size + 8)
    (tmp_path / "built").rename(tmp_path / "moved")
    assert_equal_answers(read_index(tmp_path / "moved" / "index.faiss", on_disk=True), unsharded(index))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("kind", ["hnsw", "IVF16,PQ4x4fs"])
def test_kinds_that_faiss_cannot_merge_are_built_as_one_part(kind, tmp_path):
    assert not plan_index(2_500, 28, IndexSettings(kind=kind)).shardable
    with pytest.raises(DataError, match="in one shard"):
        merge(three_shards(tmp_path, trained(kind)))


def test_one_part_merges_to_itself(tmp_path):
    index = trained("ivf_flat")
    assert_equal_answers(merge([filled_shard(tmp_path, "only.faiss", index, VECTORS)]), unsharded(index))


@pytest.mark.parametrize("kind", ["ivf_flat", "ivf_sq8", "opq_ivf_pq"])
@pytest.mark.parametrize("join", [merge, lambda parts: merge_on_disk(parts, parts[0].path.parent)])
def test_parts_of_another_training_are_refused(kind, join, tmp_path):
    ours = filled_shard(tmp_path, "ours.faiss", trained(kind), VECTORS.part(slice(0, 1_000)))
    other = filled_shard(tmp_path, "other.faiss", trained(kind, seed=5), VECTORS.part(slice(1_000, None)))
    with pytest.raises(DataError, match=r"other\.faiss: expected the training of ours\.faiss"):
        join([ours, other])


def test_a_part_under_another_whitening_is_refused(tmp_path):
    plan = plan_index(2_500, 28, IndexSettings(kind="flat"))
    parts = [
        filled_shard(
            tmp_path,
            f"{seed}.faiss",
            train(plan, some_map(seed=seed), VECTORS.raw),
            VECTORS.part(slice(500 * seed, 500 * seed + 500)),
        )
        for seed in (1, 2)
    ]
    with pytest.raises(DataError, match=r"2\.faiss"):
        merge(parts)


@pytest.mark.parametrize("kind", ["flat", "ivf_sq8"])
def test_repeated_rows_are_refused(kind, tmp_path):
    index = trained(kind)
    parts = [
        filled_shard(tmp_path, "a.faiss", index, VECTORS.part(slice(0, 1_000))),
        filled_shard(tmp_path, "b.faiss", index, VECTORS.part(slice(500, 1_500))),
    ]
    with pytest.raises(DataError, match="500 repeated, the first of them unit 1, row"):
        merge(parts)


def test_missing_rows_are_refused(tmp_path):
    shard = filled_shard(tmp_path, "a.faiss", trained("flat"), VECTORS)
    with pytest.raises(DataError, match=r"a\.faiss: expected 2,501 rows, found 2,500"):
        merge([FilledShard(shard.path, 2_501, shard.probe_addresses, shard.probe_vectors, "space")])


def test_a_part_with_rows_at_wrong_addresses_is_refused(tmp_path):
    shard = filled_shard(tmp_path, "a.faiss", trained("ivf_flat"), VECTORS)
    with pytest.raises(DataError, match=r"of the probes of a\.faiss to be found"):
        merge(
            [
                FilledShard(
                    shard.path,
                    shard.rows,
                    shard.probe_addresses,
                    clustered(len(shard.probe_addresses), seed=8).raw,
                    "space",
                )
            ]
        )


@pytest.mark.parametrize("kind", [kind for kind in SHARDABLE if "refine" in kind.lower()])
def test_parts_of_very_similar_rows_are_merged(kind, tmp_path):
    """More rows than a search scores by second codes have nearly the same first code."""
    similar = VECTORS.raw[:1] + 0.05 * clustered(2_500, seed=3).raw
    parts = [
        filled_shard(
            tmp_path, f"{rows.start}.faiss", trained(kind), Vectors(VECTORS.addresses, similar).part(rows)
        )
        for rows in (slice(0, 500), slice(500, 2_500))
    ]
    assert merge(parts).ntotal == 2_500


def test_parts_are_merged_although_searches_of_their_graph_miss_lists(tmp_path):
    raw = np.random.default_rng(0).normal(size=(6_000, 16)).astype(np.float32)
    spread = Vectors(np.arange(6_000), raw)
    index = train(plan_index(6_000, 16, IndexSettings(kind="IVF2000_HNSW8,Flat")), None, raw)
    graph_of(index).hnsw.efSearch = 16
    rows = [slice(start, start + 1_500) for start in range(0, 6_000, 1_500)]
    parts = [filled_shard(tmp_path, f"{each.start}.faiss", index, spread.part(each)) for each in rows]
    assert merge(parts).ntotal == 6_000


@pytest.mark.parametrize("seed", range(5))
def test_duplicates_are_counted_as_numpy_counts_them(seed):
    rng = np.random.default_rng(seed)
    addresses = (rng.integers(0, 5, 3_000) << 32) | rng.integers(0, 2_000, 3_000)
    count, first = count_duplicates(np.split(addresses, [1, 10, 2_000]))
    assert count == len(addresses) - len(np.unique(addresses))
    assert (first is None) == (count == 0)
    assert count_duplicates([np.unique(addresses)]) == (0, None)


def test_all_addresses_can_be_read_back(tmp_path):
    for kind in ("flat", "ivf_flat"):
        merged = merge(three_shards(tmp_path, trained(kind)))
        assert np.array_equal(np.sort(np.concatenate(list(addresses_of(merged)))), VECTORS.addresses)


@pytest.mark.parametrize("kind", ["flat", "ivf_flat"])
@pytest.mark.parametrize("join", [merge, lambda parts: merge_on_disk(parts, Path("nowhere"))])
def test_parts_of_two_spaces_are_refused_naming_both_spaces(kind, join, tmp_path):
    """Flat parts have no training, so only the space distinguishes them."""
    ours, other, _ = three_shards(tmp_path, trained(kind))
    with pytest.raises(SpaceMismatch, match=f"vectors of space {'5' * 64}.*space {'7' * 64}"):
        join([replace(ours, space_id="5" * 64), replace(other, space_id="7" * 64)])

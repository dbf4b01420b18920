"""The order of rows is the same for every number of ranks and can begin at any step."""

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.settings.training import OrderSettings, SourceSettings
from pipeline.text.rows.batches import RankRows, RankSlice, rank_rows
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.training_rows import open_training_rows

WORDS = ("a", "small", "dog", "runs", "over", "the", "green", "hill", "today")


def sentences(count: int, seed: int = 0) -> list[str]:
    """Distinct texts of one to thirty words."""
    rng = np.random.default_rng(seed)
    return [" ".join([*rng.choice(WORDS, rng.integers(0, 30)), str(number)]) for number in range(count)]


def write_files(folder: Path, sizes: list[int], group: int) -> list[str]:
    """Write files of these numbers of rows, in row groups of `group` rows. Returns all their texts."""
    texts = sentences(sum(sizes))
    for number, size in enumerate(sizes):
        first = sum(sizes[:number])
        pq.write_table(
            pa.table({"text": texts[first : first + size]}),
            folder / f"{number:03}.parquet",
            row_group_size=group,
        )
    return texts


def take(order: ShuffledOrder, start: int, steps: int, rank: RankSlice = RankSlice()) -> list[RankRows]:
    return list(islice(rank_rows(order, start, rank), steps))


cases = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(0, 40), min_size=1, max_size=4),
        "group": st.integers(1, 25),
        "window_rows": st.integers(1, 60),
        "bucket_batches": st.integers(1, 4),
        "seed": st.integers(0, 5),
        "repeats": st.sampled_from(["keep", "drop", "mask"]),
        "per_rank": st.integers(1, 4),
        "world": st.sampled_from([1, 2, 3]),
    }
)


@given(case=cases)
def test_every_row_is_read_once_an_epoch_for_any_number_of_ranks_and_any_first_step(
    tmp_path_factory: pytest.TempPathFactory, case: dict
):
    folder = tmp_path_factory.mktemp("rows")
    texts = write_files(folder, case["sizes"], case["group"])
    world = case["world"]
    batch_rows = case["per_rank"] * case["world"]
    if len(texts) < batch_rows:
        with pytest.raises(DataError, match="rows"):
            ShuffledOrder(
                open_training_rows(SourceSettings(uri=str(folder)), ["text"]),
                OrderSettings(batch_rows=batch_rows),
            )
        return
    options = {name: case[name] for name in ("window_rows", "bucket_batches", "seed", "repeats")}
    order = ShuffledOrder(
        open_training_rows(SourceSettings(uri=str(folder)), ["text"]),
        OrderSettings(batch_rows=batch_rows, **options),
    )
    steps = order.steps_per_epoch
    assert steps == len(texts) // batch_rows
    alone = take(order, 0, 2 * steps)
    for epoch in (alone[:steps], alone[steps:]):
        rows = np.concatenate([batch.rows for batch in epoch])
        assert len(rows) == len(set(rows.tolist())) == steps * batch_rows
    assert all(batch.columns["text"] == [texts[row] for row in batch.rows] for batch in alone)
    ranks = [take(order, 0, 2 * steps, RankSlice(rank, world)) for rank in range(world)]
    for step, batch in enumerate(alone):
        np.testing.assert_array_equal(np.concatenate([rank[step].rows for rank in ranks]), batch.rows)
    for start in {steps // 2, steps, 2 * steps - 1}:
        for later, batch in zip(take(order, start, 2 * steps - start), alone[start:], strict=True):
            np.testing.assert_array_equal(later.rows, batch.rows)


def test_epochs_and_seeds_differ_even_within_one_row_group(tmp_path: Path):
    write_files(tmp_path, [600], group=600)
    pairs = open_training_rows(SourceSettings(uri=str(tmp_path / "000.parquet")), ["text"])
    order = ShuffledOrder(pairs, OrderSettings(batch_rows=8, window_rows=64))
    rows = np.array([batch.rows for batch in take(order, 0, 150)])
    other = np.array(
        [
            batch.rows
            for batch in take(
                ShuffledOrder(pairs, OrderSettings(batch_rows=8, window_rows=64, seed=1)), 0, 75
            )
        ]
    )
    assert (rows[:75] != rows[75:]).mean() > 0.9
    assert (rows[:75] != other).mean() > 0.9
    first, second = (
        {frozenset(rows[start : start + 8].ravel().tolist()) for start in (first_step, first_step + 8)}
        for first_step in (0, 75)
    )
    assert not first & second  # not the same windows in another order


def test_buckets_save_padding_without_ordering_batches_by_length(tmp_path: Path):
    write_files(tmp_path, [4096], group=1000)
    pairs = open_training_rows(SourceSettings(uri=str(tmp_path)), ["text"])

    def lengths(bucket: int) -> np.ndarray:
        order = ShuffledOrder(pairs, OrderSettings(batch_rows=32, window_rows=4096, bucket_batches=bucket))
        return np.array([[len(text) for text in batch.columns["text"]] for batch in take(order, 0, 128)])

    plain, bucketed = lengths(1), lengths(16)
    wasted = [1 - table.sum() / (table.max(1).sum() * 32) for table in (plain, bucketed)]
    assert wasted[1] < 0.4 * wasted[0]
    means = bucketed.mean(1)
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.3  # batches come in no order of length
    halves = bucketed[:, :16].mean() / bucketed[:, 16:].mean()
    assert 0.97 < halves < 1.03  # and two ranks have equal work


def test_rows_left_out_differ_between_epochs(tmp_path: Path):
    write_files(tmp_path, [23], group=23)
    order = ShuffledOrder(
        open_training_rows(SourceSettings(uri=str(tmp_path)), ["text"]), OrderSettings(batch_rows=10)
    )
    left_out = [
        frozenset(range(23))
        - set(np.concatenate([batch.rows for batch in take(order, 2 * epoch, 2)]).tolist())
        for epoch in range(8)
    ]
    assert all(len(rows) == 3 for rows in left_out)
    assert len(set(left_out)) > 4  # two epochs may leave out the same rows


def test_a_batch_size_that_is_no_multiple_of_the_ranks_is_refused_with_the_nearest_that_are(tmp_path: Path):
    write_files(tmp_path, [30], group=30)
    order = ShuffledOrder(
        open_training_rows(SourceSettings(uri=str(tmp_path)), ["text"]), OrderSettings(batch_rows=10)
    )
    with pytest.raises(ConfigError, match="set it to 8 or 12"):
        rank_rows(order, 0, RankSlice(0, 4))


def test_starting_late_opens_no_earlier_row_group(tmp_path: Path):
    write_files(tmp_path, [100] * 6, group=100)
    order = ShuffledOrder(
        open_training_rows(SourceSettings(uri=str(tmp_path)), ["text"]),
        OrderSettings(batch_rows=10, window_rows=100),
    )
    rows = np.concatenate([batch.rows for batch in take(order, 0, order.steps_per_epoch)])
    early = set((rows[:200] // 100).tolist()) - set((rows[200:] // 100).tolist())
    for number in early:  # files all of whose rows were read before the start
        (tmp_path / f"{number:03}.parquet").unlink()
    late = np.concatenate([batch.rows for batch in take(order, 20, order.steps_per_epoch - 20)])
    assert early
    np.testing.assert_array_equal(late, rows[200:])

"""Batches of neighbours keep the order of the documents, and leave out sentences without a neighbour."""

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.log import listening
from pipeline.settings.training import OrderSettings, SourceSettings
from pipeline.text.rows.batches import rank_rows
from pipeline.text.rows.neighbours import NeighbourOrder
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows

ROLES = ["text", "document", "position"]


def documents(folder: Path, lengths: list[int], group: int = 7) -> TrainingRows:
    names = [f"d{number}" for number, length in enumerate(lengths) for _ in range(length)]
    positions = [position for length in lengths for position in range(length)]
    texts = [f"{name} {position}" for name, position in zip(names, positions, strict=True)]
    pq.write_table(
        pa.table({"text": texts, "document": names, "position": positions}),
        folder / "x.parquet",
        row_group_size=group,
    )
    return open_training_rows(SourceSettings(uri=str(folder)), ROLES)


@given(
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=8),
    group=st.integers(4, 30),
    batch_rows=st.integers(1, 6),
    window=st.integers(1, 40),
    seed=st.integers(0, 3),
)
def test_batches_are_pieces_of_the_documents_one_after_another(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    group: int,
    batch_rows: int,
    window: int,
    seed: int,
):
    pairs = documents(tmp_path_factory.mktemp("documents"), lengths, group)
    ends = np.cumsum(lengths)
    runs = [np.arange(end - n, end) for end, n in zip(ends, lengths, strict=True) if n >= 2]
    rows_with_neighbours = np.concatenate([np.zeros(0, np.int64), *runs])
    steps = len(rows_with_neighbours) // batch_rows
    settings = OrderSettings(batch_rows=batch_rows, window_rows=window, seed=seed)
    if not steps:
        with pytest.raises(DataError, match=f"found {len(rows_with_neighbours)};"):
            NeighbourOrder(pairs, settings)
        return
    order = NeighbourOrder(pairs, settings)
    assert order.steps_per_epoch == steps
    batches = list(islice(rank_rows(order, 0), 2 * steps))
    for batch in batches:
        first = int(np.searchsorted(rows_with_neighbours, batch.rows[0]))
        np.testing.assert_array_equal(batch.rows, rows_with_neighbours[first : first + batch_rows])
        assert batch.columns["text"] == [
            f"{name} {position}"
            for name, position in zip(batch.columns["document"], batch.columns["position"], strict=True)
        ]
    for epoch in (batches[:steps], batches[steps:]):
        rows = np.sort(np.concatenate([batch.rows for batch in epoch]))
        first = int(np.searchsorted(rows_with_neighbours, rows[0]))
        np.testing.assert_array_equal(rows, rows_with_neighbours[first : first + steps * batch_rows])
    for start in {1, steps // 2, steps, 2 * steps - 1}:
        resumed = islice(rank_rows(order, start), 2 * steps - start)
        for later, batch in zip(resumed, batches[start:], strict=True):
            np.testing.assert_array_equal(later.rows, batch.rows)


def test_documents_shorter_than_a_batch_share_one(tmp_path: Path):
    order = NeighbourOrder(documents(tmp_path, [3, 2, 1, 5]), OrderSettings(batch_rows=10))
    (batch,) = islice(rank_rows(order, 0), order.steps_per_epoch)
    assert batch.columns["document"] == [*3 * ["d0"], *2 * ["d1"], *5 * ["d3"]], "d2 has no neighbours"


def test_sentences_without_a_neighbour_are_left_out_and_reported(tmp_path: Path):
    with listening() as heard:
        NeighbourOrder(documents(tmp_path, [3, 1, 2, 1]), OrderSettings(batch_rows=2))
    assert [line.partition(": ")[2] for line in heard] == [
        "5 of 7 sentences are next to one of their document; the others are left out"
    ]
    with listening() as heard:
        NeighbourOrder(documents(tmp_path, [3, 2]), OrderSettings(batch_rows=2))
    assert heard == []


def test_gaps_in_positions_and_rows_without_a_document_end_a_run(tmp_path: Path):
    table = pa.table(
        {
            "text": list("abcdefghi"),
            "document": [1] * 6 + [None] * 3,
            "position": [0, 1, 2, 7, 8, 9, 10, 11, 12],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    order = NeighbourOrder(
        open_training_rows(SourceSettings(uri=str(tmp_path)), ROLES), OrderSettings(batch_rows=3)
    )
    assert order.steps_per_epoch == 2
    assert {
        "".join(batch.columns["text"]) for batch in islice(rank_rows(order, 0), order.steps_per_epoch)
    } == {
        "abc",
        "def",
    }


def test_epochs_cut_a_document_at_different_rows_and_in_different_orders(tmp_path: Path):
    order = NeighbourOrder(documents(tmp_path, [107], group=50), OrderSettings(batch_rows=10))
    epochs = [
        [int(batch.rows[0]) for batch in islice(rank_rows(order, 10 * epoch), 10)] for epoch in range(6)
    ]
    assert len({min(starts) for starts in epochs}) > 2
    assert all(starts != sorted(starts) for starts in epochs)

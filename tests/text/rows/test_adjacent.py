"""A row is a sentence with other sentences of its document before or after it, whatever the files."""

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.settings.training import OrderSettings, SourceSettings
from pipeline.text.rows import row_groups
from pipeline.text.rows.adjacent import RUNNING_TEXT, AdjacentRows, with_adjacent
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.row_groups import Span
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows

ROLES = ["previous", "text", "next"]


def running_text(
    folder: Path, documents: list[object], positions: list[int], group: int | None = None
) -> TrainingRows:
    """Write sentences named by document and position."""
    texts = [f"{document} {position}" for document, position in zip(documents, positions, strict=True)]
    table = pa.table({"text": texts, "document": documents, "position": positions})
    pq.write_table(table, folder / "x.parquet", row_group_size=group or len(table))
    return open_training_rows(SourceSettings(uri=str(folder)), RUNNING_TEXT)


def triples_of(sentences: TrainingRows) -> AdjacentRows:
    return with_adjacent(sentences, ["previous", "next"], seed=0)


def contents(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[role].to_pylist() for role in (*ROLES, "row")), strict=True))


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9), group=st.integers(3, 40))
def test_every_sentence_with_both_neighbours_in_its_row_group_is_in_one_triple(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], group: int
):
    documents = [f"d{number}" for number, length in enumerate(lengths) for _ in range(length)]
    positions = [position for length in lengths for position in range(length)]
    sentences = running_text(tmp_path_factory.mktemp("triples"), documents, positions, group)
    names = [f"{document} {position}" for document, position in zip(documents, positions, strict=True)]
    expected = [
        (names[row - 1], names[row], names[row + 1], row)
        for row in range(1, len(names) - 1)
        if documents[row - 1] == documents[row + 1] and (row - 1) // group == (row + 1) // group
    ]
    if not expected:
        with pytest.raises(DataError, match="sentences that follow each other"):
            triples_of(sentences)
        return
    triples = triples_of(sentences)
    assert len(triples) == len(expected)
    found = [row for table in triples.read(triples.spans()) for row in contents(table)]
    assert found == expected


def test_gaps_and_rows_without_a_document_end_a_run(tmp_path: Path):
    documents = ["a"] * 7 + [None] * 4 + ["b"] * 3
    positions = [0, 1, 2, 5, 6, 7, 8, 0, 1, 2, 3, 0, 1, 2]
    triples = triples_of(running_text(tmp_path, documents, positions))
    table = pa.concat_tables(triples.read(triples.spans()))
    assert [row for *_, row in contents(table)] == [1, 4, 5, 12]


def test_triples_do_not_depend_on_the_pieces_and_spans_they_are_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    triples = triples_of(running_text(tmp_path, ["a"] * 23, list(range(23))))
    expected = [row for table in triples.read(triples.spans()) for row in contents(table)]
    (span,) = triples.spans()
    for piece in (1, 2, 5):
        monkeypatch.setattr(row_groups, "_PIECE_ROWS", piece)
        for start, stop in ((0, 21), (4, 9), (20, 21)):
            spans = [Span(span.group, start, stop)]
            found = [row for table in triples.read(spans) for row in contents(table)]
            assert found == expected[start:stop]


def test_the_shuffled_order_reads_every_triple_once_an_epoch_and_continues_at_any_step(tmp_path: Path):
    triples = triples_of(running_text(tmp_path, ["a"] * 20 + ["b"] * 16, [*range(20), *range(16)], 12))
    order = ShuffledOrder(triples, OrderSettings(batch_rows=4, window_rows=8, bucket_batches=1))
    batches = [contents(batch.table) for batch in islice(order.batches(0), 2 * order.steps_per_epoch)]
    first = [row for batch in batches[: order.steps_per_epoch] for row in batch]
    assert len(set(first)) == len(first) == len(triples) // 4 * 4
    assert [row for *_, row in first] != sorted(row for *_, row in first)
    for previous, text, next_text, _ in first:
        document, position = text.split()
        assert (previous, next_text) == tuple(f"{document} {int(position) + step}" for step in (-1, 1))
    later = [contents(batch.table) for batch in islice(order.batches(3), len(batches) - 3)]
    assert later == batches[3:]


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9), group=st.integers(3, 40))
def test_every_sentence_before_another_gets_the_next_sentence_and_one_of_the_next_three(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], group: int
):
    documents = [f"d{number}" for number, length in enumerate(lengths) for _ in range(length)]
    positions = [position for length in lengths for position in range(length)]
    sentences = running_text(tmp_path_factory.mktemp("pairs"), documents, positions, group)
    names = [f"{document} {position}" for document, position in zip(documents, positions, strict=True)]
    following = {}
    for row in range(len(names)):
        others = range(row + 1, min(row + 4, len(names)))
        following[row] = [
            names[other]
            for other in others
            if documents[other] == documents[row] and other // group == row // group
        ]
    expected = [(names[row], others[0], row) for row, others in following.items() if others]
    if not expected:
        with pytest.raises(DataError, match="rows with the sentence after"):
            with_adjacent(sentences, ["next", "next3"], seed=0)
        return
    pairs = with_adjacent(sentences, ["next", "next3"], seed=0)
    table = pa.concat_tables(pairs.read(pairs.spans()))
    assert pairs.roles == ("text", "next", "next3")
    assert list(zip(*(table[role].to_pylist() for role in ("text", "next", "row")), strict=True)) == expected
    for row, drawn in zip(table["row"].to_pylist(), table["next3"].to_pylist(), strict=True):
        assert drawn in following[row]


def test_one_of_the_next_three_is_drawn_evenly_by_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    count = 3_000
    sentences = running_text(tmp_path, ["a"] * count, list(range(count)))

    def drawn_positions(seed: int) -> np.ndarray:
        pairs = with_adjacent(sentences, ["next3"], seed)
        table = pa.concat_tables(pairs.read(pairs.spans()))
        return np.array([int(text.split()[1]) for text in table["next3"].to_pylist()])

    steps = drawn_positions(0) - np.arange(count - 1)
    assert set(steps) == {1, 2, 3}
    assert np.abs(np.bincount(steps)[1:] - count / 3).max() < 5 * np.sqrt(count * 2 / 9)
    assert (drawn_positions(1) != drawn_positions(0)).mean() > 0.5
    monkeypatch.setattr(row_groups, "_PIECE_ROWS", 7)
    np.testing.assert_array_equal(drawn_positions(0) - np.arange(count - 1), steps)


def test_a_changed_file_is_noticed(tmp_path: Path):
    triples = triples_of(running_text(tmp_path, ["a"] * 9, list(range(9))))
    running_text(tmp_path, ["a"] * 5, list(range(5)))
    with pytest.raises(DataError, match="train on files that do not change"):
        list(triples.read(triples.spans()))


def test_other_columns_belong_to_the_sentence_in_the_middle(tmp_path: Path):
    table = pa.table(
        {"text": list("abcd"), "document": [1] * 4, "position": range(4), "score": np.arange(4) / 2}
    )
    pq.write_table(table, tmp_path / "x.parquet")
    triples = triples_of(open_training_rows(SourceSettings(uri=str(tmp_path)), [*RUNNING_TEXT, "score"]))
    (table_of_triples,) = triples.read(triples.spans())
    assert table_of_triples["score"].to_pylist() == pytest.approx([0.1, 0.2])
    assert triples.roles == ("text", "score", "previous", "next")

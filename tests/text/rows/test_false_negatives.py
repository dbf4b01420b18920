"""False negatives in a batch are found, masked, or moved to other batches; a double loop is the oracle."""

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settings.training import OrderSettings, SourceSettings
from pipeline.text.rows.batches import RankSlice, rank_rows
from pipeline.text.rows.false_negatives import (
    false_negatives,
    repeats_earlier_row,
    separate_repeats,
    text_codes,
)
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.training_rows import open_training_rows

letters = st.sampled_from("abcdefgh")
triples = st.lists(st.tuples(letters, letters, letters), min_size=1, max_size=12)


def table(rows: list[tuple[str, str, str]]) -> pa.Table:
    columns = zip(("anchor", "positive", "negative"), zip(*rows, strict=True), strict=True)
    return pa.table({role: pa.array(texts, pa.large_string()) for role, texts in columns})


def repeats(rows: list[tuple[str, ...]]) -> list[bool]:
    return [any(set(row) & set(other) for other in rows[:number]) for number, row in enumerate(rows)]


@given(rows=triples)
def test_repeated_rows_share_an_anchor_or_a_positive_with_an_earlier_row(
    rows: list[tuple[str, str, str]],
):
    codes = text_codes(table(rows), ["anchor", "positive"])
    assert repeats_earlier_row(codes).tolist() == repeats([row[:2] for row in rows])


@given(rows=triples, cut=st.integers(0, 12))
def test_false_negative_masks_equal_a_double_loop(rows: list[tuple[str, str, str]], cut: int):
    first = min(cut, len(rows) - 1)
    for bounds in ((0, len(rows)), (0, first), (first, len(rows))):
        expected = [
            [bool({*other[:2]} & {*rows[row][:2]}) and number != row for number, other in enumerate(rows)]
            + [other[2] in rows[row][:2] for other in rows]
            for row in range(*bounds)
        ]
        found = false_negatives(table(rows), *bounds)["anchor"]
        np.testing.assert_array_equal(found, np.array(expected, bool).reshape(found.shape))


@given(rows=triples)
def test_second_negatives_have_columns_of_their_own(rows: list[tuple[str, str, str]]):
    reversed_texts = pa.array([row[2] for row in rows[::-1]], pa.large_string())
    with_second = table(rows).append_column("negative2", reversed_texts)
    found, first = (false_negatives(batch, 0, len(rows))["anchor"] for batch in (with_second, table(rows)))
    expected = [[other[2] in row[:2] for other in rows[::-1]] for row in rows]
    np.testing.assert_array_equal(found, np.concatenate([first, np.array(expected, bool)], axis=1))


@given(rows=triples, cut=st.integers(0, 12))
def test_next_sentences_of_rows_that_share_a_text_are_masked(rows: list[tuple[str, str, str]], cut: int):
    first, pairs = min(cut, len(rows) - 1), [row[:2] for row in rows]
    columns = zip(("text", "next"), zip(*pairs, strict=True), strict=True)
    batch = pa.table(
        {role: pa.chunked_array([pa.array(texts, pa.large_string())]) for role, texts in columns}
    )
    expected = [
        [bool({*other} & {*pairs[row]}) and number != row for number, other in enumerate(pairs)]
        for row in range(first, len(pairs))
    ]
    found = false_negatives(batch, first, len(pairs))["next"]
    np.testing.assert_array_equal(found, expected)


def test_other_positives_of_an_anchor_are_masked_and_its_hard_negatives_are_not():
    rows = [("a man", "someone", "nobody"), ("a man", "a person", "a dog"), ("a cat", "an animal", "a bird")]
    assert false_negatives(table(rows), 0, 3)["anchor"].astype(int).tolist() == [
        [0, 1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]


@given(rows=triples)
def test_texts_are_compared_with_texts_only(rows: list[tuple[str, str, str]]):
    texts = pa.array([row[2] for row in rows], pa.large_string())
    found = false_negatives(table(rows).append_column("text", texts), 0, len(rows))
    assert found.keys() == {"text", "anchor"}
    np.testing.assert_array_equal(
        found["text"], false_negatives(pa.table({"text": texts}), 0, len(rows))["text"]
    )
    np.testing.assert_array_equal(found["anchor"], false_negatives(table(rows), 0, len(rows))["anchor"])


@given(rows=triples)
def test_copies_of_a_text_are_false_negatives(rows: list[tuple[str, str, str]]):
    texts = np.array([row[0] for row in rows])
    found = false_negatives(pa.table({"text": pa.array(texts.tolist(), pa.large_string())}), 0, len(rows))[
        "text"
    ]
    np.testing.assert_array_equal(found, (texts[:, None] == texts) & ~np.eye(len(rows), dtype=bool))


@given(
    seed=st.integers(0, 1_000), batches=st.integers(1, 6), size=st.integers(1, 5), distinct=st.integers(1, 40)
)
def test_exchanges_keep_every_row_and_never_add_repeats(seed: int, batches: int, size: int, distinct: int):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, distinct, (batches * size, 2))
    order = rng.permutation(batches * size).reshape(batches, size)
    separated = separate_repeats(order, codes)
    assert sorted(separated.ravel().tolist()) == list(range(batches * size))
    before, after = (
        sum(sum(repeats([tuple(codes[row]) for row in batch])) for batch in batches)
        for batches in (order, separated)
    )
    assert after <= before


def test_all_repeats_are_separated_if_batches_have_room():
    codes = np.repeat(np.arange(32), 4)[:, None]  # each text four times, as captions of one picture
    order = separate_repeats(np.arange(128).reshape(16, 8), codes)
    assert not any(len(set(codes[rows, 0].tolist())) < 8 for rows in order)


def test_a_repeated_row_is_exchanged_with_a_batch_that_lacks_its_text():
    codes = np.arange(100, 140)[:, None]
    order = np.arange(40).reshape(5, 8)
    codes[[0, 1, 8, 16, 24]] = 0
    separated = separate_repeats(order, codes)
    assert [int((codes[rows] == 0).sum()) for rows in separated] == [1, 1, 1, 1, 1]
    assert (separated != order).sum() == 2


def test_repeats_are_counted_and_kept_dropped_or_masked_by_the_setting(tmp_path: Path):
    texts = [f"text {row // 4}" for row in range(256)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet")
    pairs = open_training_rows(SourceSettings(uri=str(tmp_path)), ["text"])
    orders = {
        setting: ShuffledOrder(pairs, OrderSettings(batch_rows=16, repeats=setting))
        for setting in ("keep", "drop", "mask")
    }
    rows = {setting: list(islice(rank_rows(order, 0), 16)) for setting, order in orders.items()}
    for setting, parts in rows.items():
        assert [batch.counts["repeated"] for batch in parts] == [
            16 - len(set(batch.columns["text"])) for batch in parts
        ], setting
    assert sum(batch.counts["repeated"] for batch in rows["keep"]) > 0
    assert sum(batch.counts["repeated"] for batch in rows["drop"]) == 0
    assert sum(batch.counts["exchanged"] for batch in rows["drop"]) > 0
    assert sorted(np.concatenate([batch.rows for batch in rows["drop"]]).tolist()) == list(range(256))
    assert not any(batch.false_negatives for batch in rows["keep"])
    halves = [list(islice(rank_rows(orders["mask"], 0, RankSlice(rank, 2)), 16)) for rank in (0, 1)]
    for step, batch in enumerate(rows["mask"]):
        assert batch.false_negatives["text"].any(1).sum() >= batch.counts["repeated"]
        np.testing.assert_array_equal(
            np.concatenate([half[step].false_negatives["text"] for half in halves]),
            batch.false_negatives["text"],
        )


def test_codes_are_equal_for_equal_texts_across_columns_and_chunks():
    texts = pa.chunked_array([["a", "b"], ["a"]], pa.large_string())
    codes = text_codes(pa.table({"anchor": texts, "positive": texts.take([1, 0, 2])}), ["anchor", "positive"])
    assert codes[0, 0] == codes[2, 0] == codes[1, 1] == codes[2, 1] != codes[1, 0] == codes[0, 1]


def test_a_missing_hard_negative_is_a_candidate_of_no_row(tmp_path: Path):
    negatives = ["n0", None, "n2", None]
    names = ["anchor", "positive", "negative"]
    texts = [[f"a{row}" for row in range(4)], [f"p{row}" for row in range(4)], negatives]
    pq.write_table(pa.table(dict(zip(names, texts, strict=True))), tmp_path / "rows.parquet")
    rows = open_training_rows(
        SourceSettings(uri=str(tmp_path / "rows.parquet")), ["anchor", "positive"], names
    )
    for repeats in ("keep", "mask"):
        order = ShuffledOrder(rows, OrderSettings(batch_rows=4, repeats=repeats))
        whole = next(rank_rows(order, 0))
        missing = np.array([text == " " for text in whole.columns["negative"]])
        assert missing.sum() == 2
        expected = np.tile(np.concatenate([np.zeros(4, bool), missing]), (4, 1))
        np.testing.assert_array_equal(whole.false_negatives["anchor"], expected)
        second = next(rank_rows(order, 0, RankSlice(1, 2)))
        np.testing.assert_array_equal(second.false_negatives["anchor"], expected[2:])
        alone = next(rank_rows(order, 0, RankSlice(1, 2), across_ranks=False))
        np.testing.assert_array_equal(alone.false_negatives["anchor"], expected[2:, [2, 3, 6, 7]])

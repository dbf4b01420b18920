"""Batches prepared ahead of time equal those prepared on demand."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.objectives import NO_PEERS
from pipeline.text.rows.batches import GlobalBatch, RankSlice, rank_rows
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.batches import rank_batches
from pipeline.train.gather import Ranks
from tests.objectives.tiny import texts, tokenize


@dataclass
class Counting:
    """Order with six rows per batch, without end; step `bad` fails."""

    bad: int = -1
    batch_rows: int = 6
    steps_per_epoch: int = 10
    opened: int = 0

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        for step in range(start, 1_000):
            if step == self.bad:
                raise DataError("rows", "numbers", "letters", "mend them")
            self.opened += 1
            anchors, positives = (
                pa.array(texts(6, 2 * step + second), pa.large_string()) for second in (0, 1)
            )
            columns = {
                "anchor": anchors,
                "positive": positives,
                "score": np.arange(6.0),
                "row": np.arange(6 * step, 6 * step + 6),
            }
            yield GlobalBatch("there", pa.table(columns), exchanged=step, masks_false_negatives=True)


class Counted:
    """Tokenizer that records its texts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: Sequence[str]) -> Tokens:
        self.seen += texts
        return tokenize(texts)


def assert_equal(found: Tokens, expected: Tokens) -> None:
    for name in ("ids", "offsets", "truncated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_gets_its_part_of_columns_rows_and_tokens(rank: int):
    made, rows = (
        rank_batches(Counting(), tokenize, start=3, rank_slice=RankSlice(rank, 2), peers=Ranks()),
        rank_rows(Counting(), 3, RankSlice(rank, 2)),
    )
    for _ in range(4):
        batch, expected = next(made), next(rows)
        assert batch.columns.keys() == expected.columns.keys()
        for role in ("anchor", "positive"):
            assert batch.column(role) == expected.columns[role]
            assert_equal(batch.tokens(role), tokenize(expected.columns[role]))
        np.testing.assert_array_equal(batch.rows, expected.rows)
        np.testing.assert_equal(batch.false_negatives, expected.false_negatives)
        assert (batch.source, batch.counts) == ("there", expected.counts)
    made.close()


def test_false_negatives_cover_the_gathered_candidates():
    for peers, seen in ((Ranks(), 6), (NO_PEERS, 3)):
        made = rank_batches(Counting(), tokenize, rank_slice=RankSlice(1, 2), peers=peers)
        assert next(made).false_negatives["anchor"].shape == (3, seen)
        made.close()


def test_texts_are_tokenized_once():
    tokenizer = Counted()
    made = rank_batches(Counting(), tokenizer)
    batch = next(made)
    made.close()
    before, own = len(tokenizer.seen), batch.column("anchor")
    assert_equal(batch.of_rows(np.array([4, 1])).tokens("anchor"), tokenize([own[4], own[1]]))
    assert_equal(
        replace(batch, columns={"text": [*own[:2], *batch.column("positive")[:4]]}).tokens("text"),
        tokenize([*own[:2], *batch.column("positive")[:4]]),
    )
    assert len(tokenizer.seen) == before
    assert_equal(
        replace(batch, columns={"text": [f"about {text}" for text in own]}).tokens("text"),
        tokenize([f"about {text}" for text in own]),
    )
    assert tokenizer.seen[before:] == [f"about {text}" for text in own]


def test_an_error_is_raised_when_its_batch_is_due():
    made = rank_batches(Counting(bad=2), tokenize)
    assert [next(made).rows[0], next(made).rows[0]] == [0, 6]
    with pytest.raises(DataError, match="mend them"):
        next(made)


def prefetching_threads() -> int:
    return sum(thread.name == "manta-prefetch" for thread in threading.enumerate())


def test_few_batches_are_prepared_and_closing_ends_the_thread():
    order, before = Counting(), prefetching_threads()
    made = rank_batches(order, tokenize)
    next(made)
    deadline = time.monotonic() + 5
    while order.opened < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert order.opened == 4  # one taken, two waiting, one in preparation
    assert prefetching_threads() == before + 1
    made.close()
    assert prefetching_threads() == before


def test_batches_that_cannot_be_split_equally_are_refused():
    with pytest.raises(ConfigError, match=r"^train\.order\.batch_rows: .*share equally"):
        rank_batches(Counting(), tokenize, rank_slice=RankSlice(0, 4))

"""Batches prepared ahead of time equal those prepared on demand."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.objectives import NO_PEERS, Peers
from pipeline.text.rows.batches import GlobalBatch, RankSlice, rank_rows
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.batches import rank_batches
from pipeline.train.gather import Ranks
from tests.objectives.tiny import texts, tokenize


@dataclass
class NumberedRows:
    """Order whose batches have rows 0 to 5, 6 to 11 and so on; counts the batches, and step `bad` fails."""

    bad: int = -1
    batch_rows: int = 6
    steps_per_epoch: int = 10
    opened: int = 0

    def batches(self, start: int) -> Iterator[GlobalBatch]:
        for step in range(start, 1_000):
            if step == self.bad:
                raise DataError("rows", "numbers", "letters", "mend them")
            self.opened += 1
            columns = {
                "anchor": pa.array(texts(6, 2 * step), pa.large_string()),
                "positive": pa.array(texts(6, 2 * step + 1), pa.large_string()),
                "score": np.arange(6.0),
                "row": np.arange(6 * step, 6 * step + 6),
            }
            yield GlobalBatch("there", pa.table(columns), exchanged=step, masks_false_negatives=True)


class RecordingTokenizer:
    """Tokenizer that records its texts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: Sequence[str]) -> Tokens:
        self.seen += texts
        return tokenize(texts)


def assert_equal_tokens(found: Tokens, expected: Tokens) -> None:
    for name in ("ids", "offsets", "truncated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_gets_its_part_of_columns_rows_and_tokens(rank: int):
    batches = rank_batches(NumberedRows(), tokenize, start=3, rank_slice=RankSlice(rank, 2), peers=Ranks())
    rows = rank_rows(NumberedRows(), 3, RankSlice(rank, 2))
    for _ in range(4):
        batch, expected = next(batches), next(rows)
        assert batch.columns.keys() == expected.columns.keys()
        for role in ("anchor", "positive"):
            assert batch.column(role) == expected.columns[role]
            assert_equal_tokens(batch.tokens(role), tokenize(expected.columns[role]))
        np.testing.assert_array_equal(batch.rows, expected.rows)
        np.testing.assert_equal(batch.false_negatives, expected.false_negatives)
        assert (batch.source, batch.counts) == ("there", expected.counts)
    batches.close()


@pytest.mark.parametrize(("peers", "candidates"), [(Ranks(), 6), (NO_PEERS, 3)])
def test_false_negatives_cover_the_gathered_candidates(peers: Peers, candidates: int):
    batches = rank_batches(NumberedRows(), tokenize, rank_slice=RankSlice(1, 2), peers=peers)
    assert next(batches).false_negatives["anchor"].shape == (3, candidates)
    batches.close()


def test_known_texts_are_tokenized_once_and_new_ones_when_they_are_needed():
    tokenizer = RecordingTokenizer()
    batches = rank_batches(NumberedRows(), tokenizer)
    batch = next(batches)
    batches.close()
    before, anchors, positives = len(tokenizer.seen), batch.column("anchor"), batch.column("positive")
    assert_equal_tokens(batch.of_rows(np.array([4, 1])).tokens("anchor"), tokenize([anchors[4], anchors[1]]))
    mixed = [*anchors[:2], *positives[:4]]
    assert_equal_tokens(replace(batch, columns={"text": mixed}).tokens("text"), tokenize(mixed))
    assert len(tokenizer.seen) == before
    new = [f"about {text}" for text in anchors]
    assert_equal_tokens(replace(batch, columns={"text": new}).tokens("text"), tokenize(new))
    assert tokenizer.seen[before:] == new


def test_an_error_is_raised_only_when_its_batch_is_due():
    batches = rank_batches(NumberedRows(bad=2), tokenize)
    assert [next(batches).rows[0], next(batches).rows[0]] == [0, 6]
    with pytest.raises(DataError, match="mend them"):
        next(batches)


def prefetching_threads() -> int:
    return sum(thread.name == "manta-prefetch" for thread in threading.enumerate())


def test_few_batches_are_prepared_and_closing_ends_the_thread():
    order, before = NumberedRows(), prefetching_threads()
    batches = rank_batches(order, tokenize)
    next(batches)
    deadline = time.monotonic() + 5
    while order.opened < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert order.opened == 4  # one taken, two waiting, one in preparation
    assert prefetching_threads() == before + 1
    batches.close()
    assert prefetching_threads() == before


def test_batches_that_cannot_be_split_equally_are_refused():
    with pytest.raises(ConfigError, match=r"^train\.order\.batch_rows: .*share equally"):
        rank_batches(NumberedRows(), tokenize, rank_slice=RankSlice(0, 4))

"""Units of tasks hold every sentence once, longest first, have bounded size, and are read by text."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.flows.evaluate.sentences import Sentences, SpaceVectors, _cuts, _write_units, clean_sentences
from pipeline.store.files.open_store import open_store


@given(st.lists(st.integers(1, 300), min_size=1, max_size=3000), st.integers(1, 500), st.integers(1, 16))
def test_units_hold_every_sentence_once_within_the_size_limit(lengths: list[int], most: int, workers: int):
    cuts = _cuts(np.sort(lengths)[::-1], most, workers)
    assert (cuts[0], cuts[-1]) == (0, len(lengths))
    sizes = np.diff(cuts)
    assert sizes.min() >= 1
    assert sizes.max() <= most


def test_units_of_longer_sentences_hold_fewer_of_them():
    lengths = np.sort(np.random.default_rng(0).integers(10, 400, 20_000))[::-1]
    cuts = _cuts(lengths, 10_000, 4)
    work = np.add.reduceat(lengths, cuts[:-1])
    assert len(work) == 16
    assert work.max() < 1.2 * work.min()
    assert cuts[1] < len(lengths) - cuts[-2]


def test_units_hold_each_distinct_sentence_once_longest_first(tmp_path: Path):
    sentences = Sentences.of(["two dogs", " two dogs\n", "a girl reads a book", "", "  ", "cat", "\ud800"])
    units = _write_units(sentences, open_store(tmp_path), 2, 1)
    texts = [text for unit in units for text in pq.read_table(tmp_path / unit.path)["text"].to_pylist()]
    assert texts == ["a girl reads a book", "two dogs", "cat", " ", "\ufffd"]
    assert max(unit.rows for unit in units) <= 2
    assert units == _write_units(sentences, open_store(tmp_path), 2, 1)


def test_blank_texts_are_kept_and_an_empty_list_is_allowed():
    assert clean_sentences([" a ", "", "\t"]).to_pylist() == ["a", " ", " "]
    assert len(Sentences.of([])) == 0


def test_a_sentence_without_a_stored_vector_is_an_error(tmp_path: Path):
    with pytest.raises(DataError, match="none for 1 of 1"):
        SpaceVectors(open_store(tmp_path), "space", 4)(["never seen"])

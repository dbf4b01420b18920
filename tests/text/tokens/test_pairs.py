"""Pairs of texts: the tokens, types and truncation of transformers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers

from pipeline.errors import ModelError
from pipeline.text.tokens.pairs import PairFormat
from tests.models.folders import LONG, TEXTS, folder_at, save_folder
from tests.models.pair_folders import pair_folder

LEFT = [*TEXTS, LONG, LONG, "x", LONG]
RIGHT = [*reversed(TEXTS), LONG, "Two dogs run.", LONG, "a " * 29]


@pytest.mark.parametrize("side", ["end", "start"])
@pytest.mark.parametrize("max_length", [12, 39, 64])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_pairs_are_those_of_transformers(tmp_path: Path, family: str, max_length: int, side: str):
    folder = replace(folder_at(pair_folder(tmp_path / family, family)), truncation_side=side)
    tokenizer = folder.tokenizer()
    form = PairFormat.load(folder.path, tokenizer, folder.config)
    found = form.join(tokenizer(LEFT), tokenizer(RIGHT), max_length)
    oracle = transformers.AutoTokenizer.from_pretrained(
        folder.path, truncation_side={"end": "right", "start": "left"}[side]
    )
    expected = oracle(LEFT, RIGHT, truncation=True, max_length=max_length, return_token_type_ids=True)
    for row, (ids, types) in enumerate(zip(expected["input_ids"], expected["token_type_ids"], strict=True)):
        tokens = slice(found.offsets[row], found.offsets[row + 1])
        assert found.ids[tokens].tolist() == ids
        if family == "bert":
            assert found.types[tokens].tolist() == types
    lengths = [len(ids) for ids in oracle(LEFT, RIGHT)["input_ids"]]
    assert found.truncated.tolist() == [length > max_length for length in lengths]
    assert (found.types is None) == (family == "roberta")


def test_rows_of_pairs_keep_their_types(tmp_path: Path):
    folder = folder_at(pair_folder(tmp_path / "bert"))
    tokenizer = folder.tokenizer()
    pairs = PairFormat.load(folder.path, tokenizer, folder.config).join(
        tokenizer(["Two dogs run.", "x", ""]), tokenizer(["x", "A girl", "x"])
    )
    rows = pairs.of_rows(np.array([2, 0]))
    first, third = (pairs.types[pairs.offsets[row] : pairs.offsets[row + 1]] for row in (0, 2))
    np.testing.assert_array_equal(rows.types, np.concatenate([third, first]))
    joined = pairs.joined([tokenizer(["x"]), rows])
    np.testing.assert_array_equal(joined.types[-len(rows.types) :], rows.types)
    assert not joined.types[: -len(rows.types)].any()


def test_a_tokenizer_that_does_not_separate_two_texts_is_refused(tmp_path: Path):
    folder = folder_at(save_folder(tmp_path / "bert", "bert"))
    with pytest.raises(ModelError, match="a special token between the two texts of a pair, found none"):
        PairFormat.load(folder.path, folder.tokenizer(), folder.config)

"""Tokens of plain text without a row in the word table are found when the encoder is loaded."""

from pathlib import Path

import pytest
import tokenizers

from pipeline.errors import ModelError
from tests.models.folders import encoder_at, save_folder


def add_tokens(folder: Path, count: int, *, special: bool) -> None:
    """Add tokens to a tokenizer of about 216; the word table has 300 rows."""
    file = str(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(file)
    names = [f"snow{number}" for number in range(count)]
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(names)
    tokenizer.save(file)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_more_tokens_than_rows_are_refused(tmp_path: Path, family: str):
    folder = save_folder(tmp_path, family)
    encoder_at(folder)
    add_tokens(folder, 300, special=False)
    with pytest.raises(ModelError, match=r"below vocab_size 300, found \d+ tokens without a row .*: 'snow"):
        encoder_at(folder)


def test_special_tokens_that_no_plain_text_has_are_accepted(tmp_path: Path):
    folder = save_folder(tmp_path, "bert")
    add_tokens(folder, 300, special=True)
    assert encoder_at(folder).encode("Two dogs run.").any()

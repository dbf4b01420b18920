"""A folder whose tokenizer would fail at a text is refused when it is opened."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from pipeline.errors import ModelError
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.tokenizer_errors import tokenizer_errors
from tests.models.folders import edit_json

_BYTES = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
_BYTE_NAMES = {f"<0x{byte:02X}>": byte for byte in range(256)}
INCOMPLETE = {
    "WordPiece": models.WordPiece({"a": 0}, unk_token="[UNK]"),
    "WordLevel": models.WordLevel({"a": 0}, unk_token="[UNK]"),
    "BPE": models.BPE({"a": 0}, [], unk_token="[UNK]"),
    "BPE with some bytes": models.BPE({"a": 0, "<0xE2>": 1}, [], unk_token="[UNK]", byte_fallback=True),
    "Unigram": models.Unigram([("a", 0.0)], None, False),
}
COMPLETE = {
    "WordPiece": models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"),
    "WordLevel": models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"),
    "BPE": models.BPE({"a": 0}, []),
    "BPE with bytes": models.BPE({"a": 256, **_BYTE_NAMES}, [], unk_token="[UNK]", byte_fallback=True),
    "byte-level BPE": models.BPE(_BYTES, [], unk_token="[UNK]"),
    "Unigram": models.Unigram([("a", 0.0), ("<unk>", 0.0)], 1, False),
}


def folder_of(folder: Path, model: models.Model, *, byte_level: bool = False) -> Path:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel() if byte_level else pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("[UNK]")] if model.token_to_id("[UNK]") is not None else [])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_vocabulary_that_fails_at_unknown_characters_is_refused(tmp_path: Path, name: str):
    folder = folder_of(tmp_path, INCOMPLETE[name])
    with pytest.raises(Exception, match=r"(?i)unk"):
        Tokenizer.from_file(str(folder / "tokenizer.json")).encode("☃")
    with pytest.raises(ModelError, match=r"tokenizer\.json: expected the unknown token .* in the vocabulary"):
        load_tokenizer(folder, 64)


@pytest.mark.parametrize("name", COMPLETE)
def test_a_vocabulary_that_reads_any_character_is_accepted(tmp_path: Path, name: str):
    folder = folder_of(tmp_path, COMPLETE[name], byte_level=name.startswith("byte"))
    tokens = load_tokenizer(folder, 64)(["a ☃ 😀 \u0378"])
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a ☃ 😀 \u0378").ids
    assert tokens.ids.tolist() == expected


PANICS = {
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {},
    },
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    "pre_tokenizer": {"type": "FixedLength", "length": 0},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": ["a b"]},
}


@pytest.mark.parametrize("part", PANICS)
def test_a_tokenizer_with_which_the_library_panics_is_refused(tmp_path: Path, part: str):
    folder = folder_of(tmp_path, COMPLETE["WordPiece"])
    edit_json(folder / "tokenizer.json", **{part: PANICS[part]})
    with pytest.raises(ModelError, match="restore the tokenizer's files"):
        load_tokenizer(folder, 64)


def test_a_panic_at_a_text_is_an_error_of_the_model(tmp_path: Path):
    panic = Tokenizer(COMPLETE["WordPiece"])
    panic.pre_tokenizer = pre_tokenizers.FixedLength(length=0)
    message = "model: expected a text, found chunk size must be non-zero"
    with pytest.raises(ModelError, match=message), tokenizer_errors(Path("model"), "a text"):
        panic.encode_batch_fast(["a ☃"])


def test_a_huge_id_is_refused_before_arrays_of_its_size_are_made(tmp_path: Path):
    folder = folder_of(tmp_path, models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"]["a"] = 2**27
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"expected ids of tokens below 16,777,216, found 134,217,728"):
        load_tokenizer(folder, 64)


def test_a_tokenizer_that_draws_tokens_at_random_is_refused(tmp_path: Path):
    folder = folder_of(tmp_path, models.BPE({"a": 0}, [], dropout=0.5))
    with pytest.raises(ModelError, match=r"expected a model without dropout.*found dropout 0\.5"):
        load_tokenizer(folder, 64)

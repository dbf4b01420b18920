"""A text is truncated before it is put into a template, so every row has one mask at a known position."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from pydantic import ValidationError

from pipeline.errors import ModelError
from pipeline.models.folder.locate import locate
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.templates import apply_template, mask_token, template_frame, wrap_tokenizer
from pipeline.text.tokens.tokens import Tokenizer, Tokens

MINILM = locate("all-MiniLM-L6-v2")
TEMPLATE = 'This sentence of "[X]" means [MASK].'
MASK = 103
TEXTS = [
    "two dogs run",
    "",
    "a [MASK] in the text [MASK]",
    "one two three four five six seven eight nine ten eleven twelve " * 3,
    "[SEP] [CLS]",
]


def tokenizer(template: str = TEMPLATE, max_length: int = 20, folder=MINILM, **options) -> Tokenizer:
    return apply_template(load_tokenizer(folder, max_length, **options), folder, template, masked=True)


def rows(values: np.ndarray, tokens: Tokens) -> list[list]:
    return [row.tolist() for row in np.split(values, tokens.offsets[1:-1])]


def pieces(text: str) -> list[int]:
    backend = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    backend.no_padding()
    return backend.encode(text, add_special_tokens=False).ids


def test_tokens_equal_the_published_template():
    tokens = tokenizer()(["two dogs run"])
    backend = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    assert [backend.id_to_token(number) for number in tokens.ids] == [
        "[CLS]",
        "this",
        "sentence",
        "of",
        '"',
        "two",
        "dogs",
        "run",
        '"',
        "means",
        "[MASK]",
        ".",
        "[SEP]",
    ]
    assert (len(tokenizer().prefix), np.flatnonzero(tokens.kept).tolist()) == (5, [10])


@pytest.mark.parametrize("template", [TEMPLATE, "[MASK] is what [X] means", "[X] [MASK]"])
def test_every_row_keeps_the_mask_of_its_template(template):
    with_template = tokenizer(template)
    tokens = with_template(TEXTS)
    before, after = template.split("[X]")
    expected = [
        [101, *pieces(before), *pieces(text)[: with_template.max_text_tokens], *pieces(after), 102]
        for text in TEXTS
    ]
    assert rows(tokens.ids, tokens) == expected
    assert tokens.truncated.tolist() == [len(pieces(text)) > with_template.max_text_tokens for text in TEXTS]
    assert tokens.lengths.max() <= 20
    for row, kept, in_template in zip(
        expected, rows(tokens.kept, tokens), rows(tokens.in_template, tokens), strict=True
    ):
        (mask_position,) = np.flatnonzero(kept)
        assert mask_position == (
            len(row) - 1 - row[::-1].index(MASK) if "[MASK]" in after else row.index(MASK)
        )
        assert np.flatnonzero(in_template).tolist() == [
            *range(len(with_template.prefix)),
            *range(len(row) - len(with_template.suffix), len(row)),
        ]


@pytest.mark.parametrize("truncation_side", ["start", "end"])
def test_replacing_the_frame_equals_tokenizing_with_the_template(truncation_side):
    plain = load_tokenizer(MINILM, 256, truncation_side=truncation_side)
    with_template = apply_template(
        load_tokenizer(MINILM, 18, truncation_side=truncation_side),
        MINILM,
        "It says [X] : [MASK]",
        masked=True,
    )
    expected = with_template(TEXTS)
    for tokens, specials in ((plain(TEXTS), (1, 1)), (tokenizer(max_length=256)(TEXTS), (5, 5))):
        found = template_frame(with_template).apply(
            tokens, specials, limit=with_template.max_text_tokens, truncation_side=truncation_side
        )
        for name in ("ids", "offsets", "truncated", "kept", "in_template"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_selected_and_concatenated_rows_keep_their_masks():
    tokens = tokenizer()(TEXTS)
    parts = [tokens.of_rows(np.array([3])), tokens.of_rows(np.array([0, 2]))]
    expected = tokenizer()([TEXTS[3], TEXTS[0], TEXTS[2]])
    for name in ("ids", "offsets", "truncated", "kept", "in_template"):
        np.testing.assert_array_equal(getattr(Tokens.joined(parts), name), getattr(expected, name))


def test_ends_sentences_adds_a_missing_full_stop():
    tokens = replace(load_tokenizer(MINILM, 20), ends_sentences=True)(
        ["two dogs ", "two dogs.", "two?", 'he message "no"', "", "two!"]
    )
    assert rows(tokens.ids, tokens) == [
        [101, *pieces(text), 102]
        for text in ("two dogs.", "two dogs.", "two?", 'he message "no"', "", "two!.")
    ]


def test_wrapped_tokenizer_file_gives_other_libraries_the_same_rows(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(MINILM / name, tmp_path)
    expected = tokenizer()(TEXTS)
    wrap_tokenizer(tmp_path, tokenizer().prefix, tokenizer().suffix)
    wrapped = apply_template(load_tokenizer(tmp_path, 20), tmp_path, None, masked=True)
    assert (wrapped.prefix, wrapped.suffix, wrapped.mask) == (
        tokenizer().prefix,
        tokenizer().suffix,
        tokenizer().mask,
    )
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.no_padding()
    library.enable_truncation(20)
    assert [library.encode(text).ids for text in TEXTS] == rows(expected.ids, expected)
    with pytest.raises(ModelError, match="an encoder without a template of its own"):
        apply_template(load_tokenizer(tmp_path, 20), tmp_path, TEMPLATE, masked=True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a [MASK]", r"\[X\] once"),
        ("[X] [X] [MASK]", r"\[X\] once"),
        ("[X]", r"\[MASK\] once"),
        ("", r"\[X\] once"),
    ],
)
def test_settings_require_one_text_and_one_mask(template, message):
    with pytest.raises(ValidationError, match=message):
        EncoderSettings(template=template)


def test_unusable_templates_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"max_length.*found 10, of which 10 belong to the template"):
        tokenizer(max_length=10)
    with pytest.raises(ModelError, match=r"one \[MASK\] around a text, found 0; give encoder.template"):
        apply_template(load_tokenizer(MINILM, 20), MINILM, None, masked=True)
    tokenizer_json = json.loads((MINILM / "tokenizer.json").read_text())
    tokenizer_json["model"]["vocab"]["nomask"] = tokenizer_json["model"]["vocab"].pop("[MASK]")
    tokenizer_json["added_tokens"] = [
        token for token in tokenizer_json["added_tokens"] if token["content"] != "[MASK]"
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    with pytest.raises(ModelError, match="a tokenizer with a mask token"):
        tokenizer(folder=tmp_path)


def test_the_word_none_is_not_a_mask_token(tmp_path):
    """A missing mask token in tokenizer_config.json is not read as the word None of the vocabulary."""
    vocabulary = {"[UNK]": 0, "None": 1, "[MASK]": 2}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert mask_token(tmp_path, vocabulary) == "[MASK]"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": {"content": "None"}}))
    assert mask_token(tmp_path, vocabulary) == "None"

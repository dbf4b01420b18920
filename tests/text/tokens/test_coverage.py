"""Unknown and lost tokens are counted for every kind of tokenizer, script by script."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from pipeline.models.folder.word_vectors import load_words
from pipeline.text.tokens.coverage import (
    CoverageCounter,
    ScriptCoverage,
    token_counts,
    token_facts,
    token_warnings,
)
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.scripts import SCRIPTS, scripts_of
from pipeline.text.tokens.tokens import Tokenizer
from tests.models.folders import LONG, TEXTS, byte_level, word_piece

ENGLISH, CHINESE, RUSSIAN = "Two dogs run on the grass.", "我们在学校学习中文", "Привет, как дела?"
MIXED = [ENGLISH, CHINESE, f"{ENGLISH} {CHINESE}", RUSSIAN, "x", "\U0001f600", LONG]


def unigram_model(*, byte_fallback: bool) -> tokenizers.Tokenizer:
    """A unigram model of single letters, with or without a token for every byte."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    vocabulary = [
        ("[UNK]", 0.0),
        *((piece, -2.0) for piece in ("▁", *"abcdefghijklmnopqrstuvwxyzTwo.")),
        *((piece, -9.0) for piece in byte_tokens),
    ]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=byte_fallback))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return backend


def save_and_load(
    folder: Path, backend: tokenizers.Tokenizer, max_length: int = 512, **options: str
) -> Tokenizer:
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder, max_length, **options)


def token_names(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    return [backend.id_to_token(number) for number in backend.encode(text, add_special_tokens=False).ids]


KINDS: dict[str, tuple[Callable[[], tokenizers.Tokenizer], Callable[[str], bool]]] = {
    "word pieces": (word_piece, lambda token: token == "[UNK]"),
    "bytes": (byte_level, lambda token: False),
    "unigram": (lambda: unigram_model(byte_fallback=False), lambda token: token == "[UNK]"),
    "unigram with bytes": (lambda: unigram_model(byte_fallback=True), lambda token: token.startswith("<0x")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["", "dogs: "])
def test_unknown_tokens_match_the_library(kind: str, prompt: str, tmp_path: Path):
    make, is_unknown = KINDS[kind]
    library = make()
    tokenizer = save_and_load(tmp_path, make(), prompt=prompt)
    counts = tokenizer.counts(tokenizer(MIXED))
    names = [token_names(library, prompt + text) for text in MIXED]
    # words of the byte-level tokenizer begin with the blank before them, so it is part of the text
    prompt_names = token_names(library, prompt.rstrip() if kind == "bytes" else prompt)
    assert counts.content.tolist() == [
        min(len(tokens), tokenizer.max_text_tokens) - len(prompt_names) for tokens in names
    ]
    expected = [
        sum(map(is_unknown, tokens[: tokenizer.max_text_tokens])) - sum(map(is_unknown, prompt_names))
        for tokens in names
    ]
    assert counts.unknown.tolist() == expected
    assert (counts.unknown > 0)[1] == (kind != "bytes")


def test_white_space_encoded_as_bytes_is_known(tmp_path: Path):
    backend = unigram_model(byte_fallback=True)
    tokenizer = save_and_load(tmp_path, backend)
    assert "<0x0A>" in backend.encode("a\nb").tokens
    assert tokenizer.counts(tokenizer(["a\nb\tc", "aéb"])).unknown.tolist() == [0, 2]


def test_words_without_a_vector_are_unknown(tmp_path: Path):
    (tmp_path / "vocab.txt").write_text("two\ndogs\nrun")
    tokenizer = load_words(tmp_path, 4, prompt="", lower=True, truncation_side="end")
    counts = tokenizer.counts(tokenizer(["Two dogs run", "two qqq dogs zzz", CHINESE, "", "dogs " * 9]))
    assert counts.lengths.tolist() == [3, 2, 0, 0, 4]
    assert counts.content.tolist() == [3, 4, 1, 0, 4]
    assert counts.unknown.tolist() == [0, 2, 1, 0, 0]
    assert counts.lost.tolist() == [0, 0, 0, 0, 5]


def test_missing_punctuation_numbers_and_stop_words_do_not_count_as_unknown(tmp_path: Path):
    """The vectors were trained on text without punctuation, numbers and stop words."""
    (tmp_path / "vocab.txt").write_text("dogs\nrun\ngrass\nbank\nDon\nxylophone")
    tokenizer = load_words(tmp_path, 64, prompt="", lower=False, truncation_side="end")
    english = "The dogs, and 12 of 3.5 -- don't (they've) run to a bank; 'grass' isn't 1990s x2 (Don's)!"
    others = [
        "Die Hunde laufen, im Gras!",
        "\u6211 \u5728 \u5b66\u6821",
        "\u041e\u043d \u0438 \u044f",
        "well-known xylophone",
    ]
    counts = tokenizer.counts(tokenizer([english, *others]))
    assert counts.lengths.tolist() == [5, 0, 0, 0, 1]
    assert counts.unknown.tolist() == [0, 5, 3, 1, 2]
    assert counts.content.tolist() == [5, 5, 3, 1, 3]


@pytest.mark.parametrize("truncation_side", ["end", "start"])
def test_tokens_beyond_max_length_are_counted_as_lost(truncation_side: str, tmp_path: Path):
    """Exact if a text is tokenized whole, within 10 percent if only its start is tokenized."""
    word_piece().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, 16, truncation_side=truncation_side)  # type: ignore[arg-type]
    texts = [*TEXTS, LONG, 50 * LONG]
    whole = np.array([len(row) for row in tokenizer.to_ids(texts)])
    counts = tokenizer.counts(tokenizer(texts))
    lost = np.maximum(whole - tokenizer.max_text_tokens, 0)
    assert counts.truncated.tolist() == (lost > 0).tolist()
    np.testing.assert_allclose(counts.lost, lost, rtol=0 if truncation_side == "start" else 0.1)
    assert counts.lost[: len(TEXTS)].tolist() == lost[: len(TEXTS)].tolist()


def test_counts_of_selected_and_concatenated_tokens_equal_counts_of_the_texts(tmp_path: Path):
    tokenizer = save_and_load(tmp_path, word_piece(), 16)
    first, second = tokenizer(MIXED[:4]), tokenizer(MIXED[4:])
    rows = np.array([6, 1, 3])
    joined = type(first).joined([first, second])
    for tokens, texts in ((joined, MIXED), (joined.of_rows(rows), [MIXED[row] for row in rows])):
        expected_counts = tokenizer.counts(tokenizer(texts))
        for count, expected in zip(tokenizer.counts(tokens), expected_counts, strict=True):
            np.testing.assert_array_equal(count, expected)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (ENGLISH, "latin"),
        ("Où est la bibliothèque ?", "latin"),
        ("ok 3,14 — 2 × 3", "latin"),
        (RUSSIAN, "cyrillic"),
        ("Γειά σου Κόσμε", "greek"),
        ("שלום עולם", "hebrew"),
        ("مرحبا بالعالم", "arabic"),
        ("नमस्ते दुनिया", "devanagari"),
        ("สวัสดีชาวโลก", "thai"),
        (CHINESE, "chinese"),
        (f"API {CHINESE} v2", "chinese"),
        ("今日はとても天気が良いです。", "japanese"),
        ("東京タワー", "japanese"),
        ("안녕하세요 세계", "korean"),
        ("42 %", "symbols"),
        ("\U0001f600\U0001f680", "symbols"),
        ("", "symbols"),
    ],
)
def test_script_of_a_text_is_that_of_most_letters(text: str, script: str):
    between_others = [ENGLISH, text, RUSSIAN]
    assert SCRIPTS[scripts_of(pa.array(between_others, pa.large_string()))[1]] == script
    assert SCRIPTS[scripts_of(pa.array([text], pa.string()))[0]] == script


def test_coverage_does_not_depend_on_the_batches(tmp_path: Path):
    tokenizer = save_and_load(tmp_path, word_piece(), 16)
    whole, parts = CoverageCounter(), CoverageCounter()
    for counter, batches in ((whole, [MIXED]), (parts, [MIXED[:3], MIXED[3:]])):
        for batch in batches:
            counter.add(pa.array(batch, pa.large_string()), tokenizer.counts(tokenizer(batch)))
    assert whole.counts() == parts.counts()
    covered = ScriptCoverage.of(whole.counts())
    assert covered.total.rows == len(MIXED)
    chinese = covered.scripts["chinese"]
    assert (chinese.rows, chinese.unknown_proportion) == (1, 8 / 9)  # one of the nine characters is known
    assert covered.total.cut == int(tokenizer(MIXED).truncated.sum())


def unit(script: str, rows: int, tokens: int, unknown: int) -> dict[str, int]:
    counts = {"rows": rows, "tokens": tokens, "unknown": unknown}
    return {"rows": rows, "tokens": tokens + 2 * rows} | {
        f"script_{script}_{name}": count for name, count in counts.items()
    }


def test_uncounted_units_make_the_unknown_proportion_a_lower_bound():
    old, new = {"rows": 100, "tokens": 900}, unit("chinese", 10, 100, 100)
    counts = token_counts([old, new], [new])
    assert counts["uncounted_rows"] == 100
    assert ScriptCoverage.of(counts).unknown_proportion == 100 / (100 + 900)
    assert token_facts(token_counts([old], [])) is None


@pytest.mark.parametrize(
    ("units", "warnings"),
    [
        ([unit("latin", 1000, 9000, 300)], []),
        ([unit("latin", 1000, 9000, 450)], ["5.0% of the tokens of 1,000 Latin texts"]),
        ([unit("latin", 99_990, 10**6, 0), unit("thai", 10, 20, 20)], []),
        (
            [unit("latin", 9_980, 10**6, 0), unit("thai", 20, 20, 20)],
            ["100.0% of the tokens of 20 Thai texts"],
        ),
    ],
)
def test_a_warning_needs_five_percent_of_unknown_tokens(units: list[dict[str, int]], warnings: list[str]):
    sentences = token_warnings(token_counts(units, units))
    assert len(sentences) == len(warnings)
    for sentence, beginning in zip(sentences, warnings, strict=True):
        assert sentence.startswith(beginning)


def test_unknown_tokens_of_tonights_units_give_a_warning_of_their_own():
    units = [unit("latin", 1000, 9000, 0), unit("latin", 10, 100, 50)]
    (sentence,) = token_warnings(token_counts(units, units[1:]))
    assert sentence.startswith("50.0% of the 100 tokens that were encoded for this release")


def test_token_facts_are_json(tmp_path: Path):
    counts = token_counts([unit("latin", 10, 100, 5), unit("thai", 5, 10, 10)], [])
    facts = json.loads(json.dumps(token_facts(counts)))
    assert facts["unknown_share"] == 15 / 110
    assert facts["scripts"]["thai"]["unknown_share"] == 1.0

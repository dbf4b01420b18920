"""Averages leave out the tokens that a plain implementation of each filter excludes."""

import string
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.token_filter import load_filter
from pipeline.settings import EncoderSettings
from tests.models.folder.wordfiles import write_counts, write_words
from tests.models.folders import LONG, TEXTS, copy_listed_files, encoder_at, hidden_states, table_rows

FILTERS = ("frequent", "subword", "case", "punctuation")
COUNTS = {"dog": 1, "the": 900, "The": 90, "A": 500, "window": 300, "book.": 60, "lazy": 80, "jumps": 40}
PUNCTUATION = {*string.punctuation, "—"}
SENTENCES = (*(text for text in TEXTS if text), LONG, "!!!", "Two", "catladders dogwindows, Thelazy")
FORMULAS = {
    "table": lambda rows, states, at: rows[at].mean(0),
    "static": lambda rows, states, at: states[0][at].mean(0),
    "mean": lambda rows, states, at: states[-1][at].mean(0),
    "max+cls": lambda rows, states, at: np.concatenate([states[-1][at].max(0), states[-1][0]]),
}
"""name -> vector of one text, from the rows of the word table, the hidden states and the positions to pool"""


@pytest.fixture
def counts(tmp_path) -> Path:
    return write_counts(tmp_path / "counts.parquet", COUNTS)


def most_frequent(tokenizer: transformers.PreTrainedTokenizerBase, byte_level: bool, limit: int) -> set[int]:
    """Return the ids of the tokens that are most frequent in the counted words."""
    totals: dict[int, int] = {}
    for word, count in COUNTS.items():
        for number in tokenizer(f" {word}" if byte_level else word, add_special_tokens=False)["input_ids"]:
            totals[number] = totals.get(number, 0) + count
    return set(sorted(totals, key=lambda number: (-totals[number], number))[:limit])


def kept_positions(folder: Path, text: str, exclude: tuple[str, ...], frequent: int) -> list[int]:
    """Return the positions of the tokens that no filter excludes; of all tokens if none remains."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, truncation=True, max_length=64)["input_ids"]
    byte_level = "Ġ" in tokenizer.get_vocab()
    frequent_ids = most_frequent(tokenizer, byte_level, frequent)
    positions = []
    for position, number in enumerate(ids):
        token = tokenizer.convert_ids_to_tokens(number)
        spelling = tokenizer.decode([number]).strip().removeprefix("##")
        excluded = {
            "frequent": number in frequent_ids,
            "subword": not token.startswith("Ġ") if byte_level else token.startswith("##"),
            "case": any(letter.isupper() for letter in spelling),
            "punctuation": spelling != "" and set(spelling) <= PUNCTUATION,
        }
        is_special = position in (0, len(ids) - 1)
        if not is_special and not any(excluded[name] for name in exclude):
            positions.append(position)
    return positions or list(range(len(ids)))


CASES = [
    *(
        (family, "table", exclude)
        for family in ("bert", "roberta")
        for exclude in (*((name,) for name in FILTERS), ("subword", "case"))
    ),
    ("bert", "mean", FILTERS),
    ("bert", "max+cls", ("case",)),
    ("roberta", "static", FILTERS),
    ("electra", "table", FILTERS),
]


@pytest.mark.parametrize(("family", "pooling", "exclude"), CASES)
def test_averages_are_taken_over_the_remaining_tokens(folders, counts, family, pooling, exclude):
    encoder = encoder_at(
        folders[family], pooling=pooling, exclude=exclude, frequencies=str(counts), frequent=5
    )
    removed = 0
    for text, vector in zip(SENTENCES, encoder.encode(SENTENCES), strict=True):
        states = [state.numpy() for state in hidden_states(folders[family], text)]
        rows = table_rows(folders[family], text)
        positions = kept_positions(folders[family], text, exclude, 5)
        removed += max(0, len(rows) - 2 - len(positions))
        np.testing.assert_allclose(vector, FORMULAS[pooling](rows, states, positions), atol=1e-5)
    assert removed > 0, "the filter excludes some tokens"


def test_counts_may_be_those_of_tokens_instead_of_words(folders, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["bert"])
    pieces = [piece for piece in tokenizer.get_vocab() if piece.startswith("##")][:3]
    file = tmp_path / "counts.parquet"
    pq.write_table(pa.table({"token": ["the", *pieces, "no such token"], "count": [1, 9, 8, 7, 99]}), file)
    folder = open_folder(
        EncoderSettings(path=str(folders["bert"]), exclude=("frequent",), frequencies=str(file), frequent=3)
    )
    kept = load_filter(folder, folder.tokenizer())
    assert kept is not None
    special = set(tokenizer.all_special_ids) & {tokenizer.cls_token_id, tokenizer.sep_token_id}
    assert set(np.flatnonzero(~kept).tolist()) == special | set(tokenizer.convert_tokens_to_ids(pieces))


def test_word_vectors_are_filtered_too(tmp_path, counts, monkeypatch):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    x = np.eye(6, dtype=np.float32)
    file = write_words(tmp_path / "words.txt", ("the", "Dog", "sees", "!", "##s", "window"), x)
    text = "the Dog sees window!"
    for exclude, frequent, rows in [
        (("punctuation",), 1, [0, 1, 2, 5]),
        (("case",), 1, [0, 2, 5, 3]),
        (("frequent",), 1, [1, 2, 5, 3]),
        (("frequent",), 2, [1, 2, 3]),
        (("frequent",), 36, [1, 2, 3]),
        (("subword",), 1, [0, 1, 2, 5, 3]),
        (FILTERS, 1, [2, 5]),
    ]:
        encoder = encoder_at(file, exclude=exclude, frequencies=str(counts), frequent=frequent)
        np.testing.assert_allclose(encoder.encode(text), x[rows].mean(0), atol=1e-6)


def test_the_bits_of_a_text_do_not_depend_on_its_neighbours(folders):
    encoder = encoder_at(folders["bert"], exclude=["punctuation", "subword"])
    together = encoder.encode(SENTENCES)
    np.testing.assert_array_equal(np.concatenate([encoder.encode([text]) for text in SENTENCES]), together)


def test_the_space_depends_on_filters_that_change_vectors(folders, counts):
    def space(**changes: object) -> str:
        return open_folder(EncoderSettings.model_validate({"path": str(folders["bert"]), **changes})).space_id

    plain, case = space(), space(exclude=["case"])
    frequent: dict[str, object] = {"exclude": ["frequent"], "frequencies": str(counts)}
    different = [
        plain,
        case,
        space(exclude=["case", "punctuation"]),
        space(**frequent),
        space(**frequent, frequent=5),
    ]
    assert len(set(different)) == 5
    assert plain == space(frequencies=str(counts)) == space(frequent=5) == space(exclude=[])
    assert case == space(exclude=["case"], frequencies="/none") == space(exclude=["case"], frequent=5)
    assert space(exclude=["punctuation", "case", "case"]) == space(exclude=["case", "punctuation"])


def test_a_copy_includes_the_counts_of_frequent_tokens(folders, counts, tmp_path):
    settings = EncoderSettings(
        path=str(folders["bert"]), exclude=("frequent",), frequencies=str(counts), frequent=3
    )
    folder = open_folder(settings)
    copy = copy_listed_files(folder, tmp_path / "copy")
    counts.unlink()
    copied = encoder_at(copy, exclude=["frequent"], frequencies=str(counts), frequent=3)
    assert copied.space_id == folder.space_id


def test_the_space_of_the_packaged_minilm_does_not_change(minilm):
    assert minilm.space_id == "4b24206b1656eff47dac70240bc7a112470e14dbf68492ab707c705f0ad5f44f"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"exclude": ["frequent"]},
            (
                r"encoder\.exclude: frequent: expected a file of word counts in encoder\.frequencies, "
                r"found null"
            ),
        ),
        (
            {"exclude": ["case"], "pooling": "cls"},
            r"encoder\.exclude: expected a pooling over all tokens, such as mean or table, found 'cls'",
        ),
        ({"exclude": ["case"], "pooling": "cls+last"}, r"found 'cls\+last'"),
    ],
)
def test_invalid_settings_are_refused(folders, changes, message):
    with pytest.raises(ModelError, match=message):
        open_folder(EncoderSettings.model_validate({"path": str(folders["bert"]), **changes}))

"""Word vectors as an encoder folder of our own, made once of the file that they come in, and the tokenizer
that goes with them. Imports neither torch nor transformers.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.errors import ModelError
from pipeline.headway import headway
from pipeline.log import say
from pipeline.models.folder.vectorfile import Words, read_vectors
from pipeline.text.tokens.stop_words import STOP_WORDS
from pipeline.text.tokens.tokens import SKIPPED_WORD, Side, Tokenizer

WORDS = "manta-words"  # the model_type of such a folder
RECURRENT = "manta-recurrent"  # and of one whose encoder reads words in their order
TABLE = "embeddings.word_embeddings.weight"
FORMAT = 1  # changes with the rules below
# in a vocabulary of sequences: any other word, and the marks around a text; no token of a text is spelled so
UNKNOWN, FIRST, LAST = (
    "<unk>",
    "<s>",
    "</s>",
)
_MAX_LENGTH = 1_024  # words of one text where nobody says otherwise: nothing in an average of words limits it
# share of words with upper case from which on case matters: lower-cased vocabularies have UNK and the like in
# them
_CASED = 0.01
_HEADER_BYTES = 256  # of a safetensors file with one tensor: its length is known only at the end


def build_folder(file: Path, name: str, folder: Path) -> None:
    """Write the encoder folder of a file of word vectors: config.json, vocab.txt (a word a line),
    model.safetensors (float32), and whether texts are lower-cased.

    Of a word that stands in the file several times the first vector counts. Memory holds the vocabulary and a
    batch of vectors. ModelError as `read_vectors`.
    """
    folder.mkdir(parents=True)
    vocabulary = _Vocabulary()
    dim = _write_table(folder / "model.safetensors", vocabulary.fresh(read_vectors(file, name)))
    if not vocabulary.words:
        raise ModelError(name, "word vectors", "an empty file", "give another file")
    if vocabulary.repeated:
        say(f"{name}: {vocabulary.repeated:,} lines repeat a word; its first vector is used")
    cased = sum(word != word.lower() for word in vocabulary.words)
    config = {"model_type": WORDS, "hidden_size": dim, "vocab_size": len(vocabulary.words), "words": FORMAT}
    reading = {"max_seq_length": _MAX_LENGTH, "do_lower_case": cased < _CASED * len(vocabulary.words)}
    (folder / "vocab.txt").write_bytes("\n".join(vocabulary.words).encode())
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "sentence_bert_config.json").write_text(json.dumps(reading, indent=1))


class _Vocabulary:
    """Words in order of first sight."""

    def __init__(self) -> None:
        self.words: dict[str, None] = {}
        self.repeated = 0

    def fresh(self, batches: Iterable[Words]) -> Iterable[np.ndarray]:
        """Vectors of the words that were not there before."""
        for words, vectors in batches:
            headway()  # other processes may wait for the folder
            places = []
            for place, word in enumerate(words):
                if word not in self.words:
                    self.words[word] = None
                    places.append(place)
            self.repeated += len(words) - len(places)
            yield vectors if len(places) == len(words) else vectors[places]


def _write_table(file: Path, batches: Iterable[np.ndarray]) -> int:
    """Write a safetensors file with one tensor, row after row; its dimension.

    The header is padded, as the format allows, and written last.
    """
    rows = dim = 0
    with file.open("wb") as stream:
        stream.write(b"\0" * (8 + _HEADER_BYTES))
        for vectors in batches:
            stream.write(np.ascontiguousarray(vectors, "<f4").tobytes())
            rows, dim = rows + len(vectors), vectors.shape[1]
        header = json.dumps(
            {TABLE: {"dtype": "F32", "shape": [rows, dim], "data_offsets": [0, 4 * rows * dim]}}
        )
        stream.seek(0)
        stream.write(_HEADER_BYTES.to_bytes(8, "little") + header.encode().ljust(_HEADER_BYTES))
    return dim


def load_words(folder: Path, max_length: int, *, prompt: str, lower: bool, cuts: Side) -> Tokenizer:
    """The tokenizer of such a folder.

    A token is a run of letters, digits and marks, with single signs between them where the vocabulary has the
    whole (well-known, 3.14, don't), else its parts:
    words, numbers and signs apart, contractions as in the Penn Treebank (do n't, it 's). Unknown tokens are
    left out, and counted if files of word vectors usually hold such tokens (`_is_usual`). Texts without
    spaces between words have to be segmented before.
    """
    vocabulary = _vocabulary(folder)
    source = _Source(vocabulary, lower, SKIPPED_WORD)
    return Tokenizer(
        source, (), (), max_length, 0, prompt, re.compile(r"\s"), cuts, lambda: vocabulary, skips_words=True
    )


def load_sequences(folder: Path, max_length: int, *, prompt: str, lower: bool, cuts: Side) -> Tokenizer:
    """The tokenizer of an encoder that reads words in their order: as above, with a mark before and behind
    each text, so that none is empty. A word that is not known is the vocabulary's word for those, or is left
    out where there is none.
    """
    vocabulary = _vocabulary(folder)
    if missing := [mark for mark in (FIRST, LAST) if mark not in vocabulary]:
        raise ModelError(
            str(folder / "vocab.txt"), f"the words {FIRST} and {LAST}", f"no {missing[0]}", "restore the file"
        )
    unknown = vocabulary.get(UNKNOWN, SKIPPED_WORD)
    source, marks = _Source(vocabulary, lower, unknown), ((vocabulary[FIRST],), (vocabulary[LAST],))
    plain = Tokenizer(source, *marks, max_length, 0, prompt, re.compile(r"\s"), cuts, lambda: vocabulary)
    return replace(plain, skips_words=True) if unknown == SKIPPED_WORD else replace(plain, unknown=(unknown,))


def words_of(text: str) -> Iterator[str]:
    """The tokens of a lower-cased text, every one in its parts: what a vocabulary is counted from."""
    whole, parts = _patterns()
    for token in whole.findall(_read(text, lower=True)):
        if token.isalnum():
            yield token
        else:
            yield from parts.findall(token)


def _vocabulary(folder: Path) -> dict[str, int]:
    return {
        word: place for place, word in enumerate((folder / "vocab.txt").read_bytes().decode().split("\n"))
    }


def _read(text: str, *, lower: bool) -> str:
    return (text.lower() if lower else text).replace("\u2019", "'")


class _Source:
    """Texts to numbers of known words; others get the number `unknown`."""

    def __init__(self, vocabulary: Mapping[str, int], lower: bool, unknown: int) -> None:
        self._known, self._lower, self._unknown = vocabulary.get, lower, unknown
        self._whole, self._parts = _patterns()

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return [self._numbers(text) for text in texts]

    def _numbers(self, text: str) -> list[int]:
        numbers: list[int] = []
        for token in self._whole.findall(_read(text, lower=self._lower)):
            if (whole := self._known(token)) is not None:
                numbers.append(whole)
                continue
            for part in (token,) if token.isalnum() else self._parts.findall(token):
                number = self._known(part, self._unknown)
                if number != SKIPPED_WORD or _is_usual(part):
                    numbers.append(number)
        return numbers


def _is_usual(token: str) -> bool:
    """Whether files of word vectors usually hold tokens of this kind, so that one without it does not know
    the text.

    Many are trained without punctuation, numbers, single letters and stop words, which say little of a text's
    content. A single letter of a script without case may be a word: Chinese ones are.
    """
    letters = sum(map(str.isalpha, token))
    if letters < 2 and (not letters or token.lower() != token.upper()):
        return False
    return token.lower() not in _stop_tokens()


@functools.cache
def _stop_tokens() -> frozenset[str]:
    """English stop words, and what the parts of contracted ones are: n't, 're."""
    _, parts = _patterns()
    return STOP_WORDS.union(*(parts.findall(word) for word in STOP_WORDS))


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """(whole tokens, parts of those).

    Python's \\w knows letters and digits of all scripts, but not the marks inside words of many: accents,
    vowel signs, joiners.
    """
    marks = (
        "".join(
            chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)) in ("Mn", "Mc")
        )
        + "\u200c\u200d"
    )
    letter = f"[\\w{marks}]"
    clitic = f"'(?:s|re|ve|ll|d|m)(?!{letter})"
    negated = f"n't(?!{letter})"
    whole = f"{clitic}|{letter}+(?:[^\\w\\s{marks}]{letter}+)*|\\S"
    parts = f"{letter}+(?={negated})|{negated}|{clitic}|{letter}+|\\S"
    return re.compile(whole, re.IGNORECASE), re.compile(parts, re.IGNORECASE)

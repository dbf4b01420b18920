"""Word vectors as an encoder folder of ours, converted once from their file, and their tokenizers.

Imports neither torch nor transformers.
"""

import functools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.errors import ModelError
from pipeline.keep_alive import keep_alive
from pipeline.log import say
from pipeline.models.folder.vectorfile import Words, read_vectors
from pipeline.text.tokens.stop_words import STOP_WORDS
from pipeline.text.tokens.tokens import SKIPPED_WORD, Side, Tokenizer

WORDS = "manta-words"  # model_type of a folder of word vectors
RECURRENT = "manta-recurrent"  # model_type of a folder whose encoder reads words in their order
TABLE = "embeddings.word_embeddings.weight"
FORMAT = 1  # changes with the rules below
# in a vocabulary of sequences: any other word, and the marks around a text; no token of a text is spelled so
UNKNOWN, FIRST, LAST = "<unk>", "<s>", "</s>"
_MAX_LENGTH = 1_024  # default limit of words per text; an average of words needs none
_CASED = 0.01  # proportion of words with upper case in cased vocabularies; others have UNK and the like
_HEADER_BYTES = 256  # of a safetensors file with one tensor, whose length is known only at the end


def build_folder(file: Path, name: str, folder: Path) -> None:
    """Write the encoder folder of a file of word vectors.

    It has config.json, vocab.txt (one word per line), model.safetensors (float32) and, in
    sentence_bert_config.json, whether texts are lowercased. If a word occurs several times, its first vector
    is used. Memory holds the vocabulary and one batch of vectors.

    Raises:
        ModelError: the file is empty, or as `read_vectors` does.
    """
    folder.mkdir(parents=True)
    counts: Counter[str] = Counter()
    dim = _write_table(folder / "model.safetensors", _first_vectors(read_vectors(file, name), counts))
    if not counts:
        raise ModelError(name, "word vectors", "an empty file", "give another file")
    if repeated := counts.total() - len(counts):
        say(f"{name}: {repeated:,} lines repeat a word; its first vector is used")
    cased = sum(word != word.lower() for word in counts)
    config = {"model_type": WORDS, "hidden_size": dim, "vocab_size": len(counts), "words": FORMAT}
    reading = {"max_seq_length": _MAX_LENGTH, "do_lower_case": cased < _CASED * len(counts)}
    (folder / "vocab.txt").write_bytes("\n".join(counts).encode())
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "sentence_bert_config.json").write_text(json.dumps(reading, indent=1))


def _first_vectors(batches: Iterable[Words], counts: Counter[str]) -> Iterator[np.ndarray]:
    """Yield the vectors of words at their first occurrence; count all occurrences."""
    for words, vectors in batches:
        keep_alive()  # other processes may wait for the folder
        fresh = []
        for row, word in enumerate(words):
            counts[word] += 1
            if counts[word] == 1:
                fresh.append(row)
        yield vectors if len(fresh) == len(words) else vectors[fresh]


def _write_table(file: Path, batches: Iterable[np.ndarray]) -> int:
    """Write a safetensors file with one tensor, batch by batch, and return its number of columns.

    The header, which has the number of rows, is written last; the format allows padding in it.
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
    """Load the tokenizer of a folder of word vectors.

    A token is a run of letters, digits and marks, with single signs inside (well-known, 3.14, don't), if the
    vocabulary contains it. Otherwise it is split into words, numbers and signs, and contractions as in the
    Penn Treebank (do n't, it 's). Unknown tokens are left out, and counted if files of word vectors usually
    contain their kind (`_is_usual`). Texts without spaces between words have to be segmented before.
    """
    vocabulary = _vocabulary(folder)
    source = partial(_numbers, known=vocabulary, lower=lower, unknown=SKIPPED_WORD)
    return Tokenizer(
        source, (), (), max_length, 0, prompt, re.compile(r"\s"), cuts, lambda: vocabulary, skips_words=True
    )


def load_sequences(folder: Path, max_length: int, *, prompt: str, lower: bool, cuts: Side) -> Tokenizer:
    """Load the tokenizer of a recurrent encoder.

    It splits texts as `load_words` does and puts a mark before and after each, so that none is empty. An
    unknown word becomes the vocabulary's token for such words, or is left out if there is none.

    Raises:
        ModelError: the vocabulary lacks a mark.
    """
    vocabulary = _vocabulary(folder)
    if missing := [mark for mark in (FIRST, LAST) if mark not in vocabulary]:
        raise ModelError(
            str(folder / "vocab.txt"), f"the words {FIRST} and {LAST}", f"no {missing[0]}", "restore the file"
        )
    unknown = vocabulary.get(UNKNOWN, SKIPPED_WORD)
    source = partial(_numbers, known=vocabulary, lower=lower, unknown=unknown)
    marks = (vocabulary[FIRST],), (vocabulary[LAST],)
    plain = Tokenizer(source, *marks, max_length, 0, prompt, re.compile(r"\s"), cuts, lambda: vocabulary)
    return replace(plain, skips_words=True) if unknown == SKIPPED_WORD else replace(plain, unknown=(unknown,))


def words_of(text: str) -> Iterator[str]:
    """Yield the tokens of the lowercased text, all of them split, for counting a vocabulary."""
    whole, parts = _patterns()
    for token in whole.findall(_read(text, lower=True)):
        if token.isalnum():
            yield token
        else:
            yield from parts.findall(token)


def _vocabulary(folder: Path) -> dict[str, int]:
    return {w: i for i, w in enumerate((folder / "vocab.txt").read_bytes().decode().split("\n"))}


def _read(text: str, *, lower: bool) -> str:
    return (text.lower() if lower else text).replace("\u2019", "'")


def _numbers(texts: list[str], known: Mapping[str, int], lower: bool, unknown: int) -> list[list[int]]:
    """Convert texts to numbers of known words; other words get the number `unknown`."""
    rows: list[list[int]] = []
    whole, parts = _patterns()
    for text in texts:
        rows.append([])
        for token in whole.findall(_read(text, lower=lower)):
            if token in known:
                rows[-1].append(known[token])
                continue
            for part in (token,) if token.isalnum() else parts.findall(token):
                number = known.get(part, unknown)
                if number != SKIPPED_WORD or _is_usual(part):
                    rows[-1].append(number)
    return rows


def _is_usual(token: str) -> bool:
    """True if files of word vectors usually contain tokens of this kind.

    Many are trained without punctuation, numbers, single letters and stop words, which say little about a
    text's content. A single letter of a script without case, such as Chinese, may be a word.
    """
    letters = sum(map(str.isalpha, token))
    single = letters < 2 and (not letters or token.lower() != token.upper())
    return not single and token.lower() not in _stop_tokens()


@functools.cache
def _stop_tokens() -> frozenset[str]:
    """English stop words, and the parts of contracted ones, such as n't and 're."""
    _, parts = _patterns()
    return STOP_WORDS.union(*(parts.findall(word) for word in STOP_WORDS))


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of whole tokens and of their parts.

    Python's \\w matches letters and digits of all scripts, but not the marks inside words of many scripts:
    accents, vowel signs, joiners.
    """
    codes = map(chr, range(0x300, 0x10000))
    marks = "".join(code for code in codes if unicodedata.category(code) in ("Mn", "Mc")) + "\u200c\u200d"
    letter = f"[\\w{marks}]"
    clitic = f"'(?:s|re|ve|ll|d|m)(?!{letter})"
    negated = f"n't(?!{letter})"
    whole = f"{clitic}|{letter}+(?:[^\\w\\s{marks}]{letter}+)*|\\S"
    parts = f"{letter}+(?={negated})|{negated}|{clitic}|{letter}+|\\S"
    return re.compile(whole, re.IGNORECASE), re.compile(parts, re.IGNORECASE)

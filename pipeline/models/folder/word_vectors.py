"""Convert a file of word vectors into an encoder folder, and load the tokenizers of such folders.

Imports neither torch nor transformers.
"""

import functools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from pipeline.errors import ModelError
from pipeline.keep_alive import keep_alive
from pipeline.log import announce
from pipeline.models.folder.vectorfile import Words, read_vectors
from pipeline.text.tokens.stop_words import STOP_WORDS
from pipeline.text.tokens.tokens import SKIPPED_WORD, Side, Tokenizer

WORDS = "manta-words"  # model_type of a folder of word vectors
# model_types of folders whose encoders read words in their order
RECURRENT, CONVOLUTIONAL, DAN = "manta-recurrent", "manta-convolutional", "manta-dan"
PARAGRAPH = "manta-paragraph"  # model_type of a folder that makes paragraph vectors
TABLE = "embeddings.word_embeddings.weight"  # name of the tensor of the word vectors
FORMAT = 1  # version of the folders; raise it when this module writes them differently
# tokens of an encoder that reads words in their order: for unknown words, the start and the end of a text
UNKNOWN, START, END = "<unk>", "<s>", "</s>"
_WHITE_SPACE = re.compile(r"\s")
MAX_LENGTH = 1_024  # default limit of words per text
# a vocabulary counts as lowercase if a smaller proportion of its words has capitals, as UNK does
_MIN_CASED_PROPORTION = 0.01
_HEADER_BYTES = 256  # space for the header of a safetensors file with one tensor


def build_folder(file: Path, name: str, folder: Path) -> None:
    """Write the encoder folder of a file of word vectors.

    It has config.json, vocab.txt (one word per line), model.safetensors (float32) and, in
    sentence_bert_config.json, whether texts are lowercased. If a word occurs several times, its first vector
    is used. Memory holds the vocabulary and one batch of vectors.

    Raises:
        ModelError: the file is empty or invalid; see `read_vectors`.
    """
    folder.mkdir(parents=True)
    counts: Counter[str] = Counter()
    dim = _write_table(folder / "model.safetensors", _first_vectors(read_vectors(file, name), counts))
    if not counts:
        raise ModelError(name, "word vectors", "an empty file", "give another file")
    if repeated := counts.total() - len(counts):
        announce(f"{name}: {repeated:,} lines repeat a word; its first vector is used")
    cased = sum(word != word.lower() for word in counts)
    config = {"model_type": WORDS, "hidden_size": dim, "vocab_size": len(counts), "words": FORMAT}
    st_config = {"max_seq_length": MAX_LENGTH, "do_lower_case": cased < _MIN_CASED_PROPORTION * len(counts)}
    (folder / "vocab.txt").write_bytes("\n".join(counts).encode())
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "sentence_bert_config.json").write_text(json.dumps(st_config, indent=1))


def _first_vectors(batches: Iterable[Words], counts: Counter[str]) -> Iterator[np.ndarray]:
    """Yield the vectors of words at their first occurrence; count all occurrences."""
    for words, vectors in batches:
        keep_alive()  # other processes may wait for the folder
        first_rows = []
        for row, word in enumerate(words):
            counts[word] += 1
            if counts[word] == 1:
                first_rows.append(row)
        yield vectors if len(first_rows) == len(words) else vectors[first_rows]


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


def load_words(
    folder: Path, max_length: int, *, prompt: str, lower: bool, truncation_side: Side
) -> Tokenizer:
    """Load the tokenizer of a folder of word vectors.

    A token is a run of letters, digits and combining marks, with single signs inside (well-known, 3.14,
    don't), if the vocabulary contains it. Otherwise the run is split into words, numbers and signs, and
    contractions as in the Penn Treebank (do n't, it 's). Unknown tokens are left out; they are counted if
    `_is_expected` is true. Texts in scripts without spaces have to be segmented first.
    """
    vocabulary = _read_vocabulary(folder)
    return Tokenizer(
        to_ids=functools.partial(_word_ids, known=vocabulary, lower=lower, unknown=SKIPPED_WORD),
        prefix=(),
        suffix=(),
        max_length=max_length,
        pad_id=0,
        prompt=prompt,
        split_pattern=_WHITE_SPACE,
        truncation_side=truncation_side,
        vocabulary=lambda: vocabulary,
        skips_words=True,
    )


def load_sequences(
    folder: Path, max_length: int, *, prompt: str, lower: bool, truncation_side: Side
) -> Tokenizer:
    """Load the tokenizer of a recurrent or convolutional encoder, or of a deep averaging network.

    It splits texts as `load_words` does and puts a start and an end token around each text, so that no text
    is empty. An unknown word becomes the vocabulary's token for unknown words, or is left out if there is no
    such token.

    Raises:
        ModelError: the vocabulary lacks the start or the end token.
    """
    vocabulary = _read_vocabulary(folder)
    if missing := [token for token in (START, END) if token not in vocabulary]:
        raise ModelError(
            str(folder / "vocab.txt"), f"the words {START} and {END}", f"no {missing[0]}", "restore the file"
        )
    unknown = vocabulary.get(UNKNOWN, SKIPPED_WORD)
    return Tokenizer(
        to_ids=functools.partial(_word_ids, known=vocabulary, lower=lower, unknown=unknown),
        prefix=(vocabulary[START],),
        suffix=(vocabulary[END],),
        max_length=max_length,
        pad_id=0,
        prompt=prompt,
        split_pattern=_WHITE_SPACE,
        truncation_side=truncation_side,
        vocabulary=lambda: vocabulary,
        unknown=() if unknown == SKIPPED_WORD else (unknown,),
        skips_words=unknown == SKIPPED_WORD,
    )


def words_of(text: str) -> Iterator[str]:
    """Yield the words of the lowercased text, split without a vocabulary, for counting a new vocabulary."""
    whole, parts = _patterns()
    for token in whole.findall(_normalize(text, lower=True)):
        if token.isalnum():
            yield token
        else:
            yield from parts.findall(token)


def word_pattern() -> str:
    """Return the regular expression of the words that `words_of` finds in a lowercased text."""
    return _patterns()[1].pattern


def _read_vocabulary(folder: Path) -> dict[str, int]:
    return {word: row for row, word in enumerate(read_words(folder))}


def read_words(folder: Path) -> list[str]:
    """Read the words of an encoder folder, in the order of their vectors."""
    return (folder / "vocab.txt").read_bytes().decode().split("\n")


def _normalize(text: str, *, lower: bool) -> str:
    return (text.lower() if lower else text).replace("\u2019", "'")


def _word_ids(texts: list[str], known: Mapping[str, int], lower: bool, unknown: int) -> list[list[int]]:
    """Convert each text to the ids of its words.

    Words that `known` does not have get the id `unknown`. If that is SKIPPED_WORD, only words that a file of
    word vectors should contain get it, and other words are left out; see `_is_expected`.
    """
    rows: list[list[int]] = []
    whole, parts = _patterns()
    for text in texts:
        rows.append([])
        for token in whole.findall(_normalize(text, lower=lower)):
            if token in known:
                rows[-1].append(known[token])
                continue
            for part in (token,) if token.isalnum() else parts.findall(token):
                word_id = known.get(part, unknown)
                if word_id != SKIPPED_WORD or _is_expected(part):
                    rows[-1].append(word_id)
    return rows


def _is_expected(token: str) -> bool:
    """True if a file of word vectors should contain a token of this kind.

    Many files lack punctuation, numbers, single letters and stop words, which say little about a text's
    content, so these are not expected. A single letter of a script without case, such as Chinese, may be a
    word.
    """
    letters = sum(map(str.isalpha, token))
    has_case = token.lower() != token.upper()
    is_short = letters == 0 or (letters == 1 and has_case)
    return not is_short and token.lower() not in _stop_tokens()


@functools.cache
def _stop_tokens() -> frozenset[str]:
    """Return English stop words, and the parts of contractions, such as n't and 're."""
    _, parts = _patterns()
    return STOP_WORDS.union(*(parts.findall(word) for word in STOP_WORDS))


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile the patterns of whole tokens and of their parts.

    Python's \\w matches letters and digits of all scripts, but not the marks inside words of many scripts:
    accents, vowel signs, joiners.
    """
    signs = map(chr, range(0x300, 0x10000))
    marks = "".join(sign for sign in signs if unicodedata.category(sign) in ("Mn", "Mc")) + "\u200c\u200d"
    letter = f"[\\w{marks}]"
    clitic = f"'(?:s|re|ve|ll|d|m)(?!{letter})"
    negated = f"n't(?!{letter})"
    whole = f"{clitic}|{letter}+(?:[^\\w\\s{marks}]{letter}+)*|\\S"
    parts = f"{letter}+(?={negated})|{negated}|{clitic}|{letter}+|\\S"
    return re.compile(whole, re.IGNORECASE), re.compile(parts, re.IGNORECASE)

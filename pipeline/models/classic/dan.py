"""Deep averaging networks (Iyyer et al. 2015; in USE: Cer et al. 2018, section 3.2).

A text becomes the mean of the vectors of all its words and of all its pairs of neighbouring words. The dense
layers that follow are modules after the pooling.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.classic.base import TABLE_RANGE, WordBackbone, WordModel, WordShape, refuse_changes
from pipeline.models.classic.new_vocabulary import new_vocabulary, write_new_encoder, write_pooling
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.word_vectors import DAN
from pipeline.models.layers.backbones import ForwardRequest
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.post_pooling import new_dense
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import Segments, find_segments
from pipeline.settings.weights import DanSettings
from pipeline.text.tokens.positions import surroundings
from pipeline.text.tokens.tokens import Tokens

FORMAT = 1  # version of the folders; raise it when they are written differently
# odd constants that mix 64 bits, from the finalizer of splitmix64 (Steele et al. 2014)
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, kw_only=True)
class DanShape(WordShape):
    """Shape of the tables. `dropout` applies to the vectors of words and of pairs of words."""

    hidden_size: int
    vocab_size: int
    bigram_buckets: int
    """number of vectors of pairs of words, which are always trained"""
    learned_words: bool
    dropout: float = 0.0


class Grams(NamedTuple):
    """Words and pairs of neighbouring words (bigrams) of n texts."""

    words: np.ndarray
    """(W,) ids"""
    buckets: np.ndarray
    """(B,) bucket of each bigram"""
    counts: np.ndarray
    """(n,) words plus bigrams of each text, at least 1"""
    indices: np.ndarray
    """(W + B,) indices into the words followed by the bigrams: text after text, each text's words before its
    bigrams"""

    def segments(self, put: Callable[[np.ndarray], Tensor]) -> Segments:
        """Return the texts as segments of the words followed by the bigrams; `put` copies to the device."""
        ends = np.cumsum(self.counts)
        starts = ends - self.counts
        return Segments(
            firsts=put(self.indices[starts]),
            lasts=put(self.indices[ends - 1]),
            counts=put(self.counts),
            indices=put(self.indices),
            positions=put(np.arange(len(self.indices)) - np.repeat(starts, self.counts)),
        )


def grams_of(tokens: Tokens, buckets: int, skip: int = 0) -> Grams:
    """Find the words and bigrams of texts.

    Start and end token are left out, but a text without other tokens gets these two and their bigram.

    Args:
        tokens: n texts, each between a start and an end token.
        buckets: number of buckets of bigrams.
        skip: leading tokens of each text to leave out, unless it has no others.
    """
    is_word = ~surroundings(tokens.offsets, 1, 1)
    if tokens.kept is not None:
        is_word &= tokens.kept
    chosen = find_segments(tokens.offsets[:-1], tokens.lengths, skip, torch.from_numpy, is_word)
    words = tokens.ids[chosen.indices.numpy()]
    owners = np.repeat(np.arange(len(tokens)), chosen.counts.numpy())
    is_pair = owners[1:] == owners[:-1]
    pair_owners = owners[1:][is_pair]
    return Grams(
        words=words,
        buckets=buckets_of(words[:-1][is_pair], words[1:][is_pair], buckets),
        counts=chosen.counts.numpy() + np.bincount(pair_owners, minlength=len(tokens)),
        indices=np.argsort(np.concatenate([owners, pair_owners]), kind="stable"),
    )


def buckets_of(first: np.ndarray, second: np.ndarray, buckets: int) -> np.ndarray:
    """Hash pairs of ids (B,) to buckets (B,) int64, the same on every machine."""
    mixed = first.astype(np.uint64) * _MIX[0] + second.astype(np.uint64)
    for factor, shift in zip(_MIX[1:], (np.uint64(30), np.uint64(27)), strict=True):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return np.asarray((mixed ^ (mixed >> np.uint64(31))) % np.uint64(buckets)).astype(np.int64)


class DanBackbone(WordBackbone):
    """Tables of the vectors of words and of bigrams, which are the only hidden states of a text."""

    name, model_type, shape_type = "a deep averaging network", DAN, DanShape

    def __init__(self, shape: DanShape, path: str) -> None:
        super().__init__(shape, path)
        self.width, self.depth = shape.hidden_size, 0
        self.bigrams = nn.Embedding(shape.bigram_buckets, shape.hidden_size)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the vectors of all words, then those of all bigrams, and the rows of each text in them.

        Raises:
            ModelError: the request has positions or changes the embeddings.
        """
        refuse_changes(request, self._path, self.name)
        grams = grams_of(request.tokens, self.bigrams.num_embeddings, request.skip)
        words = F.embedding(self._put(grams.words), self.word_table)
        pairs = F.embedding(self._put(grams.buckets), self.bigrams.weight)
        x = self.dropout(torch.cat([words, pairs]))
        return dict.fromkeys(request.wanted, x), grams.segments(self._put)

    def draw(self) -> None:
        """Draw new vectors from torch's generator; fixed word vectors do not change."""
        nn.init.uniform_(self.bigrams.weight, -TABLE_RANGE, TABLE_RANGE)
        super().draw()


class DanModel(WordModel):
    """Vectors of words and of word pairs, in float32 like word vectors, regardless of `encode.dtype`."""

    has_token_states = False

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        self._backbone = DanBackbone.load(folder, checkpoint)
        super().__init__(self._backbone, arithmetic)

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Look up the vectors of all words and pairs of the texts `rows`; see `Model.states`."""
        return self._backbone(ForwardRequest(tokens.of_rows(rows), wanted, skip))


def write_dan_folder(settings: DanSettings, counts: Counter[str], folder: Path, *, seed: int) -> None:
    """Write the folder of a new deep averaging network: the pooling mean, then dense layers.

    Args:
        settings: shape of the encoder, and the file of word vectors, if any.
        counts: counts of the words to learn vectors for; not used with a file of word vectors.
        folder: folder to write to.
        seed: seed of the weights.

    Raises:
        ConfigError: `settings.words` names no file of word vectors.
        ModelError: the file of word vectors cannot be read, or `counts` is empty.
    """
    assert settings.width is not None, "the caller asks for a new encoder"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        words = new_vocabulary(settings, counts)
        shape = DanShape(
            hidden_size=words.dim(settings),
            vocab_size=len(words.tokens),
            bigram_buckets=settings.buckets,
            learned_words=words.table is None,
        )
        backbone = DanBackbone.new(shape, str(folder))
        inputs = [shape.hidden_size, *[settings.width] * (settings.layers - 1)]
        layers = [new_dense(size, settings.width, "Tanh") for size in inputs]
    write_new_encoder(backbone, words, FORMAT, folder)
    write_pooling(folder, shape.hidden_size, "mean", layers)

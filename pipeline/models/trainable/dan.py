"""Trainable deep averaging networks (Iyyer et al. 2015; in USE: Cer et al. 2018, section 3.2).

A text becomes the mean of the vectors of all its words and of all its pairs of neighbouring words. The dense
layers that follow are modules after the pooling.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import Segments, find_segments
from pipeline.models.trainable.backbones import Backbone, ForwardRequest
from pipeline.models.trainable.word_backbone import WordShape
from pipeline.text.tokens.positions import surroundings
from pipeline.text.tokens.tokens import Tokens

_TABLE_RANGE = 0.1  # new vectors are uniform in [-0.1, 0.1], as those of recurrent encoders
_REQUIRED_KEYS = ("hidden_size", "vocab_size", "bigram_buckets", "learned_words")
# odd constants that mix 64 bits, from the finalizer of splitmix64 (Steele et al. 2014)
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, kw_only=True)
class DanShape(WordShape):
    """Shape of the tables of a deep averaging network, as in its config.json.

    `dropout` applies to the vectors of words and of pairs of words.
    """

    buckets: int
    """number of vectors of pairs of words, which are always trained"""


def dan_shape(folder: EncoderFolder, dropout: float | None = None) -> DanShape:
    """Read the shape from config.json.

    Args:
        folder: the encoder's folder.
        dropout: rate of dropout; None: the rate in config.json.

    Raises:
        ModelError: a value is missing.
    """
    config, file = folder.config, str(folder.transformer_path / "config.json")
    if missing := [key for key in _REQUIRED_KEYS if key not in config]:
        raise ModelError(
            file, f"the keys {', '.join(_REQUIRED_KEYS)}", f"no {missing[0]}", "restore the file"
        )
    return DanShape(
        vocabulary=int(config["vocab_size"]),
        word_dim=int(config["hidden_size"]),
        buckets=int(config["bigram_buckets"]),
        learned=bool(config["learned_words"]),
        dropout=float(config.get("dropout", 0.0)) if dropout is None else dropout,
    )


class Grams(NamedTuple):
    """Words and pairs of neighbouring words (bigrams) of n texts."""

    words: np.ndarray
    """(W,) ids"""
    buckets: np.ndarray
    """(B,) bucket of each bigram"""
    counts: np.ndarray
    """(n,) words plus bigrams of each text, at least 1"""
    indices: np.ndarray
    """(W + B,) text after text, words before bigrams: indices in the words followed by the bigrams"""

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

    Start and end token are left out; a text without other tokens has these two and their bigram.

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


class DanBackbone(Backbone):
    """Tables of the vectors of words and of bigrams, which are the only hidden states of a text."""

    def __init__(self, shape: DanShape, path: str) -> None:
        super().__init__()
        self.shape, self._path = shape, path
        self.width, self.depth = shape.word_dim, 0
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(shape.vocabulary, shape.word_dim)}
        ).requires_grad_(shape.learned)
        self.bigrams = nn.Embedding(shape.buckets, shape.word_dim)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the vectors of all words, then those of all bigrams, and the rows of each text in them.

        Raises:
            ModelError: the request has positions or changes the embeddings.
        """
        if request.positions is not None or request.at_embedding is not None:
            raise ModelError(
                self._path,
                "an encoder with layers, for views that permute positions or change embeddings",
                "a deep averaging network",
                "use another view",
            )
        grams = grams_of(request.tokens, self.shape.buckets, request.skip)
        words = F.embedding(self._put(grams.words), self.word_table)
        pairs = F.embedding(self._put(grams.buckets), self.bigrams.weight)
        x = self.dropout(torch.cat([words, pairs]))
        return dict.fromkeys(request.wanted, x), grams.segments(self._put)

    @property
    def word_table(self) -> Tensor:
        """Word vectors (vocabulary, word_dim)."""
        return self.embeddings.get_parameter("word_embeddings.weight")

    def draw(self) -> None:
        """Draw new vectors from torch's generator; fixed word vectors stay."""
        for table in [self.bigrams.weight, *([self.word_table] if self.shape.learned else [])]:
            nn.init.uniform_(table, -_TABLE_RANGE, _TABLE_RANGE)


def load_dan(folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None) -> DanBackbone:
    """Load the backbone of a folder.

    Raises:
        ModelError: the weights do not match the configuration.
    """
    with torch.device("meta"):
        backbone = DanBackbone(dan_shape(folder, dropout), str(folder.path))
    weights.fill(backbone)
    return backbone

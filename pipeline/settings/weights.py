"""Settings of the weights that a training changes in place of all of the encoder's own."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config import Settings


class LoraSettings(Settings):
    """Low-rank adapters (Hu et al. 2022) in place of the backbone's own weights; the product has them added
    in. Needs the extra `lora`.
    """

    rank: Annotated[int, Field(ge=1)] | None = None
    """inner dimension of an adapter (16 is usual); null: no adapters, all weights are trained"""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """the adapters' product is multiplied by alpha / rank"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """of what goes into an adapter"""
    targets: tuple[str, ...] = ()
    """ends of the names of adapted layers; none: query and value projections"""


class RecurrentSettings(Settings):
    """A new recurrent encoder to start from, in place of encoder.path; the other keys of `encoder` hold for
    it.
    """

    cell: Literal["gru", "lstm"] | None = None
    """null: training starts from encoder.path"""
    width: Annotated[int, Field(ge=1)] = 600
    """units of one direction"""
    directions: Literal[1, 2] = 2
    """1: texts are read from their beginning; 2: from their end too, by other weights"""
    layers: Annotated[int, Field(ge=1)] = 1
    """each one reads the states of the one before"""
    readout: Literal["last", "max", "mean", "attention"] = "last"
    """the final state of each direction, or the largest or mean value of the states at all words, or four
    sums of them weighted by the words themselves"""
    words: str | None = None
    """a file of word vectors (GloVe, word2vec), which are not trained; null: vectors are learned"""
    vocabulary: Annotated[int, Field(ge=2)] | None = 50_001
    """words that are known: the commonest of train.data, lower-cased, and one that stands for all others;
    with `words` the first ones of the file, and others are left out; null: all"""
    word_dim: Annotated[int, Field(ge=1)] = 620
    """dimensions of learned word vectors"""

"""Settings of weights that are trained instead of the encoder's: LoRA adapters, new encoders, new words."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipeline.config import Settings
from pipeline.settings.encode import EncoderSettings


class LoraSettings(Settings):
    """Low-rank adapters (Hu et al. 2022), trained instead of the backbone's weights.

    They are merged into the weights when the encoder is saved, and need the extra `lora`.
    """

    rank: Annotated[int, Field(ge=1)] | None = None
    """inner dimension of an adapter (16 is usual); null: no adapters, all weights are trained"""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """the output of an adapter is multiplied by alpha / rank"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """dropout rate of the input of an adapter"""
    targets: tuple[str, ...] = ()
    """endings of the names of layers that get an adapter; none: query and value projections"""


class NewEncoderSettings(Settings):
    """A new encoder to train instead of encoder.path, unless the setting `wanted_by` is null."""

    kind: ClassVar[str]
    """kind of encoder: the key of these settings in `train`"""
    wanted_by: ClassVar[str]
    """name of the setting that asks for the encoder"""


class VocabularySettings(NewEncoderSettings):
    """Vocabulary and word vectors of a new encoder that reads words."""

    words: str | None = None
    """a file of word vectors (GloVe, word2vec), which are not trained; null: word vectors are learned"""
    vocabulary: Annotated[int, Field(ge=2)] | None = 50_001
    """number of known words: the most frequent ones of train.data, in lower case, and one that stands for all
    others. With `words`: the first words of the file; other words are ignored. null: all words"""
    word_dim: Annotated[int, Field(ge=1)] = 620
    """dimension of learned word vectors"""


class RecurrentSettings(VocabularySettings):
    """A new recurrent encoder to train instead of encoder.path. Other keys of `encoder` apply to it too."""

    kind = "recurrent"
    wanted_by = "cell"

    cell: Literal["gru", "lstm"] | None = None
    """recurrent cell; null: training starts from encoder.path"""
    width: Annotated[int, Field(ge=1)] = 600
    """hidden units of one direction"""
    directions: Literal[1, 2] = 2
    """1: forward; 2: forward and backward, with separate weights"""
    layers: Annotated[int, Field(ge=1)] = 1
    """number of stacked layers"""
    readout: Literal["last", "max", "mean", "attention"] = "last"
    """vector of a text. last: the final state of each direction; max, mean: the maximum or the mean of the
    states at all words; attention: four weighted sums of these states (self-attention)"""

    def __str__(self) -> str:
        return f"new {self.cell} ({self.directions} x {self.width}, {self.readout})"


class ConvolutionalSettings(VocabularySettings):
    """A new convolutional encoder to train instead of encoder.path (Conneau et al. 2017, section 3.2).

    For each layer, the maximum of its outputs over the words is taken; the maxima of all layers, side by
    side, are the vector of a text. Other keys of `encoder` apply to it too.
    """

    kind = "convolutional"
    wanted_by = "width"

    width: Annotated[int, Field(ge=1)] | None = None
    """channels of a layer (1024 in the paper); null: training starts from encoder.path"""
    layers: Annotated[int, Field(ge=1)] = 4
    """number of stacked layers, each with a kernel of three words"""

    def __str__(self) -> str:
        return f"new convolutions ({self.layers} layers of {self.width})"


class DanSettings(VocabularySettings):
    """A new deep averaging network to train instead of encoder.path (Cer et al. 2018, section 3.2).

    It has dense layers over the mean of the vectors of all words and of all pairs of neighbouring words.
    Other keys of `encoder` apply to it too.
    """

    kind = "dan"
    wanted_by = "width"

    width: Annotated[int, Field(ge=1)] | None = None
    """output dimension of each dense layer (512 in the paper); null: training starts from encoder.path"""
    layers: Annotated[int, Field(ge=1)] = 3
    """number of dense layers, each with tanh; the paper gives neither their number nor the activation"""
    buckets: Annotated[int, Field(ge=1)] = 2**20
    """number of vectors for pairs of words; the hash of a pair selects its vector"""

    def __str__(self) -> str:
        return f"a new deep averaging network ({self.layers} layers of {self.width})"


class TransformerSettings(NewEncoderSettings):
    """A new Transformer of whole words to train instead of encoder.path (Cer et al. 2018, section 3.1).

    The vector of a text is the sum of its last states, divided by the square root of their number, and
    multiplied by a matrix. Other keys of `encoder` apply to it too.
    """

    kind = "transformer"
    wanted_by = "width"

    width: Annotated[int, Field(ge=1)] | None = None
    """dimension of a hidden state; null: training starts from encoder.path"""
    layers: Annotated[int, Field(ge=1)] = 6
    """number of layers (6 in Vaswani et al. 2017, as the paper does not say)"""
    heads: Annotated[int, Field(ge=1)] = 8
    """number of attention heads of a layer; the width must be divisible by it"""
    output: Annotated[int, Field(ge=1)] = 512
    """dimension of the vector of a text"""
    vocabulary: Annotated[int, Field(ge=2)] | None = 50_001
    """number of known words: the most frequent ones of train.data, in lower case, and one that stands for all
    others; null: all words"""

    def __str__(self) -> str:
        return f"a new Transformer ({self.layers} layers of {self.width}, {self.heads} heads)"

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width is not None and self.width % self.heads:
            raise ValueError(f"a width divisible by the number of heads, {self.heads}, not {self.width}")
        return self


class WordTableSettings(NewEncoderSettings):
    """New word vectors to train instead of encoder.path; the vector of a text is their sum.

    Other keys of `encoder` apply to them too.
    """

    kind = "word_table"
    wanted_by = "dim"

    dim: Annotated[int, Field(ge=1)] | None = None
    """dimension of a word vector; null: training starts from encoder.path"""
    vocabulary: Annotated[int, Field(ge=1)] | None = 50_000
    """number of known words: the most frequent ones of train.data, in lower case; other words are ignored;
    null: all"""

    def __str__(self) -> str:
        return f"new word vectors ({self.dim} dimensions, {self.vocabulary or 'all'} words)"


class ParagraphSettings(NewEncoderSettings):
    """New paragraph vectors to train instead of encoder.path (Le & Mikolov 2014), one for each row.

    Other keys of `encoder` apply to them too. The trained encoder makes the vector of a text by the same
    gradient steps, with all other weights frozen. The random numbers of these steps follow from the text.
    """

    kind = "paragraph_vectors"
    wanted_by = "dim"

    dim: Annotated[int, Field(ge=1)] | None = None
    """dimension of the vector that each model makes; null: training starts from encoder.path"""
    models: Annotated[tuple[Literal["dm", "dbow"], ...], Field(min_length=1)] = ("dm", "dbow")
    """dm predicts a word from the vector of the paragraph and the words before the word, dbow from the vector
    of the paragraph alone. With both, the vector of a text is their two vectors side by side"""
    window: Annotated[int, Field(ge=1)] = 8
    """number of words before the predicted word that dm reads"""
    context: Literal["concatenate", "average"] = "concatenate"
    """concatenate keeps the order of the words that dm reads; average does not, and has a smaller layer"""
    vocabulary: Annotated[int, Field(ge=1)] | None = 50_000
    """number of known words: the most frequent ones of train.data, in lower case; other words are ignored;
    null: all"""
    words: Annotated[int, Field(ge=1)] = 8
    """words of a text that are drawn and predicted in each step, in the training and afterwards"""
    negatives: Annotated[int, Field(ge=1)] = 5
    """words that are drawn from the vocabulary for each predicted word (negative sampling)"""
    steps: Annotated[int, Field(ge=1)] = 50
    """number of gradient steps by which the trained encoder makes the vector of a text"""
    learning_rate: Annotated[float, Field(gt=0)] = 0.025
    """learning rate of the first of these steps"""
    final: Annotated[float, Field(gt=0)] = 0.001
    """learning rate of the last of these steps; it falls linearly"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of these steps, together with the text"""

    def __str__(self) -> str:
        return f"new paragraph vectors ({' and '.join(self.models)}, {self.dim} dimensions each)"


class ExpandSettings(Settings):
    """Words that are added to the vocabulary of the trained encoder (Kiros et al. 2015, section 2.2).

    For a recurrent or convolutional encoder that learns its word vectors. After the training, a linear map
    from other word vectors to the learned ones is fitted by least squares on the words that both have. Every
    word that only the others have is added with its mapped vector.
    """

    words: str | None = None
    """a file of word vectors (GloVe, word2vec); null: the vocabulary stays as it was trained"""
    vocabulary: Annotated[int, Field(ge=1)] | None = 1_000_000
    """number of words that are read from the beginning of the file; null: all"""

    @property
    def vectors(self) -> EncoderSettings | None:
        """Encoder settings for the file of word vectors; None without a file."""
        return None if self.words is None else EncoderSettings(path=self.words)

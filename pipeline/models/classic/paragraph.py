"""Paragraph vectors: models predict words from the vector of their paragraph (Le & Mikolov 2014).

The vector of a text is made by gradient steps. Their gradients are computed without matrix products, value
by value and in sums of a fixed order, so that a paragraph's bits do not depend on the other paragraphs of its
batch.
"""

from collections import Counter
from pathlib import Path
from typing import Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.config import validated
from pipeline.errors import ConfigError, ModelError
from pipeline.models.classic.base import WordModel
from pipeline.models.classic.new_vocabulary import most_frequent, write_pooling
from pipeline.models.classic.recurrence import elementwise
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.modules import write_json
from pipeline.models.folder.word_vectors import MAX_LENGTH, PARAGRAPH
from pipeline.models.layers.backbones import Backbone, ForwardRequest
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import Segments, find_segments
from pipeline.settings.weights import ParagraphSettings
from pipeline.text.tokens.tokens import Tokens

SETTINGS = "paragraph_vectors"  # key of config.json that holds the settings train.paragraph_vectors
ROWS = "paragraphs"  # key of config.json: number of training rows, each of which has a vector of its own
NOISE = "noise"  # name of the tensor (vocabulary,) of weights by which negatives are drawn
FORMAT = 1  # version of the folders; raise it when they are written or read differently
_POWER = 0.75  # negatives are drawn by word counts to this power (Mikolov et al. 2013)
_REGISTER = 64  # values of a block: a multiple of what any vector instruction computes at once
_TEXTS_PER_PASS = 32  # a pass holds candidates * width values of each text; larger passes are slower on a CPU


class WordPredictor(nn.Module):
    """One of the two models of Paragraph Vector: scores b + U h of all words.

    Its parameters are `output` (vocabulary, width of h) and `bias` (vocabulary,). With a window (PV-DM) it
    also has `words` (vocabulary + 1, d), the vectors of words in contexts; the last row stands for every
    position before the start of a paragraph. Without a window (PV-DBOW), h is the paragraph's vector.

    Args:
        vocabulary: number of words.
        dim: dimension d of a paragraph's vector and of a word's.
        window: number of words in a context; 0 for PV-DBOW.
        average: h is the mean of the paragraph's vector and the vectors of the context's words; otherwise
        these are concatenated.
    """

    def __init__(self, vocabulary: int, dim: int, window: int, *, average: bool) -> None:
        super().__init__()
        self.dim, self.window, self.average = dim, window, average
        width = dim if average else dim * (1 + window)  # without a window, both formulas give d
        self.output = nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.empty(vocabulary))
        if window:
            self.words = nn.Parameter(torch.empty(vocabulary + 1, dim))

    def hidden(self, paragraphs: Tensor, contexts: Tensor) -> Tensor:
        """Compute h (M, width) of predicted words.

        Args:
            paragraphs: (M, d) vector of each word's paragraph.
            contexts: (M, window) ids of the words before each predicted word; the vocabulary's size as an id
                means that there is no word.
        """
        if not self.window:
            return paragraphs
        words = F.embedding(contexts, self.words)  # (M, window, d)
        if not self.average:
            return torch.cat([paragraphs, words.flatten(1)], dim=1)
        known = words * self._is_word(contexts)[..., None]
        return (paragraphs + sum_in_order(known, 1)) / self._count_averaged(contexts)[:, None]

    def gradient(self, paragraphs: Tensor, candidates: Tensor, contexts: Tensor) -> Tensor:
        """Compute the gradient of the negative sampling loss with respect to the paragraphs' vectors.

        The loss of a paragraph is the sum over its W predicted words; see `sampled_word_prediction`.

        Args:
            paragraphs: (n, d).
            candidates: (n, W, 1 + K) ids of the predicted words, each followed by its K negatives.
            contexts: (n, W, window), as in `hidden`.

        Returns:
            (n, d)
        """
        count = candidates.shape[1]
        flat_contexts = contexts.flatten(0, 1)
        h = self.hidden(paragraphs.repeat_interleave(count, dim=0), flat_contexts)  # (n * W, width)
        rows = F.embedding(candidates.flatten(0, 1), self.output)  # (n * W, 1 + K, width)
        scores = sum_in_order(rows * h[:, None], 2) + self.bias[candidates.flatten(0, 1)]
        errors = _sigmoid(scores)
        errors[:, 0] -= 1
        if self.window and self.average:
            errors = errors / self._count_averaged(flat_contexts)[:, None]
        # h is the mean of the vectors, or their concatenation, which begins with the paragraph's vector
        gradients = rows[..., : self.dim] * errors[..., None]
        return sum_in_order(gradients.view(len(paragraphs), -1, self.dim), 1)

    def draw(self) -> None:
        """Draw vectors of n components between -0.5 / n and 0.5 / n, as word2vec does; the bias is 0."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                width = parameter.shape[-1]
                parameter.zero_() if name == "bias" else parameter.uniform_(-0.5 / width, 0.5 / width)

    def _is_word(self, contexts: Tensor) -> Tensor:
        return contexts < len(self.bias)

    def _count_averaged(self, contexts: Tensor) -> Tensor:
        """Count the vectors that are averaged, the paragraph's and those of known words: (M,)."""
        return 1 + self._is_word(contexts).sum(dim=1)


def predictors_of(settings: ParagraphSettings, vocabulary: int) -> nn.ModuleDict:
    """Create the models of the settings, by name, with weights that are not initialized."""
    assert settings.dim is not None, "the caller has paragraph vectors"
    windows = {"dm": settings.window, "dbow": 0}
    return nn.ModuleDict(
        {
            name: WordPredictor(
                vocabulary, settings.dim, windows[name], average=settings.context == "average"
            )
            for name in settings.models
        }
    )


def contexts_of(tokens: Tokens, at: np.ndarray, window: int, padding: int) -> np.ndarray:
    """Return the ids of the `window` words before each word in its text, (..., window) int64.

    Args:
        tokens: the texts.
        at: (...) positions of the words within `tokens.ids`.
        window: number of words.
        padding: id that stands for the words before a text.
    """
    back = np.arange(window, 0, -1)
    indices = at[..., None] - back
    exists = tokens.positions[at][..., None] >= back
    return np.where(exists, tokens.ids[np.maximum(indices, 0)], padding).astype(np.int64)


def sum_in_order(x: Tensor, dim: int) -> Tensor:
    """Sum over a dimension by adding its halves value by value; the order depends on its length only.

    The order of torch's own sums may depend on the other dimensions, and on the number of threads.
    """
    while (length := x.shape[dim]) > 1:
        half = length // 2
        halves = x.narrow(dim, 0, half) + x.narrow(dim, half, half)
        x = torch.cat([halves, x.narrow(dim, length - 1, 1)], dim) if length % 2 else halves
    return x.squeeze(dim)


def _sigmoid(x: Tensor) -> Tensor:
    """Compute the sigmoid of all values with vector instructions, so that they are all rounded alike."""
    flat = F.pad(x.flatten(), (0, -x.numel() % _REGISTER))
    return elementwise(torch.sigmoid, flat)[: x.numel()].view(x.shape)


class ParagraphBackbone(Backbone):
    """Models that predict words from a paragraph's vector (Le & Mikolov 2014).

    A text has a single hidden state: its vectors from all models, side by side. `infer` makes them by
    gradient steps with the models frozen, so that no gradient flows back from them.
    """

    def __init__(self, path: str, settings: ParagraphSettings, noise: np.ndarray) -> None:
        """Create the models, with weights that are not initialized.

        Args:
            path: path of the folder, for errors.
            settings: settings of models and inference.
            noise: (vocabulary,) positive weights by which negatives are drawn.
        """
        super().__init__()
        assert settings.dim is not None, "the folder has paragraph vectors"
        self._path, self.settings, self.dim = path, settings, settings.dim
        self.width, self.depth = settings.dim * len(settings.models), 0
        self.predictors = predictors_of(settings, len(noise))
        self._cumulative = np.cumsum(noise, dtype=np.float64)

    @classmethod
    def load(cls, folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None) -> Self:
        """Load the models of a folder.

        Args:
            folder: the encoder's folder.
            weights: its weights.
            dropout: must be None: paragraph vectors have no dropout.

        Raises:
            ModelError: the weights do not match the configuration, or a rate of dropout is given.
        """
        if dropout is not None:
            raise ModelError(
                "train.dropout",
                "null, because paragraph vectors have no dropout",
                f"{dropout:g}",
                "set it to null",
            )
        noise = weights.tensor(NOISE, (int(folder.config["vocab_size"]),)).numpy()
        backbone = cls(str(folder.path), paragraph_settings(folder), noise)
        weights.fill(backbone)
        return backbone

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the vectors (n, width) as every wanted state, one row for each text.

        Raises:
            ModelError: a gradient is wanted, or the request has positions or changes the embeddings.
        """
        if torch.is_grad_enabled() or request.positions is not None or request.at_embedding is not None:
            raise ModelError(
                self._path,
                "the objective paragraph_vector, the only one that trains paragraph vectors",
                "another one, which needs the gradient of a text's vector, or views of the text",
                "set train.objective=paragraph_vector, or train another encoder",
            )
        vectors = self.infer(request.tokens)
        segments = find_segments(np.arange(len(vectors)), np.ones(len(vectors), np.int64), 0, self._put)
        return dict.fromkeys(request.wanted, vectors), segments

    @property
    def word_table(self) -> Tensor:
        """Output vectors (vocabulary, width of h) of the first model."""
        return self.get_parameter(f"predictors.{self.settings.models[0]}.output")

    @property
    def has_dropout(self) -> bool:
        """False: a text's random numbers depend only on its key."""
        return False

    def draw(self) -> None:
        """Draw new weights from torch's generator."""
        for name in self.settings.models:
            self.predictor(name).draw()

    def draw_words(self, uniform: np.ndarray) -> np.ndarray:
        """Return ids of words for numbers in [0, 1) of any shape, by their weights in `noise`."""
        words = np.searchsorted(self._cumulative, uniform * self._cumulative[-1], side="right")
        return np.minimum(words, len(self._cumulative) - 1)  # the product may round up to the last sum

    def contexts(self, name: str, tokens: Tokens, at: np.ndarray) -> Tensor:
        """Return the context of the words at positions `at`, for a model: ids (..., window).

        The window of dbow is 0.
        """
        window = self.predictor(name).window
        return self._put(contexts_of(tokens, at, window, padding=len(self._cumulative)))

    def predictor(self, name: str) -> WordPredictor:
        """Return a model by its name."""
        return cast(WordPredictor, self.predictors[name])

    def parts(self, vectors: Tensor) -> dict[str, Tensor]:
        """Split vectors (n, width) into the vectors of each model, (n, d)."""
        return dict(zip(self.settings.models, vectors.split(self.dim, dim=1), strict=True))

    @torch.no_grad()
    def infer(self, tokens: Tokens) -> Tensor:
        """Make the vectors (n, width) of texts of at least one token each.

        A text's key and the seed determine its start and its draws, so its vector is always the same, bit for
        bit.
        """
        settings = self.settings
        start, at, candidates = self._drawn(tokens)
        candidates_on_device = self._put(candidates)
        vectors = self.parts(self._put(start))
        rates = np.linspace(settings.learning_rate, settings.final, settings.steps).tolist()
        for name in settings.models:
            predictor, contexts = self.predictor(name), self.contexts(name, tokens, at)
            for step, rate in enumerate(rates):
                gradient = predictor.gradient(vectors[name], candidates_on_device[:, step], contexts[:, step])
                vectors[name] = vectors[name] - gradient * rate
        return torch.cat([vectors[name] for name in settings.models], dim=1)

    def _drawn(self, tokens: Tokens) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the random numbers of inference, for each text separately.

        Returns:
            (n, width) float32 vectors to start from; (n, steps, words) positions of the words to predict
            within `tokens.ids`; and (n, steps, words, 1 + negatives) ids of these words and their negatives.
        """
        assert tokens.keys is not None, "the folder's tokenizer computes the keys"
        settings = self.settings
        shape = settings.steps, settings.words, 1 + settings.negatives
        uniform = np.empty((len(tokens), self.width + int(np.prod(shape))))
        for row, key in enumerate(tokens.keys):
            counter = np.array([0, 0, 0, settings.seed], np.uint64)
            np.random.Generator(np.random.Philox(key=key, counter=counter)).random(out=uniform[row])
        start = ((uniform[:, : self.width] - 0.5) / self.dim).astype(np.float32)
        draws = uniform[:, self.width :].reshape(-1, *shape)
        lengths, starts = (part[:, None, None] for part in (tokens.lengths, tokens.offsets[:-1]))
        at = starts + (draws[..., 0] * lengths).astype(np.int64)
        negatives = self.draw_words(draws[..., 1:])
        return start, at, np.concatenate([tokens.ids[at][..., None], negatives], axis=-1)


def paragraph_settings(folder: EncoderFolder) -> ParagraphSettings:
    """Read the settings that the paragraph vectors were trained with; inference uses them too.

    Raises:
        ModelError: config.json has none, or values that do not fit together.
    """
    file = str(folder.transformer_path / "config.json")
    try:
        settings = validated(ParagraphSettings, folder.config.get(SETTINGS) or {}, file)
    except ConfigError as error:
        raise ModelError(error.where, error.expected, error.found, "restore the file") from None
    width, models = folder.config.get("hidden_size"), len(settings.models)
    if settings.dim is None or settings.dim * models != width:
        raise ModelError(
            file,
            f"{SETTINGS} whose dim, times the number of models, is hidden_size",
            f"dim {settings.dim}, {models} models, hidden_size {width}",
            "restore the file",
        )
    return settings


class ParagraphModel(WordModel):
    """Paragraph vectors, in float32 regardless of `encode.dtype`, because rounding errors grow over steps."""

    has_token_states = False

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        self._backbone = ParagraphBackbone.load(folder, checkpoint)
        super().__init__(self._backbone, arithmetic)

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Give each pass the same number of texts, because a text's steps cost the same whatever
        its length.
        """
        rows = np.flatnonzero(lengths)
        return [rows[start : start + _TEXTS_PER_PASS] for start in range(0, len(rows), _TEXTS_PER_PASS)]

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Make the vectors (texts, width) of the texts `rows`, the only state of each; see `Model.states`."""
        vectors = self._backbone.infer(tokens.of_rows(rows))
        segments = find_segments(np.arange(len(rows)), np.ones(len(rows), np.int64), 0, self.put)
        return dict.fromkeys(wanted, vectors), segments


def write_paragraph_folder(
    settings: ParagraphSettings, counts: Counter[str], folder: Path, *, rows: int, seed: int
) -> None:
    """Write the encoder folder of new paragraph vectors.

    Args:
        settings: models, vocabulary and inference.
        counts: counts of lowercased words.
        folder: folder to write to.
        rows: number of training rows, each of which gets a vector of its own in the training.
        seed: seed of the weights.

    Raises:
        ModelError: `counts` is empty.
    """
    words = most_frequent(counts, settings.vocabulary)
    weights = np.array([counts[word] for word in words], np.float64) ** _POWER
    noise = (weights / weights.sum()).astype(np.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = ParagraphBackbone(str(folder), settings, noise)
        backbone.draw()
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    save_file({**tensors, NOISE: torch.from_numpy(noise)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_bytes("\n".join(words).encode())
    config = {
        "model_type": PARAGRAPH,
        "hidden_size": backbone.width,
        "vocab_size": len(words),
        ROWS: rows,
        SETTINGS: settings.model_dump(mode="json"),
        "format": FORMAT,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH, "do_lower_case": True})
    write_pooling(folder, backbone.width, "cls")

"""Paragraph vectors: the models that predict words, and the gradient steps that make the vector of a text."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.paragraphs import NOISE, paragraph_settings
from pipeline.models.layers.paragraph import WordPredictor, contexts_of, predictors_of
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import Segments, find_segments
from pipeline.models.trainable.backbones import Backbone, ForwardRequest
from pipeline.settings.weights import ParagraphSettings
from pipeline.text.tokens.tokens import Tokens


class ParagraphBackbone(Backbone):
    """Models that predict words from a paragraph's vector (Le & Mikolov 2014).

    A text has a single hidden state, its vector: the vectors of all models side by side. It is made by
    gradient steps on the vector with the models frozen (`infer`), so that no gradient flows back from it.
    """

    def __init__(self, path: str, settings: ParagraphSettings, noise: np.ndarray) -> None:
        """Create the models, with weights that are not initialized.

        Args:
            path: path of the folder, for errors.
            settings: settings of models and inference.
            noise: (vocabulary,) weights with which negatives are drawn, positive.
        """
        super().__init__()
        assert settings.dim is not None, "the folder has paragraph vectors"
        self._path, self.settings, self.dim = path, settings, settings.dim
        self.width, self.depth = settings.dim * len(settings.models), 0
        self.predictors = predictors_of(settings, len(noise))
        self._cumulative = np.cumsum(noise, dtype=np.float64)

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
        """False: the random numbers of a text follow from its key."""
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
        """Return the words that a model reads before those at `at`: ids (..., window), window 0 for dbow."""
        window = self.predictor(name).window
        return self._put(contexts_of(tokens, at, window, padding=len(self._cumulative)))

    def predictor(self, name: str) -> WordPredictor:
        """Return a model by its name."""
        return cast(WordPredictor, self.predictors[name])

    def parts(self, vectors: Tensor) -> dict[str, Tensor]:
        """Split vectors (n, width) into those of each model, (n, d)."""
        return dict(zip(self.settings.models, vectors.split(self.dim, dim=1), strict=True))

    @torch.no_grad()
    def infer(self, tokens: Tokens) -> Tensor:
        """Make the vectors (n, width) of texts of at least one token each.

        Start and draws of a text follow from its key and the seed, so a text has one vector, bit for bit.
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
        """Draw the random numbers of inference, of each text by itself.

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


def load_paragraphs(
    folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None
) -> ParagraphBackbone:
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
    backbone = ParagraphBackbone(str(folder.path), paragraph_settings(folder), noise)
    weights.fill(backbone)
    return backbone

"""Base classes of the encoders of words: shape in config.json, word vectors, models for inference."""

from dataclasses import MISSING, fields
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.backbones import Backbone, ForwardRequest, Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import TABLE_STATE, Segments, find_segments
from pipeline.text.tokens.tokens import Tokens

TABLE_RANGE = 0.1  # new word vectors are uniform in [-0.1, 0.1], as in Skip-Thought


class WordShape:
    """Shape of an encoder: a dataclass whose fields are keys of config.json, in the same order."""

    hidden_size: int
    """values of the last hidden state"""
    vocab_size: int
    learned_words: bool
    """True if word vectors are trained with the other weights"""
    dropout: float
    """dropout rate of the input of each layer"""

    @property
    def word_dim(self) -> int:
        """Dimension of the word vectors: embedding_size, or hidden_size in an encoder without layers."""
        return int(getattr(self, "embedding_size", self.hidden_size))

    @classmethod
    def read(cls, folder: EncoderFolder, dropout: float | None) -> Self:
        """Read the shape from config.json.

        Args:
            folder: the encoder's folder.
            dropout: rate of dropout; None: the rate in config.json.

        Raises:
            ModelError: a value is missing.
        """
        config, file = folder.config, str(folder.transformer_path / "config.json")
        known: Any = fields(cls)  # type: ignore[arg-type]
        required = [field.name for field in known if field.default is MISSING]
        if missing := [key for key in required if key not in config]:
            raise ModelError(file, f"the keys {', '.join(required)}", f"no {missing[0]}", "restore the file")
        values = {field.name: field.type(config[field.name]) for field in known if field.name in config}
        return cls(**values if dropout is None else values | {"dropout": dropout})


class WordBackbone(Backbone):
    """Word vectors (hidden state 0, after dropout), and layers over the words (states 1, 2, ...)."""

    name: ClassVar[str]
    """for messages, such as "a recurrent encoder" """
    model_type: ClassVar[str]
    """value of model_type in config.json"""
    shape_type: ClassVar[type[WordShape]]

    def __init__(self, shape: WordShape, path: str) -> None:
        super().__init__()
        self.shape, self._path = shape, path
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(shape.vocab_size, shape.word_dim)}
        ).requires_grad_(shape.learned_words)
        self.dropout = nn.Dropout(shape.dropout)

    @classmethod
    def load(cls, folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None) -> Self:
        """Load the backbone of a folder.

        Args:
            folder: the encoder's folder.
            weights: its weights.
            dropout: rate of dropout; None: the rate in config.json.

        Raises:
            ModelError: the weights do not match the configuration.
        """
        with torch.device("meta"):
            backbone = cls(cls.shape_type.read(folder, dropout), str(folder.path))
        weights.fill(backbone)
        return backbone

    @classmethod
    def new(cls, shape: WordShape, path: str) -> Self:
        """Create a backbone with new weights from torch's generator. path: the folder, for errors."""
        with torch.device("meta"):
            backbone = cls(shape, path)
        backbone.to_empty(device="cpu").draw()
        return backbone

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the wanted hidden states (T, d) by number, and the rows of each text in them.

        Raises:
            ModelError: the request has positions, which these encoders do not use.
        """
        if request.positions is not None:
            raise ModelError(
                self._path,
                "an encoder with position embeddings, for views with permuted positions",
                self.name,
                "use another view",
            )
        tokens, starts, lengths = request.tokens, request.tokens.offsets[:-1], request.tokens.lengths
        words = F.embedding(self._put(tokens.ids), self.word_table)
        x: Tensor = self.dropout(words)
        if request.at_embedding is not None:
            x = request.at_embedding(x, find_segments(starts, lengths, 0, self._put))
        states = {TABLE_STATE: words, 0: x} | self._layer_states(x, tokens, request.wanted)
        segments = find_segments(starts, lengths, request.skip, self._put, tokens.kept)
        return {number: states[number] for number in request.wanted}, segments

    def _layer_states(self, x: Tensor, tokens: Tokens, wanted: set[int]) -> dict[int, Tensor]:
        """Compute the hidden states 1, 2, ... (T, d) from state 0 (T, word_dim), at least the wanted ones."""
        raise NotImplementedError

    @property
    def word_table(self) -> Tensor:
        """Word vectors (vocabulary, word_dim)."""
        return self.embeddings.get_parameter("word_embeddings.weight")

    def draw(self) -> None:
        """Draw new weights from torch's generator; fixed word vectors do not change."""
        if self.shape.learned_words:
            nn.init.uniform_(self.word_table, -TABLE_RANGE, TABLE_RANGE)


class WordModel(Model):
    """Base of the models that compute hidden states with a loaded backbone."""

    def __init__(
        self, backbone: Backbone, arithmetic: Arithmetic, dtype: torch.dtype = torch.float32
    ) -> None:
        backbone.requires_grad_(False).to(arithmetic.torch_device, dtype).eval()
        self.width, self.layers, self.device = backbone.width, backbone.depth, arithmetic.torch_device


def refuse_changes(request: ForwardRequest, path: str, name: str) -> None:
    """Refuse views that encoders without layers cannot compute.

    Raises:
        ModelError: the request has positions or changes the embeddings.
    """
    if request.positions is not None or request.at_embedding is not None:
        raise ModelError(
            path,
            "an encoder with layers, for views that permute positions or change embeddings",
            name,
            "use another view",
        )

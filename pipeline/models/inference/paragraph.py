"""Backbone of encoders that make paragraph vectors, for inference."""

import numpy as np
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.inference.model import Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.pooling import Segments, find_segments
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.trainable.paragraph import load_paragraphs
from pipeline.text.tokens.tokens import Tokens

_TEXTS = 32  # of one pass, which holds candidates * width values of each; more are slower on a CPU


class ParagraphModel(Model):
    """Paragraph vectors, in float32 regardless of `encode.dtype`, because rounding errors grow over steps."""

    has_token_states = False

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        self._backbone = load_paragraphs(folder, checkpoint).to(arithmetic.torch_device).eval()
        self.width, self.layers = self._backbone.width, self._backbone.layers
        self.device = arithmetic.torch_device

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Group texts by number, because the steps of a text cost the same whatever its length."""
        rows = np.flatnonzero(lengths)
        return [rows[start : start + _TEXTS] for start in range(0, len(rows), _TEXTS)]

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Make the vectors (texts, width) of the texts `rows`, the only state of each; see `Model.states`."""
        vectors = self._backbone.infer(tokens.of_rows(rows))
        ones = np.ones(len(rows), np.int64)
        return dict.fromkeys(wanted, vectors), find_segments(np.cumsum(ones) - 1, ones, 0, self.put)

"""Backbone of encoders that make paragraph vectors, for inference."""

import numpy as np
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.inference.model import Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import Segments, find_segments
from pipeline.models.trainable.paragraph import load_paragraphs
from pipeline.text.tokens.tokens import Tokens

_TEXTS_PER_PASS = 32  # a pass holds candidates * width values of each text; larger passes are slower on a CPU


class ParagraphModel(Model):
    """Paragraph vectors, in float32 regardless of `encode.dtype`, because rounding errors grow over steps."""

    has_token_states = False

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        self._backbone = load_paragraphs(folder, checkpoint).to(arithmetic.torch_device).eval()
        self.width, self.layers = self._backbone.width, self._backbone.depth
        self.device = arithmetic.torch_device

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Give each pass equally many texts, because steps cost the same whatever the length of a text."""
        rows = np.flatnonzero(lengths)
        return [rows[start : start + _TEXTS_PER_PASS] for start in range(0, len(rows), _TEXTS_PER_PASS)]

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Make the vectors (texts, width) of the texts `rows`, the only state of each; see `Model.states`."""
        vectors = self._backbone.infer(tokens.of_rows(rows))
        segments = find_segments(np.arange(len(rows)), np.ones(len(rows), np.int64), 0, self.put)
        return dict.fromkeys(wanted, vectors), segments

"""Backbone of deep averaging networks, for inference."""

import numpy as np
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.inference.model import Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import Segments
from pipeline.models.trainable.backbones import ForwardRequest
from pipeline.models.trainable.dan import load_dan
from pipeline.text.tokens.tokens import Tokens


class DanModel(Model):
    """Vectors of words and of pairs of words, in float32 regardless of `encode.dtype`, as word vectors."""

    has_token_states = False

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        backbone = load_dan(folder, checkpoint).requires_grad_(False)
        self._backbone = backbone.to(arithmetic.torch_device).eval()
        self.width, self.layers = backbone.width, backbone.depth
        self.device = arithmetic.torch_device

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Look up the vectors of all words and pairs of the texts `rows`; see `Model.states`."""
        return self._backbone(ForwardRequest(tokens.of_rows(rows), wanted, skip))

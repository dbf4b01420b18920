"""Forward pass of a convolutional encoder for inference, for a fixed number of tokens."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.inference.model import Model
from pipeline.models.layers.linear import Linear
from pipeline.models.layers.ngrams import neighbourhoods
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import TABLE_STATE
from pipeline.models.trainable.convolutional import REACH, load_convolutional
from pipeline.text.tokens.tokens import Tokens


class ConvolutionalModel(Model):
    """Convolutional encoder on a device, for buffers of `arithmetic.max_tokens` tokens."""

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        backbone = load_convolutional(folder, checkpoint).requires_grad_(False)
        backbone.to(arithmetic.torch_device, arithmetic.torch_dtype)
        self.width, self.layers = backbone.width, backbone.depth
        self.device, self._words = arithmetic.torch_device, backbone.word_table
        self._stack = [
            Linear(layer.weight, layer.bias, rows=arithmetic.max_tokens, activation="relu")
            for layer in backbone.layer_convolutions()
        ]

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Compute the hidden states (max_tokens, d); texts begin at token 0, and padding fills the rest."""
        ids, texts = np.zeros(max_tokens, np.int64), np.full(max_tokens, len(tokens))
        ids[: len(tokens.ids)], texts[: len(tokens.ids)] = tokens.ids, tokens.owners
        owners = self.put(texts)
        x = F.embedding(self.put(ids), self._words)
        states, outputs = {TABLE_STATE: x, 0: x}, []
        for number, layer in enumerate(self._stack, start=1):
            x = states[number] = layer(neighbourhoods(x, owners, REACH))
            outputs.append(x)
        states[self.layers] = torch.cat(outputs, dim=1)
        return {number: states[number] for number in wanted}, tokens.offsets[:-1]

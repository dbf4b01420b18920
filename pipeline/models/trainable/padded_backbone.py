"""Trainable backbone of architectures without a packed forward pass: padded, through transformers."""

import inspect

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import first_position
from pipeline.models.folder.identity import state_width
from pipeline.models.layers.backbones import Backbone, ForwardRequest
from pipeline.models.layers.transformers_model import (
    ModuleState,
    encoder_of,
    hidden_states,
    load_model,
    padding_id,
)
from pipeline.models.spec.pooling import Segments, find_segments


class PaddedBackbone(Backbone):
    """A transformers model; texts are padded to the longest of the call.

    Parts outside its encoder, such as a decoder, are saved with it but not trained.
    """

    def __init__(self, folder: EncoderFolder, dropout: float | None) -> None:
        super().__init__()
        self.model = load_model(folder, torch.float32, dropout)
        self._path, self._first_position = str(folder.path), first_position(folder.config)
        self._has_types = "token_type_ids" in inspect.signature(self.model.forward).parameters
        config = self.model.config.get_text_config()
        self.width, self.depth = state_width(config.to_dict()), int(config.num_hidden_layers)
        self._pad_id = padding_id(config)
        trained = {id(parameter) for parameter in encoder_of(self.model).parameters()}
        for parameter in self.model.parameters():
            parameter.requires_grad_(id(parameter) in trained)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the wanted hidden states (n * L, d) by number, and the rows of each text in them.

        Raises:
            ModelError: the request has `at_embedding`, or has positions and the model accepts none.
        """
        if request.at_embedding is not None:
            raise ModelError(
                self._path,
                "a packed-family encoder (BERT, RoBERTa, ...); this view perturbs embeddings",
                str(self.model.config.model_type),
                "use another view",
            )
        if self.checkpointing and not self.model.is_gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        elif self.model.is_gradient_checkpointing and not self.checkpointing:
            self.model.gradient_checkpointing_disable()
        tokens, lengths = request.tokens, request.tokens.lengths
        longest = int(lengths.max())
        is_token = np.arange(longest) < lengths[:, None]
        inputs = {
            "input_ids": self._pad(tokens.ids, is_token, self._pad_id),
            "attention_mask": self._put(is_token.astype(np.int64)),
        }
        if tokens.types is not None and self._has_types:
            inputs["token_type_ids"] = self._pad(tokens.types, is_token, 0)
        if request.positions is not None:
            inputs["position_ids"] = self._position_ids(request.positions, is_token)
        starts = np.arange(len(lengths)) * longest
        segments = find_segments(starts, lengths, request.skip, self._put, tokens.kept)
        encoder = encoder_of(self.model)
        # layers that the backward pass computes again must find the modules as the forward pass left them
        state = None if torch.is_grad_enabled() and self.checkpointing else ModuleState(encoder)
        return hidden_states(encoder, self.depth, inputs, request.wanted, state), segments

    @property
    def word_table(self) -> Tensor:
        """Word embeddings (vocabulary, d)."""
        return encoder_of(self.model).get_input_embeddings().weight

    def draw(self) -> None:
        """Draw new weights as transformers initializes a model of this architecture."""
        self.model.load_state_dict(type(self.model)(self.model.config).state_dict())

    def _position_ids(self, positions: np.ndarray, is_token: np.ndarray) -> Tensor:
        """Pad positions for the argument position_ids. Raises ModelError if the model has none."""
        if "position_ids" not in inspect.signature(encoder_of(self.model).forward).parameters:
            raise ModelError(
                self._path,
                "a model that accepts position_ids, for views with permuted positions",
                str(self.model.config.model_type),
                "use another view",
            )
        return self._pad(np.asarray(positions) + self._first_position, is_token, 0)

    def _pad(self, values: np.ndarray, is_token: np.ndarray, padding: int) -> Tensor:
        """Arrange values (tokens,) in a row for each text, with `padding` after its end."""
        padded = np.full(is_token.shape, padding, np.int64)
        padded[is_token] = values
        return self._put(padded)

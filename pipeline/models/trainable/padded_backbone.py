"""Forward passes of other architectures that can be trained: padded, through transformers."""

import inspect

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import PACKED_FAMILIES, EncoderFolder
from pipeline.models.inference.padded import encoder_of, hidden_states, load_model
from pipeline.models.layers.pooling import Segments, segments
from pipeline.models.trainable.backbones import Backbone, ForwardRequest


class PaddedBackbone(Backbone):
    """A transformers model; texts are padded to the longest of the call.

    Parts that are not its encoder, such as a decoder, are saved with it but not trained.
    """

    def __init__(self, folder: EncoderFolder, dropout: float | None) -> None:
        super().__init__()
        self.model = load_model(folder, torch.float32, dropout)
        self._checkpointed, self._where = False, str(folder.path)
        config = self.model.config.get_text_config()
        self.width, self.layers = int(config.hidden_size), int(config.num_hidden_layers)
        self._pad_id = int(config.pad_token_id or 0)
        counts_from_pad = PACKED_FAMILIES.get(str(folder.config.get("model_type"))) in ("roberta", "mpnet")
        self._offset = self._pad_id + 1 if counts_from_pad else 0
        trained = {id(parameter) for parameter in encoder_of(self.model).parameters()}
        for parameter in self.model.parameters():
            parameter.requires_grad_(id(parameter) in trained)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return hidden states (n * L, d) of the wanted numbers, and the rows of each text in them.

        Raises:
            ModelError: the request changes the embeddings, or positions that the model does not take.
        """
        if request.at_embedding is not None:
            raise ModelError(
                self._where,
                "one of the packed families for views made at the embeddings",
                str(self.model.config.model_type),
                "use another view",
            )
        if self.checkpointing and not self._checkpointed:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        elif self._checkpointed and not self.checkpointing:
            self.model.gradient_checkpointing_disable()
        self._checkpointed = self.checkpointing
        tokens, lengths = request.tokens, request.tokens.lengths
        longest = int(lengths.max())
        real = np.arange(longest) < lengths[:, None]
        inputs = {
            "input_ids": self._padded(tokens.ids, real, self._pad_id),
            "attention_mask": self._put(real.astype(np.int64)),
        }
        if request.positions is not None:
            inputs["position_ids"] = self._position_ids(request.positions, real)
        where = segments(np.arange(len(lengths)) * longest, lengths, request.skip, self._put, tokens.kept)
        return hidden_states(encoder_of(self.model), inputs, request.wanted), where

    @property
    def words(self) -> Tensor:
        """(vocabulary, d) rows of the word table."""
        return encoder_of(self.model).get_input_embeddings().weight

    def draw(self) -> None:
        """Draw new weights as transformers initializes a model of this architecture."""
        self.model.load_state_dict(type(self.model)(self.model.config).state_dict())

    def _position_ids(self, positions: np.ndarray, real: np.ndarray) -> Tensor:
        if "position_ids" not in inspect.signature(encoder_of(self.model).forward).parameters:
            raise ModelError(
                self._where,
                "a model that takes position_ids, for tokens out of their order",
                str(self.model.config.model_type),
                "use another view",
            )
        return self._padded(np.asarray(positions) + self._offset, real, 0)

    def _padded(self, values: np.ndarray, real: np.ndarray, filling: int) -> Tensor:
        padded = np.full(real.shape, filling, np.int64)
        padded[real] = values
        return self._put(padded)

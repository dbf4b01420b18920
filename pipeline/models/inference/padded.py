"""Padded forward pass through transformers, for architectures without a packed forward pass."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.pretrained import load_config, load_whole
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.pooling import TABLE_STATE, Segments, segments
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens

_STEP = 16  # lengths are padded to multiples of it: few shapes, and less than 16 wasted tokens per text
_ENCODER_ONLY = ("t5", "mt5", "umt5")  # sentence encoders of these types are stored without their decoder


class PaddedModel:
    """Transformers model on a device.

    All batches of texts padded to L tokens have the same number of rows, max_tokens // L but at least
    one, filled up with dummy rows. As in the packed forward pass, the shapes, and so the bits of a
    text, do not depend on the other texts. A text may be longer than max_tokens.
    """

    def __init__(self, folder: EncoderFolder, arithmetic: Arithmetic) -> None:
        model = load_model(folder, arithmetic.torch_dtype)
        encoder = model.get_encoder() if model.config.is_encoder_decoder else model
        self._model = encoder.to(arithmetic.place).eval()
        config = self._model.config.get_text_config()
        self.width, self.layers = int(config.hidden_size), int(config.num_hidden_layers)
        self._device, self._longest = arithmetic.place, folder.max_length
        self._pad_id = int(config.pad_token_id or 0)
        # the table itself: some models scale its rows before the first layer
        self._words = self._model.get_input_embeddings().weight

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Group texts into forward passes of one padded length each, longest first; see `Model.plan`."""
        order = longest_first(lengths)
        order = order[lengths[order] > 0]
        padded = self._padded(lengths[order])
        batches: list[np.ndarray] = []
        for length in np.unique(padded)[::-1]:
            chosen, rows = order[padded == length], max(1, max_tokens // int(length))
            batches += np.split(chosen, range(rows, len(chosen), rows))
        return batches

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Compute the hidden states (batch * L, d) of the texts `rows`; see `Model.states`."""
        part = tokens.of_rows(rows)
        lengths = part.lengths
        width = int(self._padded(lengths[:1])[0])
        ids = np.full((max(1, max_tokens // width), width), self._pad_id, np.int64)
        mask = np.zeros_like(ids)
        mask[:, 0] = 1  # a dummy row attends to one token: attention over no token gives NaN
        for row, length in enumerate(lengths):
            ids[row, :length] = part.ids[part.offsets[row] : part.offsets[row + 1]]
            mask[row, :length] = 1
        hidden = self._forward(ids, mask, wanted)
        return hidden, segments(np.arange(len(rows)) * width, lengths, skip, self._put, part.kept)

    def _forward(self, ids: np.ndarray, mask: np.ndarray, wanted: set[int]) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        if TABLE_STATE in wanted:
            found[TABLE_STATE] = F.embedding(self._put(ids), self._words).flatten(0, 1)
        wanted = wanted - {TABLE_STATE}
        if not wanted:
            return found
        inner = bool(wanted - {self.layers})
        output = self._model(
            input_ids=self._put(ids),
            attention_mask=self._put(mask),
            output_hidden_states=inner,
            return_dict=True,
        )
        chosen = {
            number: output.last_hidden_state if number == self.layers else output.hidden_states[number]
            for number in wanted
        }
        return found | {number: state.flatten(0, 1) for number, state in chosen.items()}

    def _put(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _padded(self, lengths: np.ndarray) -> np.ndarray:
        return np.minimum(-(-lengths // _STEP) * _STEP, max(self._longest, int(lengths.max(initial=0))))


def load_model(folder: EncoderFolder, dtype: torch.dtype, dropout: float | None = None) -> Any:
    """Load the transformers model of a folder.

    Args:
        folder: of the encoder.
        dtype: of the weights.
        dropout: rate of all dropout layers; None: as in config.json.

    Raises:
        ModelError: transformers cannot load it, or weights are missing.
    """
    import transformers

    path = folder.path / folder.transformer
    config = load_config(path)
    for name, value in config.to_dict().items():
        if dropout is not None and isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, dropout)
    encoder_only = config.model_type in _ENCODER_ONLY
    auto = transformers.AutoModelForTextEncoding if encoder_only else transformers.AutoModel
    expected = "a model that transformers loads"
    return load_whole(auto, path, expected, unused=("pooler.",), config=config, dtype=dtype)

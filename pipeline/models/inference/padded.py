"""The ordinary padded forward pass through transformers, for every architecture that the packed one does not know."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.folder.folder import EncoderFolder
from pipeline.models.folder.pretrained import load_config, load_whole
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.pooling import TABLE_STATE, Segments, segments
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens

_STEP = 16  # lengths are padded up to multiples of it: few shapes, and less than 16 tokens of a text wasted
_ENCODER_ALONE = ("t5", "mt5", "umt5")  # folders of sentence encoders hold the encoder without a decoder


class PaddedModel:
    """A transformers model on a device.

    Every batch of texts padded to L tokens has the same number of rows, max_tokens // L and at least one, filled up with dummies: as in the packed pass a
    text meets the same shapes whatever its neighbours. A text may be longer than max_tokens, which bounds what is computed for dummies.
    """

    def __init__(self, folder: EncoderFolder, arithmetic: Arithmetic) -> None:
        model = load_model(folder, arithmetic.torch_dtype)
        self._model = (
            (model.get_encoder() if model.config.is_encoder_decoder else model).to(arithmetic.place).eval()
        )
        config = self._model.config.get_text_config()
        self.width, self.layers = int(config.hidden_size), int(config.num_hidden_layers)
        self._device, self._longest = arithmetic.place, folder.max_length
        self._pad_id = int(config.pad_token_id or 0)
        self._words = (
            self._model.get_input_embeddings().weight
        )  # as it stands: some models scale its rows on the way into the first layer

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Rows of each forward pass: all of one padded length, longest first."""
        order = longest_first(lengths)
        order = order[lengths[order] > 0]
        padded = self._padded(lengths[order])
        batches: list[np.ndarray] = []
        for length in np.unique(padded)[::-1]:
            alike, rows = order[padded == length], max(1, max_tokens // int(length))
            batches += np.split(alike, range(rows, len(alike), rows))
        return batches

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Hidden states (batch * L, d) of the wanted numbers, and where the texts `rows` lie in them."""
        part = tokens.of_rows(rows)
        lengths = part.lengths
        width = int(self._padded(lengths[:1])[0])
        ids = np.full((max(1, max_tokens // width), width), self._pad_id, np.int64)
        mask = np.zeros_like(ids)
        mask[:, 0] = 1  # a dummy attends to one token: a row without any gives not-a-number
        for place, length in enumerate(lengths):
            ids[place, :length] = part.ids[part.offsets[place] : part.offsets[place + 1]]
            mask[place, :length] = 1
        hidden = self._forward(ids, mask, wanted)
        return hidden, segments(np.arange(len(rows)) * width, lengths, skip, self._put, part.kept)

    def _forward(self, ids: np.ndarray, mask: np.ndarray, wanted: set[int]) -> dict[int, Tensor]:
        rows = (
            {TABLE_STATE: F.embedding(self._put(ids), self._words).flatten(0, 1)}
            if TABLE_STATE in wanted
            else {}
        )
        wanted = wanted - {TABLE_STATE}
        if not wanted:
            return rows
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
        return rows | {number: state.flatten(0, 1) for number, state in chosen.items()}

    def _put(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _padded(self, lengths: np.ndarray) -> np.ndarray:
        return np.minimum(-(-lengths // _STEP) * _STEP, max(self._longest, int(lengths.max(initial=0))))


def load_model(folder: EncoderFolder, dtype: torch.dtype, dropout: float | None = None) -> Any:
    """Load the transformers model of a folder.

    Args:
        dropout: the rate wherever the model has dropout; None: as config.json says.

    Raises:
        ModelError: transformers cannot load it, or weights are missing.
    """
    import transformers

    path = folder.path / folder.transformer
    config = load_config(path)
    for name, value in config.to_dict().items():
        if dropout is not None and isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, dropout)
    auto = (
        transformers.AutoModelForTextEncoding
        if config.model_type in _ENCODER_ALONE
        else transformers.AutoModel
    )
    return load_whole(
        auto, path, "a model that transformers loads", unused=("pooler.",), config=config, dtype=dtype
    )

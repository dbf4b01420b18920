"""Guess masked words with a masked language model. Imports torch.

Batches have few shapes, and logits are computed only at the masks. The caller gives the random numbers by
which guesses are drawn, so that guesses can be repeated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from pipeline.device import Device
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.pretrained import load_complete
from pipeline.models.layers.transfer import to_device

_BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}
_LENGTH_MULTIPLE = 4  # padded lengths are multiples of this: few shapes, less than 4 wasted tokens per text


@dataclass(frozen=True)
class MaskedText:
    """A tokenized text in which words are masked."""

    ids: list[int]
    """token ids, with mask tokens"""
    positions: list[int]
    """positions of the mask tokens"""
    excluded: list[Sequence[int]]
    """for each mask, ids that must not be guessed"""
    uniforms: list[float]
    """for each mask, a random number in [0, 1) that determines the guess"""


@dataclass(frozen=True)
class GuessChoice:
    """Sampling of guesses from softmax(logits / temperature)."""

    candidates: Sequence[int]
    """ids that can be guessed"""
    top_k: int | None
    """number of the likeliest candidates to sample from; None: all"""
    temperature: float


class PaddedBatch(NamedTuple):
    """Texts that are padded to one length."""

    indices: list[int]
    """indices of the texts"""
    width: int
    """tokens of a row, padding included"""
    size: int
    """number of rows, dummy rows included"""


class Guesser:
    """A masked language model on a device."""

    def __init__(
        self, folder: EncoderFolder, device: Device, dtype: str, *, batch_tokens: int | None, threads: int
    ) -> None:
        """Load the model.

        Args:
            folder: folder of the model.
            device: device that computes.
            dtype: name of the torch type of weights and activations.
            batch_tokens: tokens of a batch, with padding; None: 2,048 on a CPU, 16,384 on a GPU.
            threads: torch's number of threads on a CPU.

        Raises:
            ModelError: see `load_masked_lm`.
        """
        if device.kind == "cpu":
            torch.set_num_threads(threads)
        self._device = device.torch()
        self._model = load_masked_lm(folder, getattr(torch, dtype)).to(self._device).eval()
        self._pad_id, self._max_length = int(self._model.config.pad_token_id or 0), folder.max_length
        self._batch_tokens = batch_tokens or _BATCH_TOKENS[device.kind]
        self._positions: Tensor | None = None
        if (output_layer := self._model.get_output_embeddings()) is not None:
            output_layer.register_forward_pre_hook(self._keep_masked)

    def batches(self, rows: Sequence[MaskedText]) -> Iterator[PaddedBatch]:
        """Group rows of one padded length into batches, longest first.

        There are few shapes: a batch has the full number of rows, or a half, a quarter, ... of that number.
        """
        by_width: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            length = len(row.ids)
            rounded = -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
            by_width.setdefault(max(min(rounded, self._max_length), length), []).append(index)
        for width in sorted(by_width, reverse=True):
            full_size = max(1, self._batch_tokens // width)
            for start in range(0, len(by_width[width]), full_size):
                indices = by_width[width][start : start + full_size]
                yield PaddedBatch(indices, width, _smallest_size(full_size, len(indices)))

    def guesses(
        self, rows: Sequence[MaskedText], width: int, size: int, masks: int, choice: GuessChoice
    ) -> list[list[int]]:
        """Guess an id for each mask of a batch. Other rows change a row's logits by rounding only.

        Args:
            rows: rows of one batch, as `batches` yields them.
            width: padded length of the rows.
            size: number of rows of the batch, dummy rows included.
            masks: largest number of masks that any row of this width can have.
            choice: candidates, top_k and temperature.
        """
        ids = np.full((size, width), self._pad_id, np.int64)
        attention_mask = np.zeros((size, width), np.int64)
        positions = np.zeros((size, masks), np.int64)
        attention_mask[:, 0] = 1  # a dummy row attends to one token: attention over no token gives NaN
        for index, row in enumerate(rows):
            length = len(row.ids)
            ids[index, :length], attention_mask[index, :length] = row.ids, 1
            positions[index, : len(row.positions)] = row.positions
        inputs = (to_device(array, self._device) for array in (ids, attention_mask, positions))
        logits = self._logits(*inputs)
        counts = torch.tensor([len(row.positions) for row in rows], device=logits.device)
        is_mask = torch.arange(masks, device=logits.device) < counts[:, None]
        excluded = [ids_of_mask for row in rows for ids_of_mask in row.excluded]
        uniforms = [uniform for row in rows for uniform in row.uniforms]
        guessed = iter(_sample(logits[: len(rows)][is_mask].float(), excluded, uniforms, choice))
        return [[next(guessed) for _ in row.positions] for row in rows]

    def _logits(self, ids: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
        """Compute the logits at `positions` (rows, masks) of each row: (rows, masks, vocabulary)."""
        self._positions = positions  # the hook _keep_masked reads it, and sets it to None
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=attention_mask).logits
            # without an output layer to hook into, the model computed the logits of all tokens
            return logits if self._positions is None else _gather(logits, positions)

    def _keep_masked(self, module: Any, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Pass only the states of masks to the output layer: logits of all tokens would cost far more."""
        assert self._positions is not None
        positions, self._positions = self._positions, None
        return _gather(states[0], positions), *states[1:]


def load_masked_lm(folder: EncoderFolder, dtype: torch.dtype) -> Any:
    """Load the transformers model of a folder with its masked language model head.

    Raises:
        ModelError: it has no such head, or cannot be loaded.
    """
    from transformers import AutoModelForMaskedLM

    return load_complete(
        AutoModelForMaskedLM,
        folder.transformer_path,
        "a masked language model: an encoder and its head over words",
        remedy="use a model that was saved with its head, such as bert-base-uncased; sentence encoders are "
        "saved without",
        dtype=dtype,
    )


def _sample(
    logits: Tensor, excluded: list[Sequence[int]], uniforms: list[float], choice: GuessChoice
) -> list[int]:
    """Draw an id for each row of logits (n, vocabulary) by inverting the cumulative distribution.

    The distribution lists the likeliest ids first, and is normalized to sum to one.
    """
    logits = logits / choice.temperature
    vocabulary = logits.shape[1]
    allowed = torch.zeros(vocabulary, dtype=torch.bool)
    allowed[torch.tensor([token_id for token_id in choice.candidates if token_id < vocabulary])] = True
    logits[:, ~allowed.to(logits.device)] = -torch.inf
    if banned := [
        (row, token_id)
        for row, token_ids in enumerate(excluded)
        for token_id in token_ids
        if token_id < vocabulary
    ]:
        rows, columns = torch.tensor(banned, device=logits.device).T
        logits[rows, columns] = -torch.inf
    best, best_ids = logits.topk(min(choice.top_k or vocabulary, vocabulary), dim=1)
    sums = torch.softmax(best.double(), dim=1).cumsum(dim=1)
    thresholds = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * sums[:, -1:]
    ranks = (sums <= thresholds).sum(dim=1, keepdim=True).clamp(max=best_ids.shape[1] - 1)
    return cast(list[int], best_ids.gather(1, ranks)[:, 0].tolist())


def _smallest_size(size: int, count: int) -> int:
    """Return the smallest of size, size / 2, size / 4 ... that is at least `count`."""
    while size // 2 >= count:
        size //= 2
    return size


def _gather(states: Tensor, positions: Tensor) -> Tensor:
    """Gather states (rows, L, d) at positions (rows, k): (rows, k, d)."""
    return states.gather(1, positions[:, :, None].expand(-1, -1, states.shape[2]))

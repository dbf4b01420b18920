"""Guess masked words with a masked language model: few batch shapes, logits at the masks only.

The caller gives the random numbers by which guesses are drawn, so that they can be repeated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.device import Device
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.pretrained import load_whole
from pipeline.models.layers.transfer import to_device

_BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}
_WIDTH_MULTIPLE = (
    4  # lengths are padded to multiples of it: few shapes, and less than 4 wasted tokens per text
)


@dataclass(frozen=True)
class MaskedText:
    """A tokenized text in which words are masked."""

    ids: list[int]
    """token ids, those of the masks included"""
    positions: list[int]
    """positions of the masks"""
    excluded: list[Sequence[int]]
    """for each mask, ids that must not be its guess"""
    uniforms: list[float]
    """for each mask, the random number in [0, 1) by which its guess is drawn"""


@dataclass(frozen=True)
class GuessChoice:
    """Sampling of guesses from the softmax of the logits divided by the temperature."""

    among: Sequence[int]
    """ids that can be guessed"""
    top_k: int | None
    """number of likeliest ids; None: all"""
    temperature: float


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
        self._pad, self._limit = int(self._model.config.pad_token_id or 0), folder.max_length
        self._batch_tokens = batch_tokens or _BATCH_TOKENS[device.kind]
        self._positions: Tensor | None = None
        if (last := self._model.get_output_embeddings()) is not None:
            last.register_forward_pre_hook(self._keep_masked)

    def batches(self, rows: Sequence[MaskedText]) -> Iterator[tuple[list[int], int, int]]:
        """Group rows of one padded length into batches, longest first.

        There are few shapes: a batch is full, or a half, a quarter and so on of a full one.

        Yields:
            Indices in `rows`, the padded length, and the number of rows of the batch with dummy rows.
        """
        by_width: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            width = max(min(-(-len(row.ids) // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE, self._limit), len(row.ids))
            by_width.setdefault(width, []).append(index)
        for width in sorted(by_width, reverse=True):
            size = max(1, self._batch_tokens // width)
            for start in range(0, len(by_width[width]), size):
                batch = by_width[width][start : start + size]
                yield batch, width, _smallest_size(size, len(batch))

    def guesses(
        self, rows: Sequence[MaskedText], width: int, size: int, masks: int, choice: GuessChoice
    ) -> list[list[int]]:
        """Guess an id for each mask of a batch. Other rows of the batch change the logits by rounding only.

        Args:
            rows: rows of one batch, as `batches` yields them.
            width: padded length of the rows.
            size: number of rows of the batch with dummy rows.
            masks: largest number of masks that any row of this width can have.
            choice: candidates and temperature.
        """
        ids = np.full((size, width), self._pad, np.int64)
        attention_mask = np.zeros((size, width), np.int64)
        positions = np.zeros((size, masks), np.int64)
        attention_mask[:, 0] = 1  # a dummy row attends to one token: attention over no token gives NaN
        for index, row in enumerate(rows):
            length = len(row.ids)
            ids[index, :length], attention_mask[index, :length] = row.ids, 1
            positions[index, : len(row.positions)] = row.positions
        logits = self._logits(*(to_device(each, self._device) for each in (ids, attention_mask, positions)))
        wanted = [(index, number) for index, row in enumerate(rows) for number in range(len(row.positions))]
        indices, numbers = torch.tensor(wanted, device=logits.device).T
        excluded = [each for row in rows for each in row.excluded]
        uniforms = [each for row in rows for each in row.uniforms]
        guessed = iter(_sample(logits[indices, numbers].float(), excluded, uniforms, choice))
        return [[next(guessed) for _ in row.positions] for row in rows]

    def _logits(self, ids: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
        """Compute the logits at `positions` (rows, masks) of each row: (rows, masks, vocabulary)."""
        self._positions = positions  # for _keep_masked, which the model calls
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=attention_mask).logits
            return logits if self._positions is None else _gather(logits, positions)

    def _keep_masked(self, module: Any, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Reduce the input of the output layer to the masks: logits of all tokens would cost far more."""
        assert self._positions is not None
        positions, self._positions = self._positions, None
        return _gather(states[0], positions), *states[1:]


def load_masked_lm(folder: EncoderFolder, dtype: torch.dtype) -> Any:
    """Load the transformers model of a folder with its masked language model head.

    Raises:
        ModelError: it has no such head, or cannot be loaded.
    """
    from transformers import AutoModelForMaskedLM

    return load_whole(
        AutoModelForMaskedLM,
        folder.beside_config(""),
        "a masked language model: an encoder and its head over words",
        remedy="use a model that was saved with its head, such as bert-base-uncased; sentence encoders are "
        "saved without",
        dtype=dtype,
    )


def _sample(
    logits: Tensor, excluded: list[Sequence[int]], uniforms: list[float], choice: GuessChoice
) -> list[int]:
    """Draw an id for each row of logits (n, vocabulary) by inverting the cumulative distribution.

    The likeliest ids come first, and their probabilities are normalized to sum to one.
    """
    logits = logits / choice.temperature
    usable = torch.zeros(logits.shape[1], dtype=torch.bool)
    usable[torch.tensor([number for number in choice.among if number < len(usable)])] = True
    logits[:, ~usable.to(logits.device)] = -torch.inf
    pairs = [(row, number) for row, numbers in enumerate(excluded) for number in numbers]
    if banned := [(row, number) for row, number in pairs if number < len(usable)]:
        rows, ids = torch.tensor(banned, device=logits.device).T
        logits[rows, ids] = -torch.inf
    best, numbers = logits.topk(min(choice.top_k or logits.shape[1], logits.shape[1]), dim=1)
    sums = torch.softmax(best.double(), dim=1).cumsum(dim=1)
    below = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * sums[:, -1:]
    ranks = (sums <= below).sum(dim=1, keepdim=True).clamp(max=numbers.shape[1] - 1)
    chosen: list[int] = numbers.gather(1, ranks)[:, 0].tolist()
    return chosen


def _smallest_size(size: int, count: int) -> int:
    """Smallest of size, size / 2, size / 4 ... that is at least `count`."""
    while size // 2 >= count:
        size //= 2
    return size


def _gather(states: Tensor, positions: Tensor) -> Tensor:
    """Gather states (rows, L, d) at positions (rows, k): (rows, k, d)."""
    return states.gather(1, positions[:, :, None].expand(-1, -1, states.shape[2]))

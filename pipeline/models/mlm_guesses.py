"""Guess masked words with a masked language model: few batch shapes, logits at the masks only.

Guesses are drawn by given random numbers.
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

_TOKENS = {"cpu": 2_048, "cuda": 16_384}
_STEP = 4  # lengths are padded to multiples of it: few shapes, and less than 4 wasted tokens per text


@dataclass(frozen=True)
class MaskedText:
    """A text with masks."""

    ids: list[int]
    at: list[int]
    """positions of the masks"""
    unwanted: list[Sequence[int]]
    """for each mask, ids that must not be guessed"""
    drawn: list[float]
    """for each mask, a random number in [0, 1)"""


@dataclass(frozen=True)
class GuessChoice:
    """Sampling of a guess: by softmax of the logits over the temperature, among the likeliest ids."""

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
            folder: of the model.
            device: where it computes.
            dtype: of weights and activations.
            batch_tokens: tokens of a batch, with padding; None: 2,048 on a CPU, 16,384 on a GPU.
            threads: of torch, on a CPU.

        Raises:
            ModelError: as `load_masked_lm` does.
        """
        if device.kind == "cpu":
            torch.set_num_threads(threads)
        self._place = device.torch()
        self._model = load_masked_lm(folder, getattr(torch, dtype)).to(self._place).eval()
        self._pad, self._limit = int(self._model.config.pad_token_id or 0), folder.max_length
        self._tokens = batch_tokens or _TOKENS[device.kind]
        self._at: Tensor | None = None
        if (last := self._model.get_output_embeddings()) is not None:
            last.register_forward_pre_hook(self._gathered)

    def batches(self, rows: Sequence[MaskedText]) -> Iterator[tuple[list[int], int, int]]:
        """Group rows of one padded length into batches, longest first.

        There are few shapes: a batch is full, or a half, a quarter and so on of a full one.

        Yields:
            Indices in `rows`, the padded length, and the number of rows of the batch with dummy rows.
        """
        by_width: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            width = max(min(-(-len(row.ids) // _STEP) * _STEP, self._limit), len(row.ids))
            by_width.setdefault(width, []).append(index)
        for width in sorted(by_width, reverse=True):
            size = max(1, self._tokens // width)
            for start in range(0, len(by_width[width]), size):
                batch = by_width[width][start : start + size]
                yield batch, width, _least(size, len(batch))

    def guesses(
        self, rows: Sequence[MaskedText], width: int, size: int, masks: int, choice: GuessChoice
    ) -> list[list[int]]:
        """Guess an id for each mask of a batch. Other rows change it by rounding errors at most.

        Args:
            rows: of one batch of `batches`.
            width: their padded length.
            size: rows of the batch with dummy rows.
            masks: of a row at most.
            choice: how to draw.
        """
        ids = np.full((size, width), self._pad, np.int64)
        seen = np.zeros((size, width), np.int64)
        at = np.zeros((size, masks), np.int64)
        seen[:, 0] = 1  # a dummy row attends to one token: attention over no token gives NaN
        for index, row in enumerate(rows):
            length = len(row.ids)
            ids[index, :length], seen[index, :length], at[index, : len(row.at)] = row.ids, 1, row.at
        logits = self._logits(*(to_device(each, self._place) for each in (ids, seen, at)))
        wanted = [(index, number) for index, row in enumerate(rows) for number in range(len(row.at))]
        indices, numbers = torch.tensor(wanted, device=logits.device).T
        unwanted = [each for row in rows for each in row.unwanted]
        drawn = [each for row in rows for each in row.drawn]
        guessed = iter(_drawn(logits[indices, numbers].float(), unwanted, drawn, choice))
        return [[next(guessed) for _ in row.at] for row in rows]

    def _logits(self, ids: Tensor, seen: Tensor, at: Tensor) -> Tensor:
        """Logits at the positions `at` of each row, (rows, masks, vocabulary)."""
        self._at = at
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=seen).logits
            return logits if self._at is None else _rows(logits, at)

    def _gathered(self, module: Any, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Reduce the output layer's input to the masks, as a vocabulary is far wider than the model."""
        assert self._at is not None
        at, self._at = self._at, None
        return _rows(states[0], at), *states[1:]


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


def _drawn(
    logits: Tensor, unwanted: list[Sequence[int]], drawn: list[float], choice: GuessChoice
) -> list[int]:
    """Draw an id for each row of logits (n, vocabulary) by inverting the cumulative distribution.

    The likeliest ids come first, and their probabilities are normalized to sum to one.
    """
    logits = logits / choice.temperature
    usable = torch.zeros(logits.shape[1], dtype=torch.bool)
    usable[torch.tensor([number for number in choice.among if number < len(usable)])] = True
    logits[:, ~usable.to(logits.device)] = -torch.inf
    pairs = [(row, number) for row, numbers in enumerate(unwanted) for number in numbers]
    if banned := [(row, number) for row, number in pairs if number < len(usable)]:
        rows, ids = torch.tensor(banned, device=logits.device).T
        logits[rows, ids] = -torch.inf
    best, numbers = logits.topk(min(choice.top_k or logits.shape[1], logits.shape[1]), dim=1)
    sums = torch.softmax(best.double(), dim=1).cumsum(dim=1)
    below = torch.tensor(drawn, dtype=torch.float64, device=logits.device)[:, None] * sums[:, -1:]
    ranks = (sums <= below).sum(dim=1, keepdim=True).clamp(max=numbers.shape[1] - 1)
    chosen: list[int] = numbers.gather(1, ranks)[:, 0].tolist()
    return chosen


def _least(size: int, count: int) -> int:
    """Smallest of size, size / 2, size / 4 ... that is at least `count`."""
    while size // 2 >= count:
        size //= 2
    return size


def _rows(states: Tensor, at: Tensor) -> Tensor:
    """Select states (rows, L, d) at positions (rows, k): (rows, k, d)."""
    return states.gather(1, at[:, :, None].expand(-1, -1, states.shape[2]))

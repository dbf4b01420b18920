"""A masked language model guesses words behind masks: batches of few shapes, logits at the masks alone,
guesses drawn by numbers that are given.
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

_TOKENS = {"cpu": 2_048, "cuda": 16_384}
_STEP = 4  # lengths are padded up to multiples of it: few shapes, and less than 4 places of a text wasted


@dataclass(frozen=True)
class Blanks:
    """A text with masks in it."""

    ids: list[int]
    at: list[int]
    """places of the masks"""
    unwanted: list[Sequence[int]]
    """for each mask ids that are no guesses"""
    drawn: list[float]
    """for each mask a number in [0, 1)"""


@dataclass(frozen=True)
class GuessChoice:
    """How a guess is drawn: among the `top_k` likeliest (None: all) of `among`, by their logits over the
    temperature.
    """

    among: Sequence[int]
    top_k: int | None
    temperature: float


class Guesser:
    """A model with its head over words, on a device."""

    def __init__(
        self, folder: EncoderFolder, device: Device, dtype: str, *, batch_tokens: int | None, threads: int
    ) -> None:
        """batch_tokens: of one batch, padding included; None: 2,048 on a CPU, 16,384 on a GPU. ModelError as
        `load_masked_lm`.
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

    def batches(self, rows: Sequence[Blanks]) -> Iterator[tuple[list[int], int, int]]:
        """(rows by their places in `rows`, all of one padded length, the length, and the rows of the batch
        with dummies), longest first.

        Few shapes: a batch is full, or a half, a quarter and so on of a full one.
        """
        alike: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            alike.setdefault(
                max(min(-(-len(row.ids) // _STEP) * _STEP, self._limit), len(row.ids)), []
            ).append(place)
        for width in sorted(alike, reverse=True):
            size = max(1, self._tokens // width)
            for start in range(0, len(alike[width]), size):
                places = alike[width][start : start + size]
                yield places, width, _least(size, len(places))

    def guesses(
        self, rows: Sequence[Blanks], width: int, size: int, masks: int, choice: GuessChoice
    ) -> list[list[int]]:
        """An id for each mask of the rows, which are a batch of `batches`; masks: that a row has at most.

        The other rows change no more than roundings.
        """
        ids, seen, at = (
            np.full((size, width), self._pad, np.int64),
            np.zeros((size, width), np.int64),
            np.zeros((size, masks), np.int64),
        )
        seen[:, 0] = 1  # a dummy attends to one token: a row without any gives not-a-number
        for place, row in enumerate(rows):
            ids[place, : len(row.ids)], seen[place, : len(row.ids)], at[place, : len(row.at)] = (
                row.ids,
                1,
                row.at,
            )
        logits = self._logits(*(torch.from_numpy(each).to(self._place) for each in (ids, seen, at)))
        wanted = [(place, number) for place, row in enumerate(rows) for number in range(len(row.at))]
        places, numbers = torch.tensor(wanted, device=logits.device).T
        drawn = iter(
            _drawn(
                logits[places, numbers].float(),
                [each for row in rows for each in row.unwanted],
                [each for row in rows for each in row.drawn],
                choice,
            )
        )
        return [[next(drawn) for _ in row.at] for row in rows]

    def _logits(self, ids: Tensor, seen: Tensor, at: Tensor) -> Tensor:
        """(rows, masks, vocabulary), of the places `at` of each row."""
        self._at = at
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=seen).logits
            return logits if self._at is None else _rows(logits, at)

    def _gathered(self, module: Any, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What is compared with the words, at the masks alone: a vocabulary is far wider than the model."""
        assert self._at is not None
        at, self._at = self._at, None
        return _rows(states[0], at), *states[1:]


def load_masked_lm(folder: EncoderFolder, dtype: torch.dtype) -> Any:
    """transformers' model of the folder with its head. ModelError where it has none, or cannot be loaded."""
    from transformers import AutoModelForMaskedLM

    remedy = (
        "use a model that was saved with its head, such as bert-base-uncased; sentence encoders are saved "
        "without"
    )
    wanted = "a masked language model: an encoder and its head over words"
    return load_whole(AutoModelForMaskedLM, folder.beside_config(""), wanted, remedy=remedy, dtype=dtype)


def _drawn(
    logits: Tensor, unwanted: list[Sequence[int]], drawn: list[float], choice: GuessChoice
) -> list[int]:
    """For each row of logits (n, vocabulary) the id, of the likeliest ones in falling order, within whose
    share of their probability its number lies.
    """
    logits = logits / choice.temperature
    usable = torch.zeros(logits.shape[1], dtype=torch.bool)
    usable[torch.tensor([number for number in choice.among if number < len(usable)])] = True
    logits[:, ~usable.to(logits.device)] = -torch.inf
    if banned := [
        (row, number) for row, numbers in enumerate(unwanted) for number in numbers if number < len(usable)
    ]:
        rows, ids = torch.tensor(banned, device=logits.device).T
        logits[rows, ids] = -torch.inf
    best, numbers = logits.topk(min(choice.top_k or logits.shape[1], logits.shape[1]), dim=1)
    sums = torch.softmax(best.double(), dim=1).cumsum(dim=1)
    below = torch.tensor(drawn, dtype=torch.float64, device=logits.device)[:, None] * sums[:, -1:]
    chosen: list[int] = numbers.gather(
        1, (sums <= below).sum(dim=1, keepdim=True).clamp(max=numbers.shape[1] - 1)
    )[:, 0].tolist()
    return chosen


def _least(size: int, count: int) -> int:
    """The least of `size` and its halves that holds `count`."""
    while size // 2 >= count:
        size //= 2
    return size


def _rows(states: Tensor, at: Tensor) -> Tensor:
    """(rows, k, d): of states (rows, L, d) those at (rows, k)."""
    return states.gather(1, at[:, :, None].expand(-1, -1, states.shape[2]))

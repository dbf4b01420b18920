"""Translations written token by token: many at once, of like lengths, and none kept waiting for another."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.models.translation.decode_choice import Choice
from pipeline.models.translation.decode_rules import Rules
from pipeline.models.translation.decode_steps import Course, Stepper
from pipeline.text.tokens.budget import longest_first

_DROP_SHARE = 1 / 16  # of a batch's rows, finished, that make it worth to move the others together
_CHECK_EVERY = {
    "cpu": 1,
    "cuda": 4,
}  # steps between two looks at what is finished: on a GPU a look waits for all that was launched


@dataclass(frozen=True, eq=False)
class Request:
    """A text to be translated."""

    ids: Sequence[int]
    least: int
    """tokens of its translations at least, the last one included"""
    most: int
    uniforms: np.ndarray | None = None
    """(hypotheses, most) in [0, 1): what sampling goes by"""


def plan(lengths: Sequence[int], batch_tokens: int, copies: int = 1) -> list[np.ndarray]:
    """Places of each batch, longest first: rows times the longest of them at most batch_tokens, or one text alone."""
    sizes = np.asarray(lengths)
    order, batches = longest_first(sizes), []
    while len(order):
        rows = max(1, batch_tokens // max(1, int(sizes[order[0]]) * copies))
        batches.append(order[:rows])
        order = order[rows:]
    return batches


@torch.inference_mode()
def write(
    stepper: Stepper,
    rules: Rules,
    requests: Sequence[Request],
    choose: Choice,
    copies: int,
    device: torch.device,
) -> list[list[list[int]]]:
    """Tokens of `copies` translations of each request, the end of sentence included where one was written; the rows of one batch."""
    ids, mask = padded([request.ids for request in requests], rules.pad, device)
    least, most = (
        torch.tensor([getattr(request, name) for request in requests], device=device).repeat_interleave(
            copies
        )
        for name in ("least", "most")
    )
    writing = _Writing(
        rules,
        least,
        most,
        max(request.least for request in requests),
        max(request.most for request in requests),
    )
    writing.run(
        stepper.begin(ids, mask, copies, writing.longest),
        choose,
        _uniforms(requests, writing.longest, device),
    )
    rows = writing.rows([request.most for request in requests for _ in range(copies)])
    return [rows[place : place + copies] for place in range(0, len(rows), copies)]


class _Writing:
    """The rows of one batch, until all are finished."""

    def __init__(self, rules: Rules, least: Tensor, most: Tensor, least_at_all: int, longest: int) -> None:
        self.longest, self._rules, self._least_at_all = longest, rules, least_at_all
        self._least, self._most = least, most
        self._ends = torch.tensor(rules.ends, device=most.device)
        self._alive = torch.arange(len(most), device=most.device)
        self._done = torch.zeros(len(most), dtype=torch.bool, device=most.device)
        self._written = torch.full((longest + 1, len(most)), rules.pad, dtype=torch.int64, device=most.device)
        self._written[0] = rules.start

    def run(self, course: Course, choose: Choice, uniforms: Tensor | None) -> None:
        tokens, every = self._written[0], _CHECK_EVERY[_kind(self._written)]
        for step in range(self.longest):
            drawn = uniforms[step, self._alive] if uniforms is not None else None
            tokens = self._next(course.scores(tokens), step, choose, drawn)
            self._written[step + 1].index_copy_(0, self._alive, tokens)
            self._done |= torch.isin(tokens, self._ends) | (self._most == step + 1)
            if (step + 1) % every == 0 and (going := self._going()) is not None:
                if not len(going):
                    return
                course.keep(going)
                tokens = tokens[going]

    def _next(self, scores: Tensor, step: int, choose: Choice, uniforms: Tensor | None) -> Tensor:
        if step == 0 and self._rules.first is not None:
            return torch.full_like(self._alive, self._rules.first)
        scores = self._rules.apply(
            scores.float(),
            step,
            self._least,
            self._least_at_all,
            lambda: self._written[: step + 1, self._alive].T,
        )
        tokens = choose(scores, uniforms)
        if self._rules.forced_end is not None:
            tokens = torch.where(self._most == step + 1, self._rules.forced_end, tokens)
        return tokens

    def _going(self) -> Tensor | None:
        """Places of the rows to go on with; None: all of them, since too few are finished."""
        going = (~self._done).nonzero()[:, 0]
        finished = len(self._done) - len(going)
        if len(going) and finished < max(1, _DROP_SHARE * len(self._done)):
            return None
        self._alive, self._least, self._most, self._done = (
            each[going] for each in (self._alive, self._least, self._most, self._done)
        )
        return going

    def rows(self, most: Sequence[int]) -> list[list[int]]:
        """Tokens of each row up to its first end or its bound."""
        ends, written = set(self._rules.ends), self._written[1:].T.tolist()
        return [cut(row[:bound], ends) for row, bound in zip(written, most, strict=True)]


def cut(tokens: list[int], ends: set[int]) -> list[int]:
    end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


def _kind(tensor: Tensor) -> str:
    return "cpu" if tensor.device.type == "cpu" else "cuda"


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids, mask), (n, longest) int64 on the device, padded at the end; copied without waiting."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return _put(ids, device), _put(mask.astype(np.int64), device)


def _uniforms(requests: Sequence[Request], longest: int, device: torch.device) -> Tensor | None:
    """(longest, rows) float32 below 1."""
    if requests[0].uniforms is None:
        return None
    found = np.zeros(
        (longest, sum(len(request.uniforms) for request in requests if request.uniforms is not None)),
        np.float32,
    )
    row = 0
    for request in requests:
        for own in request.uniforms if request.uniforms is not None else ():
            found[: request.most, row] = np.minimum(own[: request.most], 1 - 2**-24)
            row += 1
    return _put(found, device)


def _put(values: np.ndarray, device: torch.device) -> Tensor:
    host = torch.from_numpy(values)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)

"""Greedy and sampled decoding of translations, in batches of texts of similar length.

Rows whose translation is finished leave the batch, so that the rest of it runs faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.models.layers.transfer import to_device
from pipeline.models.translation.decode_choice import TokenChoice, choice_of
from pipeline.models.translation.decode_rules import Rules
from pipeline.models.translation.decode_steps import DecoderState, Stepper
from pipeline.settings.augment import DecodingSettings
from pipeline.text.tokens.budget import longest_first

# proportion of finished rows from which on removing them from the batch saves more time than it costs
_DROP_PROPORTION = 1 / 16
# steps between two checks for finished rows on a GPU, because a check waits for all kernels launched so far
_CHECK_EVERY = 4


@dataclass(frozen=True, eq=False)
class Request:
    """One text to translate and the bounds on the length of its translations."""

    ids: Sequence[int]
    """source tokens"""
    min_tokens: int
    """minimum length of a translation, end of sentence included"""
    max_tokens: int
    uniforms: np.ndarray | None = None
    """(hypotheses, max_tokens) random numbers in [0, 1), if translations are sampled; else None"""


def plan(lengths: Sequence[int], batch_tokens: int, copies: int = 1) -> list[np.ndarray]:
    """Group texts into batches of similar length, longest first.

    Args:
        lengths: tokens of each text.
        batch_tokens: limit on rows * longest row of a batch; a text above it gets a batch of its own.
        copies: rows that decoding needs for each text.

    Returns:
        Indices into `lengths` for each batch.
    """
    sizes = np.asarray(lengths)
    order, batches = longest_first(sizes), []
    while len(order):
        rows = max(1, batch_tokens // max(1, int(sizes[order[0]]) * copies))
        batches.append(order[:rows])
        order = order[rows:]
    return batches


@torch.inference_mode()
def decode_batch(
    stepper: Stepper,
    rules: Rules,
    requests: Sequence[Request],
    decoding: DecodingSettings,
    device: torch.device,
) -> list[list[list[int]]]:
    """Decode one batch, greedily or with sampling.

    Returns:
        For each request the tokens of `decoding.hypotheses` translations. A translation includes its end of
        sentence, unless it was truncated at max_tokens.
    """
    copies = decoding.hypotheses
    ids, mask = pad_rows([request.ids for request in requests], rules.pad, device)
    bounds = [(request.min_tokens, request.max_tokens) for request in requests for _ in range(copies)]
    batch = _Batch(rules, bounds, device)
    uniforms = _uniforms(requests, batch.longest, device)
    batch.run(stepper.begin(ids, mask, copies), choice_of(decoding), uniforms)
    rows = batch.rows()
    return [rows[start : start + copies] for start in range(0, len(rows), copies)]


class _Batch:
    """Rows of one batch and the tokens decoded so far, until all rows are finished."""

    def __init__(self, rules: Rules, bounds: Sequence[tuple[int, int]], device: torch.device) -> None:
        """Start all rows.

        Args:
            rules: rules of the model.
            bounds: minimum and maximum number of tokens of each row.
            device: device of the model.
        """
        minima, self._limits = [row[0] for row in bounds], [row[1] for row in bounds]
        self.longest, self._rules, self._highest_min = max(self._limits), rules, max(minima)
        self._min, self._max = torch.tensor(minima, device=device), torch.tensor(self._limits, device=device)
        self._ends = torch.tensor(rules.ends, device=device)
        # indices of the rows that are still decoded; _min, _max and _done have one value for each of them
        self._alive = torch.arange(len(bounds), device=device)
        self._done = torch.zeros(len(bounds), dtype=torch.bool, device=device)
        self._tokens = torch.full((self.longest + 1, len(bounds)), rules.pad, device=device)
        self._tokens[0] = rules.start

    def run(self, state: DecoderState, choose: TokenChoice, uniforms: Tensor | None) -> None:
        """Decode tokens until every row is finished; uniforms: (longest, rows) random numbers, if sampled."""
        tokens = self._tokens[0]
        check_every = _CHECK_EVERY if tokens.is_cuda else 1
        for step in range(self.longest):
            step_uniforms = uniforms[step, self._alive] if uniforms is not None else None
            tokens = self._next_tokens(state.next_logits(tokens), step, choose, step_uniforms)
            self._tokens[step + 1].index_copy_(0, self._alive, tokens)
            self._done |= torch.isin(tokens, self._ends) | (self._max == step + 1)
            if (step + 1) % check_every:
                continue
            remaining = self._drop_finished()
            if remaining is None:
                continue
            if not len(remaining):
                return
            state.keep(remaining)
            tokens = tokens[remaining]

    def _next_tokens(self, scores: Tensor, step: int, choose: TokenChoice, uniforms: Tensor | None) -> Tensor:
        if step == 0 and self._rules.first is not None:
            return torch.full_like(self._alive, self._rules.first)
        minimum = self._min if step < self._highest_min else None
        scores = self._rules.apply(
            scores.float(), step, minimum, lambda: self._tokens[: step + 1, self._alive].T
        )
        tokens = choose(scores, uniforms)
        if self._rules.forced_end is not None:
            tokens = torch.where(self._max == step + 1, self._rules.forced_end, tokens)
        return tokens

    def _drop_finished(self) -> Tensor | None:
        """Drop finished rows; return the indices of the others, or None if too few rows are finished."""
        remaining = (~self._done).nonzero()[:, 0]
        finished = len(self._done) - len(remaining)
        if len(remaining) and finished < max(1, _DROP_PROPORTION * len(self._done)):
            return None
        self._alive, self._done = self._alive[remaining], self._done[remaining]
        self._min, self._max = self._min[remaining], self._max[remaining]
        return remaining

    def rows(self) -> list[list[int]]:
        """Return the tokens of each row up to its first end of sentence, or up to its limit."""
        ends, rows = set(self._rules.ends), self._tokens[1:].T.tolist()
        return [cut(row[:limit], ends) for row, limit in zip(rows, self._limits, strict=True)]


def cut(tokens: list[int], ends: set[int]) -> list[int]:
    """Truncate a row after its first end of sentence, if it has one."""
    end = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


def pad_rows(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad rows at the end and copy them to the device without waiting.

    Returns:
        ids and mask, each (n, longest) int64; mask is 1 for the tokens of a row.
    """
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return to_device(ids, device), to_device(mask.astype(np.int64), device)


def _uniforms(requests: Sequence[Request], longest: int, device: torch.device) -> Tensor | None:
    """Return the random numbers of all rows, (longest, rows) float32; None if the batch is not sampled."""
    columns = [
        uniforms[: request.max_tokens]
        for request in requests
        if request.uniforms is not None
        for uniforms in request.uniforms
    ]
    numbers = np.zeros((longest, len(columns)), np.float32)
    for column, uniforms in enumerate(columns):
        numbers[: len(uniforms), column] = np.minimum(uniforms, 1 - 2**-24)  # below 1 in float32, too
    return to_device(numbers, device) if columns else None

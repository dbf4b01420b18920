"""Greedy and sampled decoding of translations, in batches of texts of similar length.

Rows whose translation is finished leave the batch, so that the remaining rows run faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from pipeline.models.layers.transfer import to_device
from pipeline.models.translation.decode_rules import Rules
from pipeline.settings.augment import DecodingSettings
from pipeline.text.tokens.budget import longest_first

# tokens of a block; a running sum over the vocabulary is faster and more exact if it is computed by blocks
_BLOCK = 64
# For top_p, the _FIRST_COUNT most likely tokens are tried, then _COUNT_FACTOR times as many, and so on.
_FIRST_COUNT, _COUNT_FACTOR = 64, 8
_BELOW_ONE = 1 - 2**-24  # the largest float32 below 1


class TokenChoice(Protocol):
    """Function that chooses the next token of each row."""

    def __call__(self, scores: Tensor, uniforms: Tensor | None) -> Tensor:
        """Return tokens (n,) for scores (n, V) float32 and random numbers (n,) in [0, 1), None if greedy."""


def choice_of(decoding: DecodingSettings) -> TokenChoice:
    """Return `greedy`, or `sample` with these settings."""
    return greedy if decoding.method == "greedy" else partial(sample, decoding=decoding)


def greedy(scores: Tensor, uniforms: Tensor | None = None) -> Tensor:
    """Return the most likely token of each row, (n,); the lowest id among equals."""
    return scores.argmax(-1)


def sample(scores: Tensor, uniforms: Tensor | None, decoding: DecodingSettings) -> Tensor:
    """Sample a token for each row by inverting the row's cumulative distribution at its random number.

    Applies temperature, then top-k, then top-p to the remaining tokens, as transformers does. The
    cumulative distribution orders tokens by id, or by decreasing probability (ties by id) if top-k or top-p
    restricts them.

    Args:
        scores: (n, V) logits.
        uniforms: (n,) in [0, 1).
        decoding: temperature, top_k and top_p.

    Returns:
        (n,) token ids.
    """
    assert uniforms is not None
    if decoding.temperature != 1.0:
        scores = scores / decoding.temperature
    if decoding.top_k is None and decoding.top_p >= 1.0:
        return _sample_vocabulary(torch.softmax(scores, -1), uniforms)
    if decoding.top_k is not None:
        best, tokens = scores.topk(min(decoding.top_k, scores.shape[-1]), dim=-1)
        probabilities = torch.softmax(best, -1)
    else:
        probabilities, tokens = _likeliest(torch.softmax(scores, -1), decoding.top_p)
    if decoding.top_p < 1.0:
        before = probabilities.cumsum(-1) - probabilities  # probability of all more likely tokens
        probabilities = probabilities * (before < decoding.top_p)
    return tokens.gather(1, _sample_index(probabilities, uniforms)[:, None])[:, 0]


def _likeliest(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens of each row, as many as are needed for a probability of `top_p`.

    More and more tokens are tried, because sorting the whole vocabulary costs more than a decoding step.

    Returns:
        Probabilities, decreasing, and token ids, each (n, k).
    """
    count, size = _FIRST_COUNT, probabilities.shape[-1]
    while count < size:
        best, tokens = probabilities.topk(count, dim=-1)
        if bool((best.sum(-1) >= top_p).all()):
            return best, tokens
        count *= _COUNT_FACTOR
    return torch.sort(probabilities, stable=True, dim=-1, descending=True)


def _sample_vocabulary(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Sample an index as `_sample_index` does, from many probabilities: first a block, then a token of it."""
    rows, size = probabilities.shape
    padded = torch.nn.functional.pad(probabilities, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    blocks = padded.sum(-1)
    block = _sample_index(blocks, uniforms)
    sums = blocks.cumsum(-1)
    before = (sums - blocks).gather(1, block[:, None])[:, 0]
    in_block = padded[torch.arange(rows, device=probabilities.device), block]
    # the part of the random number that lies within the block, scaled to [0, 1)
    rest = ((uniforms * sums[:, -1] - before) / in_block.sum(-1)).clamp(0, _BELOW_ONE)
    return block * _BLOCK + _sample_index(in_block, rest)


def _sample_index(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the first index of each row (n, k) whose running sum exceeds uniform * sum of the row.

    The value at the index is never 0.
    """
    sums = probabilities.cumsum(-1)
    index = (sums <= uniforms[:, None] * sums[:, -1:]).sum(-1)
    # rounding may keep every running sum at or below the threshold; then the last value above 0 is chosen
    last = probabilities.shape[-1] - 1 - (probabilities.flip(-1) > 0).int().argmax(-1)
    return torch.minimum(index, last)


class DecoderState(Protocol):
    """Translations of one batch that are being decoded: the encoder's states and the decoder's cache."""

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Append the latest tokens (n,) and return the logits (n, V) of the next ones."""

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, (m,) indices in increasing order."""


class Stepper(Protocol):
    """Model that decodes step by step."""

    def begin(self, ids: Tensor, mask: Tensor, copies: int) -> DecoderState:
        """Encode the texts and start their translations.

        Args:
            ids: (n, L) source tokens.
            mask: (n, L), 1 for tokens and 0 for padding.
            copies: number of translations of each text; the rows of one text are adjacent.
        """


@dataclass
class GeneralState:
    """Translations that are decoded by the model's own forward pass and cache, for any architecture."""

    model: Any
    states: Tensor
    """(n, L, d) last hidden states of the encoder"""
    mask: Tensor
    """(n, L), 1 for tokens and 0 for padding"""
    cache: Any

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Append the latest tokens (n,) and return the logits (n, V) of the next ones."""
        from transformers.modeling_outputs import BaseModelOutput

        output = self.model(
            decoder_input_ids=tokens[:, None],
            encoder_outputs=BaseModelOutput(last_hidden_state=self.states),
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
        )
        return cast(Tensor, output.logits[:, -1])

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, (m,) indices in increasing order."""
        self.states, self.mask = self.states.index_select(0, rows), self.mask.index_select(0, rows)
        self.cache.reorder_cache(rows)


@dataclass
class GeneralStepper:
    """Stepper of any encoder-decoder model of transformers."""

    model: Any

    def begin(self, ids: Tensor, mask: Tensor, copies: int) -> GeneralState:
        """Encode the texts and start `copies` translations of each; see `Stepper.begin`."""
        from transformers import DynamicCache, EncoderDecoderCache

        states = encode_source(self.model, ids, mask)
        if copies > 1:
            states, mask = states.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0)
        return GeneralState(self.model, states, mask, EncoderDecoderCache(DynamicCache(), DynamicCache()))


def encode_source(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Compute the last hidden states of the encoder, (n, L, d), for ids and mask (n, L)."""
    output = model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
    return cast(Tensor, output.last_hidden_state)


# from this proportion of the batch on, removing finished rows saves more time than it costs
_DROP_PROPORTION = 1 / 16
# steps between two checks for finished rows on a GPU, because a check waits for all kernels launched so far
_CHECK_EVERY = 4


@dataclass(frozen=True, eq=False)
class Request:
    """One text to translate, with the bounds on the length of its translations."""

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

"""Loss and gradient of one step, chunk by chunk if memory is short (GradCache: Gao et al. 2021, sec. 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ConfigError, DataError, Defect
from pipeline.models.trainable.perturbations import ChangePerView, PerTextChange
from pipeline.objectives import AddsRowTerms, Batch, Loss, Objective, View
from pipeline.objectives.objective import row_terms_of
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gather import (
    average_gradients,
    largest_over_ranks,
    mean_over_ranks,
    set_gradient_sync,
    world_size,
)
from pipeline.train.generators import RandomGenerators

# Largest relative difference of the vectors of two passes. Rounding in half precision stays below it; other
# dropout masks, at the usual rate of 0.1, change vectors by tens of per cent.
_MAX_DIFFERENCE = 0.02


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass of an encoder, for one or several views of the same rows."""

    indices: tuple[int, ...]
    """indices of these views among the objective's views"""
    joined: View
    """a single view with the texts of all these views, one view after the other"""

    def encode(self) -> tuple[Tensor, ...]:
        """Encode the rows, and return (rows, dim) vectors for each view."""
        vectors = self.joined.encode()
        if len(vectors) != len(self.joined.tokens):
            raise Defect(
                "encoder", f"{len(self.joined.tokens)} vectors", f"{len(vectors)}", "check its forward method"
            )
        return vectors.chunk(len(self.indices))


class Chunk:
    """Consecutive rows of the batch, with the forward passes that encode their views.

    Attributes:
        rows: position of the rows in the batch.
        passes: forward passes, which together encode all views.
        outputs: (rows, dim) vectors of each view, set by `encode`.
    """

    def __init__(self, rows: slice, passes: list[Pass]) -> None:
        self.rows, self.passes = rows, passes
        self.outputs: tuple[Tensor, ...] = ()
        self._random_states: list[list[Tensor]] = []  # before each pass
        self._has_graph = False

    @property
    def indices(self) -> np.ndarray:
        """(rows,) int64 indices within the batch."""
        return np.arange(self.rows.start, self.rows.stop)

    def encode(self, generators: RandomGenerators, *, graph: bool) -> None:
        """Encode all views and set `outputs`, with or without a graph."""
        outputs: dict[int, Tensor] = {}
        for forward in self.passes:
            self._random_states.append(generators.state())
            with torch.set_grad_enabled(graph):
                outputs |= zip(forward.indices, forward.encode(), strict=True)
        self.outputs, self._has_graph = tuple(outputs[index] for index in sorted(outputs)), graph

    def encode_again(self, generators: RandomGenerators) -> tuple[Tensor, ...]:
        """Return `outputs` with a graph, encoded again with the same random numbers if necessary.

        Views without a gradient are not encoded again.

        Raises:
            Defect: the vectors differ from those of the first pass.
        """
        if self._has_graph:
            return self.outputs
        outputs = list(self.outputs)
        for forward, state in zip(self.passes, self._random_states, strict=True):
            if forward.joined.grad:
                generators.restore(state)
                for index, vectors in zip(forward.indices, forward.encode(), strict=True):
                    _check_same(vectors.detach(), outputs[index])
                    outputs[index] = vectors
        return tuple(outputs)


def _check_same(again: Tensor, first: Tensor) -> None:
    """Raise Defect if vectors differ: with other dropout masks, the gradient would be silently wrong."""
    difference = float((again - first).norm() / first.norm().clamp_min(1e-12))
    if not difference < _MAX_DIFFERENCE:
        raise Defect(
            "second pass over a chunk",
            "the vectors of the first pass",
            f"a difference of {difference:.1%}",
            "make the encoder and its views use torch's generators only, or train without chunks",
        )


def plan_chunks(
    views: Sequence[View], rows: int, chunk_rows: int | None, chunk_tokens: int | None
) -> list[Chunk]:
    """Divide the batch into chunks of consecutive rows; see `loss_and_backward` for their sizes.

    Raises:
        ConfigError: a view that cannot be divided would be in several chunks.
        Defect: a view without one text per row.
    """
    for view in views:
        if len(view.tokens) != rows:
            raise Defect(
                "view of a batch",
                f"{rows} texts, one per row",
                f"{len(view.tokens)}",
                "check the objective's views",
            )
    bounds = _bounds(views, rows, chunk_rows, chunk_tokens)
    for reason in (view.whole_batch_reason for view in views):
        if reason is not None and len(bounds) > 1:
            largest = max(stop - start for start, stop in bounds)
            raise ConfigError(
                "train.chunk_rows" if chunk_tokens is None else "train.chunk_tokens",
                f"no chunks, because {reason}",
                f"chunks of {largest} of {rows} rows",
                "leave it out, or choose other views",
            )
    chunks = []
    for start, stop in bounds:
        parts = [view.of_rows(np.arange(start, stop)) for view in views]
        passes = [_join(group, [parts[index] for index in group]) for group in _groups(views)]
        chunks.append(Chunk(slice(start, stop), passes))
    return chunks


def _bounds(
    views: Sequence[View], rows: int, chunk_rows: int | None, chunk_tokens: int | None
) -> list[tuple[int, int]]:
    """Return (first row, end) of each chunk.

    With `chunk_tokens`, chunks are divided further until all ranks have equally many: ranks with sharded
    weights must run equally many passes.
    """
    size = rows if chunk_rows is None else chunk_rows
    if chunk_tokens is None:
        return [(start, min(start + size, rows)) for start in range(0, rows, size)]
    lengths = np.sum([view.tokens.lengths for view in views], axis=0)
    starts, tokens = [0], 0
    for row, length in enumerate(lengths.tolist()):
        if row > starts[-1] and (tokens + length > chunk_tokens or row - starts[-1] == size):
            starts.append(row)
            tokens = 0
        tokens += length
    bounds = list(pairwise([*starts, rows]))
    wanted = largest_over_ranks(len(bounds), next(views[0].encoder.parameters()).device)
    while len(bounds) < min(wanted, rows):
        start, stop = max(bounds, key=lambda each: each[1] - each[0])
        middle = (start + stop) // 2
        index = bounds.index((start, stop))
        bounds[index : index + 1] = [(start, middle), (middle, stop)]
    return bounds


def _groups(views: Sequence[View]) -> list[tuple[int, ...]]:
    """Return groups of views, by index, that one pass can encode.

    Views in a group have the same encoder. A change of the embeddings that is not `PerTextChange` applies to
    all texts of a pass, so such a view is grouped only with views that have the same change.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, view in enumerate(views):
        is_per_text = view.at_embedding is None or isinstance(view.at_embedding, PerTextChange)
        whole_pass_change = None if is_per_text else id(view.at_embedding)
        groups.setdefault((id(view.encoder), view.grad, whole_pass_change), []).append(index)
    return [tuple(group) for group in groups.values()]


def _join(indices: tuple[int, ...], views: list[View]) -> Pass:
    """Join views into one pass; each keeps its own positions and changes of embeddings."""
    joined = replace(views[0], tokens=Tokens.joined([view.tokens for view in views]))
    if any(view.positions is not None for view in views):
        positions = [view.tokens.positions if view.positions is None else view.positions for view in views]
        joined = replace(joined, positions=np.concatenate(positions))
    changes = [view.at_embedding if isinstance(view.at_embedding, PerTextChange) else None for view in views]
    if any(change is not None for change in changes):
        joined = replace(joined, at_embedding=ChangePerView(changes, [view.tokens.lengths for view in views]))
    return Pass(indices, joined)


@dataclass(frozen=True, eq=False)
class StepResult:
    """Loss and vectors of one step, without a graph."""

    loss: Loss
    """mean over ranks; the same on all ranks"""
    reps: tuple[Tensor, ...]
    """(n, dim) vectors of this rank's rows, for each view"""
    tokens: int
    """number of tokens of all views on all ranks, plus further tokens that the objective reads"""


def loss_and_backward(
    objective: Objective,
    batch: Batch,
    *,
    chunk_rows: int | None = None,
    chunk_tokens: int | None = None,
    scale: float = 1.0,
) -> StepResult:
    """Add the gradient of `scale` times the batch's loss, averaged over ranks, to the parameters.

    Every rank has to call it with a batch of equal size. Gradients are averaged over ranks once, after the
    last chunk.

    If all rows fit in one chunk, they are encoded once. Otherwise each chunk is encoded without a graph, the
    loss of all vectors gives the gradient of each vector, and each chunk is encoded again, with the same
    random numbers and a graph, to propagate these gradients to the weights. Row terms are computed in the
    second pass, and weighted by the chunk's proportion of the batch's rows. Torch's generators end in the
    same state as with one pass over every chunk.

    Args:
        objective: the objective to train, not wrapped for data parallelism: its encoder and heads are called
            separately, not by a `forward` of the objective.
        batch: this rank's rows. Rows of `batch.peers` are candidates too.
        chunk_rows: largest number of rows that are encoded at once; None for all.
        chunk_tokens: largest number of tokens of all views that are encoded at once; None for all. A row with
            more tokens is encoded alone.
        scale: factor of the loss in the backward pass, for float16; the returned loss is not scaled.

    Raises:
        ConfigError: a view that cannot be divided is in several chunks.
        DataError: a batch has no rows, or ranks have unequal numbers of rows.
        Defect: the second pass gives other vectors than the first.
    """
    views, chunks, reps = _encode(objective, batch, (chunk_rows, chunk_tokens), graph=True)
    leaves = [vectors.requires_grad_(view.grad) for view, vectors in zip(views, reps, strict=True)]
    loss = objective.loss(tuple(leaves), batch)
    if loss.total.requires_grad:
        torch.autograd.backward(loss.total * scale)
    terms = _backward_through_encoders(objective, batch, chunks, leaves, scale)
    average_gradients(objective.parameters())
    tokens = _count_tokens(objective, batch, views)
    return _step_result(loss.detach() + terms, objective.vectors(tuple(leaves), batch), tokens)


@torch.no_grad()
def loss_without_gradient(
    objective: Objective, batch: Batch, *, chunk_rows: int | None = None, chunk_tokens: int | None = None
) -> StepResult:
    """Compute the result of `loss_and_backward` without a gradient; the errors are the same."""
    views, chunks, reps = _encode(objective, batch, (chunk_rows, chunk_tokens), graph=False)
    loss = objective.loss(reps, batch)
    for chunk in chunks:
        loss = loss + _row_terms(objective, batch, chunk, chunk.outputs)
    tokens = _count_tokens(objective, batch, views)
    return _step_result(loss.detach(), objective.vectors(reps, batch), tokens)


def _encode(
    objective: Objective, batch: Batch, limits: tuple[int | None, int | None], *, graph: bool
) -> tuple[tuple[View, ...], list[Chunk], tuple[Tensor, ...]]:
    """Encode the batch. If `graph` is True and there is a single chunk, its outputs have a graph.

    `limits` are the largest numbers of rows and of tokens of a chunk.

    Returns:
        The views, the chunks, and (n, dim) vectors of each view, without a graph.
    """
    if not len(batch):
        raise DataError("training batch", "rows", "none", "give every rank rows of every batch")
    views = tuple(objective.views(batch))
    generators = RandomGenerators(objective)
    chunks = plan_chunks(views, len(batch), *limits)
    for chunk in chunks:
        chunk.encode(generators, graph=graph and len(chunks) == 1)
    outputs_by_view = zip(*(chunk.outputs for chunk in chunks), strict=True)
    return views, chunks, tuple(torch.cat(outputs).detach() for outputs in outputs_by_view)


def _row_terms(objective: Objective, batch: Batch, chunk: Chunk, outputs: tuple[Tensor, ...]) -> Loss:
    """Return the row terms of a chunk, weighted so that the sum over chunks is the mean over the batch."""
    terms = row_terms_of(objective, outputs, batch.of_rows(chunk.indices))
    return terms * (len(chunk.indices) / len(batch))


def _backward_through_encoders(
    objective: Objective, batch: Batch, chunks: list[Chunk], leaves: list[Tensor], scale: float
) -> Loss:
    """Propagate the gradients of the vectors and of the row terms to the weights, chunk by chunk.

    Args:
        objective: the objective to train.
        batch: this rank's rows.
        chunks: all chunks of the batch, encoded.
        leaves: vectors of each view, with the gradient of the loss.
        scale: factor of the row terms.

    Returns:
        The row terms, without a graph.
    """
    generators, total = RandomGenerators(objective), Loss.of()
    state = generators.state()
    for chunk in chunks:
        outputs = chunk.encode_again(generators)
        # row terms draw the same random numbers as if no chunk had been encoded again
        generators.restore(state)
        terms = _row_terms(objective, batch, chunk, outputs)
        state = generators.state()
        set_gradient_sync(objective, chunk is chunks[-1])
        tensors, gradients = [], []
        for output, leaf in zip(outputs, leaves, strict=True):
            if output.requires_grad and leaf.grad is not None:
                tensors.append(output)
                gradients.append(leaf.grad[chunk.rows])
        if terms.total.requires_grad:
            tensors.append(terms.total * scale)
            gradients.append(torch.ones_like(terms.total))
        if tensors:
            torch.autograd.backward(tensors, gradients)
        total = total + terms.detach()
    return total


def _count_tokens(objective: Objective, batch: Batch, views: Sequence[View]) -> int:
    """Count this rank's tokens of a step."""
    beside = objective.tokens_beside_views(batch) if isinstance(objective, AddsRowTerms) else 0
    return sum(len(view.tokens.ids) for view in views) + beside


def _step_result(loss: Loss, reps: Sequence[Tensor], tokens: int) -> StepResult:
    """Average the loss over ranks, and add up the tokens of all ranks, in one message in float64."""
    if world_size() > 1:
        losses = torch.stack([value.to(loss.total) for value in (loss.total, *loss.parts.values())]).double()
        *mean_losses, mean_tokens = mean_over_ranks(torch.cat([losses, losses.new_tensor([tokens])])).unbind()
        total, *parts = (value.to(loss.total) for value in mean_losses)
        loss = Loss(total, dict(zip(loss.parts, parts, strict=True)))
        tokens = round(float(mean_tokens) * world_size())
    return StepResult(loss, tuple(rep.detach() for rep in reps), tokens)

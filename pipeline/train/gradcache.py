"""Gradient of one step with large batches in little memory (GradCache: Gao et al. 2021, section 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.objectives import Batch, Loss, Objective, View
from pipeline.train.chunks import Chunk, plan_chunks
from pipeline.train.gather import average_gradients, mean_over_ranks, sharded_average, world_size
from pipeline.train.generators import Generators


@dataclass(frozen=True, eq=False)
class StepResult:
    """Loss and vectors of one step, without a graph.

    Attributes:
        loss: mean over ranks, equal on all ranks, so that all agree on whether it is finite.
        reps: (n, dim) vectors of each view, of this rank's rows.
        tokens: number of tokens of all views on all ranks.
    """

    loss: Loss
    reps: tuple[Tensor, ...]
    tokens: int


def loss_and_backward(
    objective: Objective, batch: Batch, *, chunk_rows: int | None = None, scale: float = 1.0
) -> StepResult:
    """Add the gradient of `scale` times the batch's loss, averaged over ranks, to the parameters.

    Every rank calls it with a batch of equal size. `batch.peers` defines whether rows of other ranks are
    candidates; if not, the gradient is the mean of the ranks' own gradients. The objective is a plain module,
    not wrapped for data parallelism: its encoder runs in several passes, and heads in none of them, which a
    wrapper's forward would not see. Gradients are averaged over ranks once, after the last chunk.

    With a single chunk, each encoder runs once over all views that can share a pass. With several, each chunk
    is encoded without a graph, the loss gives the gradient of each vector, and each chunk is encoded again
    with the same random numbers to propagate its gradient. Row terms belong to the second pass, with weight
    chunk / batch. They draw from torch's generators as the first pass left them, and the generators end in
    the state after the last row term: a step advances them as if every chunk had been encoded once.

    Args:
        objective: the objective to train.
        batch: this rank's rows.
        chunk_rows: largest number of rows that are encoded at once; None for all.
        scale: factor of a loss scaler, for float16; the returned loss is without it.

    Raises:
        ConfigError: a view that cannot be divided is in several chunks.
        DataError: a batch has no rows, or ranks have unequal numbers of rows.
        Defect: the second pass gives other vectors than the first.
    """
    views, chunks, reps = _encoded(objective, batch, chunk_rows, graph=True)
    leaves = [vectors.requires_grad_(view.grad) for view, vectors in zip(views, reps, strict=True)]
    loss = objective.loss(tuple(leaves), batch)
    if loss.total.requires_grad:
        torch.autograd.backward(loss.total * scale)
    terms = _through_encoders(objective, batch, chunks, leaves, scale)
    average_gradients(objective.parameters())
    return _result(loss.detach() + terms, leaves, views)


@torch.no_grad()
def loss_without_gradient(objective: Objective, batch: Batch, *, chunk_rows: int | None = None) -> StepResult:
    """Compute the result of `loss_and_backward` without a gradient; the errors are the same."""
    views, chunks, reps = _encoded(objective, batch, chunk_rows, graph=False)
    loss = objective.loss(reps, batch)
    for chunk in chunks:
        loss = loss + _row_terms(objective, batch, chunk, chunk.outputs)
    return _result(loss.detach(), reps, views)


def _encoded(
    objective: Objective, batch: Batch, chunk_rows: int | None, *, graph: bool
) -> tuple[tuple[View, ...], list[Chunk], tuple[Tensor, ...]]:
    """Encode the batch, with a graph if wanted and if a single chunk has all rows.

    Returns:
        The views, the chunks, and (n, dim) vectors of each view, without a graph.
    """
    if not len(batch):
        raise DataError("training batch", "rows", "none", "give every rank rows of every batch")
    views, generators = tuple(objective.views(batch)), Generators(objective)
    chunks = plan_chunks(views, len(batch), chunk_rows)
    for chunk in chunks:
        chunk.encode(generators, graph=graph and len(chunks) == 1)
    columns = zip(*(chunk.outputs for chunk in chunks), strict=True)
    return views, chunks, tuple(torch.cat(parts).detach() for parts in columns)


def _row_terms(objective: Objective, batch: Batch, chunk: Chunk, outputs: tuple[Tensor, ...]) -> Loss:
    """Return the chunk's part of the row terms."""
    return objective.row_terms(outputs, batch.of_rows(chunk.indices)) * (len(chunk.indices) / len(batch))


def _through_encoders(
    objective: Objective, batch: Batch, chunks: list[Chunk], leaves: list[Tensor], scale: float
) -> Loss:
    """Propagate the gradients of the leaves and of the row terms to the weights, chunk by chunk.

    Return the row terms.
    """
    generators, total = Generators(objective), Loss.of()
    state = generators.state()
    for chunk in chunks:
        outputs = chunk.encode_again(generators)
        generators.restore(state)
        terms = _row_terms(objective, batch, chunk, outputs)
        state = generators.state()
        sharded_average(objective, chunk is chunks[-1])
        pairs = [
            (output, leaf.grad[chunk.rows])
            for output, leaf in zip(outputs, leaves, strict=True)
            if output.requires_grad and leaf.grad is not None
        ]
        if terms.total.requires_grad:
            pairs.append((terms.total * scale, torch.ones_like(terms.total)))
        if pairs:
            tensors, gradients = zip(*pairs, strict=True)
            torch.autograd.backward(tensors, gradients)
        total = total + terms.detach()
    return total


def _result(loss: Loss, reps: Sequence[Tensor], views: Sequence[View]) -> StepResult:
    """Average the loss over ranks and sum their tokens, in one message in float64."""
    tokens = sum(len(view.tokens.ids) for view in views)
    if world_size() > 1:
        own = torch.stack([each.to(loss.total) for each in (loss.total, *loss.parts.values())]).double()
        *means, mean = mean_over_ranks(torch.cat([own, own.new_tensor([tokens])])).unbind()
        total, *parts = (each.to(loss.total) for each in means)
        loss = Loss(total, dict(zip(loss.parts, parts, strict=True)))
        tokens = round(float(mean) * world_size())
    return StepResult(loss, tuple(rep.detach() for rep in reps), tokens)

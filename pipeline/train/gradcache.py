"""Loss and gradient of one step, chunk by chunk if memory is short (GradCache: Gao et al. 2021, sec. 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.objectives import Batch, Loss, Objective, View
from pipeline.train.chunks import Chunk, plan_chunks
from pipeline.train.gather import average_gradients, mean_over_ranks, set_gradient_sync, world_size
from pipeline.train.generators import RandomGenerators


@dataclass(frozen=True, eq=False)
class StepResult:
    """Loss and vectors of one step, without a graph.

    Attributes:
        loss: mean over ranks; the same on all ranks.
        reps: (n, dim) vectors of each view, of this rank's rows.
        tokens: number of tokens of all views on all ranks, and of those that the objective reads beside them.
    """

    loss: Loss
    reps: tuple[Tensor, ...]
    tokens: int


def loss_and_backward(
    objective: Objective, batch: Batch, *, chunk_rows: int | None = None, scale: float = 1.0
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
        scale: factor of the loss before the backward pass, for float16; the returned loss is without it.

    Raises:
        ConfigError: a view that cannot be divided is in several chunks.
        DataError: a batch has no rows, or ranks have unequal numbers of rows.
        Defect: the second pass gives other vectors than the first.
    """
    views, chunks, reps = _encode(objective, batch, chunk_rows, graph=True)
    leaves = [vectors.requires_grad_(view.grad) for view, vectors in zip(views, reps, strict=True)]
    loss = objective.loss(tuple(leaves), batch)
    if loss.total.requires_grad:
        torch.autograd.backward(loss.total * scale)
    terms = _backward_through_encoders(objective, batch, chunks, leaves, scale)
    average_gradients(objective.parameters())
    tokens = _count_tokens(objective, batch, views)
    return _step_result(loss.detach() + terms, objective.vectors(tuple(leaves), batch), tokens)


@torch.no_grad()
def loss_without_gradient(objective: Objective, batch: Batch, *, chunk_rows: int | None = None) -> StepResult:
    """Compute the result of `loss_and_backward` without a gradient; the errors are the same."""
    views, chunks, reps = _encode(objective, batch, chunk_rows, graph=False)
    loss = objective.loss(reps, batch)
    for chunk in chunks:
        loss = loss + _row_terms(objective, batch, chunk, chunk.outputs)
    tokens = _count_tokens(objective, batch, views)
    return _step_result(loss.detach(), objective.vectors(reps, batch), tokens)


def _encode(
    objective: Objective, batch: Batch, chunk_rows: int | None, *, graph: bool
) -> tuple[tuple[View, ...], list[Chunk], tuple[Tensor, ...]]:
    """Encode the batch. If `graph` is True and there is a single chunk, its outputs have a graph.

    Returns:
        The views, the chunks, and (n, dim) vectors of each view, without a graph.
    """
    if not len(batch):
        raise DataError("training batch", "rows", "none", "give every rank rows of every batch")
    views = tuple(objective.views(batch))
    generators = RandomGenerators(objective)
    chunks = plan_chunks(views, len(batch), chunk_rows)
    for chunk in chunks:
        chunk.encode(generators, graph=graph and len(chunks) == 1)
    outputs_by_view = zip(*(chunk.outputs for chunk in chunks), strict=True)
    return views, chunks, tuple(torch.cat(outputs).detach() for outputs in outputs_by_view)


def _row_terms(objective: Objective, batch: Batch, chunk: Chunk, outputs: tuple[Tensor, ...]) -> Loss:
    """Return the row terms of a chunk, weighted so that the sum over chunks is the mean over the batch."""
    return objective.row_terms(outputs, batch.of_rows(chunk.indices)) * (len(chunk.indices) / len(batch))


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
        generators.restore(state)  # row terms draw as if no chunk had been encoded again
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
    return sum(len(view.tokens.ids) for view in views) + objective.tokens_beside_views(batch)


def _step_result(loss: Loss, reps: Sequence[Tensor], tokens: int) -> StepResult:
    """Average the loss over ranks and sum their tokens, in one message in float64."""
    if world_size() > 1:
        losses = torch.stack([value.to(loss.total) for value in (loss.total, *loss.parts.values())]).double()
        *mean_losses, mean_tokens = mean_over_ranks(torch.cat([losses, losses.new_tensor([tokens])])).unbind()
        total, *parts = (value.to(loss.total) for value in mean_losses)
        loss = Loss(total, dict(zip(loss.parts, parts, strict=True)))
        tokens = round(float(mean_tokens) * world_size())
    return StepResult(loss, tuple(rep.detach() for rep in reps), tokens)

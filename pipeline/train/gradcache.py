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
        ConfigError: a chunk below one row, or chunks of a view that cannot be divided.
        DataError: a batch without rows, or ranks with unequal numbers of rows.
        Defect: the second pass gives other vectors than the first.
    """
    if not len(batch):
        raise DataError("training batch", "rows", "none", "give every rank rows of every batch")
    views, generators = tuple(objective.views(batch)), Generators(objective)
    chunks = plan_chunks(views, len(batch), chunk_rows)
    for chunk in chunks:
        chunk.encode(generators, graph=len(chunks) == 1)
    columns = zip(*(chunk.outputs for chunk in chunks), strict=True)
    leaves = [
        torch.cat(parts).detach().requires_grad_(view.grad)
        for view, parts in zip(views, columns, strict=True)
    ]
    loss = objective.loss(tuple(leaves), batch)
    if loss.total.requires_grad:
        torch.autograd.backward(loss.total * scale)
    terms = _through_encoders(objective, batch, chunks, leaves, scale)
    average_gradients(objective.parameters())
    return StepResult(*_with_tokens(loss.detach() + terms, tuple(leaves), views))


def loss_without_gradient(objective: Objective, batch: Batch, *, chunk_rows: int | None = None) -> StepResult:
    """Compute the result of `loss_and_backward` without a gradient; the errors are the same."""
    if not len(batch):
        raise DataError("training batch", "rows", "none", "give every rank rows of every batch")
    views, generators = tuple(objective.views(batch)), Generators(objective)
    chunks = plan_chunks(views, len(batch), chunk_rows)
    with torch.no_grad():
        for chunk in chunks:
            chunk.encode(generators, graph=False)
        columns = zip(*(chunk.outputs for chunk in chunks), strict=True)
        reps = tuple(torch.cat(parts) for parts in columns)
        loss = objective.loss(reps, batch)
        for chunk in chunks:
            part = len(chunk.indices) / len(batch)
            loss = loss + objective.row_terms(chunk.outputs, batch.of_rows(chunk.indices)) * part
    return StepResult(*_with_tokens(loss.detach(), reps, views))


def _with_tokens(
    loss: Loss, reps: tuple[Tensor, ...], views: Sequence[View]
) -> tuple[Loss, tuple[Tensor, ...], int]:
    """Return the fields of `StepResult`; loss and number of tokens are those of all ranks."""
    averaged, tokens = _averaged(loss, sum(len(view.tokens.ids) for view in views))
    return averaged, tuple(rep.detach() for rep in reps), tokens


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
        terms = objective.row_terms(outputs, batch.of_rows(chunk.indices)) * (len(chunk.indices) / len(batch))
        state = generators.state()
        sharded_average(objective, chunk is chunks[-1])
        _backward(
            outputs,
            [None if leaf.grad is None else leaf.grad[chunk.rows] for leaf in leaves],
            terms.total * scale,
        )
        total = total + terms.detach()
    return total


def _backward(outputs: tuple[Tensor, ...], cache: list[Tensor | None], terms: Tensor) -> None:
    """Propagate the cached gradient of each vector, and that of the row terms, through the encoder."""
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, cache, strict=True)
        if output.requires_grad and gradient is not None
    ]
    if terms.requires_grad:
        pairs.append((terms, torch.ones_like(terms)))
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


def _averaged(loss: Loss, tokens: int) -> tuple[Loss, int]:
    """Return the mean of the loss over ranks and the sum of their tokens, in one message in float64."""
    if world_size() == 1:
        return loss, tokens
    own = torch.stack([each.to(loss.total) for each in (loss.total, *loss.parts.values())]).double()
    *means, mean = mean_over_ranks(torch.cat([own, own.new_tensor([tokens])])).unbind()
    total, *parts = (each.to(loss.total) for each in means)
    return Loss(total, dict(zip(loss.parts, parts, strict=True))), round(float(mean) * world_size())

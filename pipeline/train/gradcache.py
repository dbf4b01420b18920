"""One step's gradient: of as many rows as the loss compares, in the memory of as many as a chunk holds (GradCache: Gao et al. 2021, section 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ConfigError, DataError, Defect
from pipeline.models.trainable.perturbations import Each, PerText, standing
from pipeline.objectives import Batch, Loss, Objective, View
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gather import average_gradients, mean_over_ranks, sharded_average, world_size
from pipeline.train.generators import Generators

_ROUNDING = 0.02  # half precision, and sums in another order, stay below it; other masks at the usual rates of 0.1 change vectors by tens of per cent


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a step found, without a graph."""

    loss: Loss
    """the mean over ranks, the same number on each of them: so all agree on whether it is finite"""
    reps: tuple[Tensor, ...]
    """(n, dim) of each view: this rank's rows"""
    tokens: int
    """that all views of all ranks hold"""


def loss_and_backward(
    objective: Objective, batch: Batch, *, chunk_rows: int | None = None, scale: float = 1.0
) -> Outcome:
    """Add the gradient of `scale` times the loss of the batch to the parameters' `.grad`: of all ranks' rows, the same on each rank.

    Every rank calls it with a batch of equal size. The objective is a plain module, not wrapped for data parallelism: its encoder runs in several passes here, and heads
    in none of them, which a wrapper's forward does not see. Gradients are averaged over ranks once, after the last chunk. `batch.peers` says whether other ranks' rows
    are candidates too; where they are not, the gradient is the mean of the ranks' own.

    Without `chunk_rows`, or with one chunk, each encoder runs once over all views that can share a pass. With more, each chunk is encoded without a graph, the loss
    gives each vector's gradient, and each chunk is encoded again with the random numbers of the first time, to take its gradient further. Row terms belong to this
    second pass, with weight chunk / batch, and draw from where the first pass left torch's generators. These end where the last row term leaves them: a step advances
    them as if every chunk had been encoded once.

    `scale`: a loss scaler's, for float16; the loss that comes back is without it. ConfigError for a chunk below one row, and for chunks of a view that cannot be
    divided; DataError for a batch without rows, and where ranks gather unequal ones; Defect where the second pass gives other vectors than the first.
    """
    if not len(batch):
        raise DataError("training batch", "rows", "none", "give every rank rows of every batch")
    views, generators = tuple(objective.views(batch)), Generators(objective)
    chunks = _chunks(views, len(batch), chunk_rows)
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
    return Outcome(*_with_tokens(loss.detach() + terms, tuple(leaves), views))


def loss_without_gradient(objective: Objective, batch: Batch, *, chunk_rows: int | None = None) -> Outcome:
    """The outcome of the batch as `loss_and_backward` gives it, without a gradient; errors are the same."""
    if not len(batch):
        raise DataError("training batch", "rows", "none", "give every rank rows of every batch")
    views, generators = tuple(objective.views(batch)), Generators(objective)
    chunks = _chunks(views, len(batch), chunk_rows)
    with torch.no_grad():
        for chunk in chunks:
            chunk.encode(generators, graph=False)
        columns = zip(*(chunk.outputs for chunk in chunks), strict=True)
        reps = tuple(torch.cat(parts) for parts in columns)
        loss = objective.loss(reps, batch)
        for chunk in chunks:
            part = len(chunk.places) / len(batch)
            loss = loss + objective.row_terms(chunk.outputs, batch.of_rows(chunk.places)) * part
    return Outcome(*_with_tokens(loss.detach(), reps, views))


def _with_tokens(
    loss: Loss, reps: tuple[Tensor, ...], views: Sequence[View]
) -> tuple[Loss, tuple[Tensor, ...], int]:
    """Fields of the outcome: loss and number of tokens are those of all ranks."""
    averaged, tokens = _averaged(loss, sum(len(view.tokens.ids) for view in views))
    return averaged, tuple(rep.detach() for rep in reps), tokens


def _through_encoders(
    objective: Objective, batch: Batch, chunks: "list[_Chunk]", leaves: list[Tensor], scale: float
) -> Loss:
    """Take the gradient that the leaves hold on to the weights, chunk by chunk, with that of the row terms, which come back."""
    generators, total = Generators(objective), Loss.of()
    state = generators.state()
    for chunk in chunks:
        outputs = chunk.encode_again(generators)
        generators.restore(state)
        terms = objective.row_terms(outputs, batch.of_rows(chunk.places)) * (len(chunk.places) / len(batch))
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
    """Through the encoder: from the cached gradient of each vector, and from what rows cost by themselves."""
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
    """The mean over ranks, and the sum of their tokens, in one message; float64 holds any number of tokens."""
    if world_size() == 1:
        return loss, tokens
    own = torch.stack([each.to(loss.total) for each in (loss.total, *loss.parts.values())]).double()
    *means, mean = mean_over_ranks(torch.cat([own, own.new_tensor([tokens])])).unbind()
    total, *parts = (each.to(loss.total) for each in means)
    return Loss(total, dict(zip(loss.parts, parts, strict=True))), round(float(mean) * world_size())


@dataclass(frozen=True, eq=False)
class _Pass:
    """One forward pass: the same rows of views that share an encoder."""

    views: tuple[int, ...]
    """their numbers among the objective's views"""
    joined: View
    """their rows, one view after the other"""

    def encode(self) -> tuple[Tensor, ...]:
        """(rows, dim) of each view."""
        vectors = self.joined.encode()
        if len(vectors) != len(self.joined.tokens):
            raise Defect(
                "encoder", f"{len(self.joined.tokens)} vectors", f"{len(vectors)}", "look at its forward"
            )
        return vectors.chunk(len(self.views))


class _Chunk:
    """Consecutive rows of the batch, in as few passes as their views allow."""

    def __init__(self, rows: slice, passes: list[_Pass]) -> None:
        self.rows, self.passes = rows, passes
        self.outputs: tuple[Tensor, ...] = ()
        self._states: list[list[Tensor]] = []  # of the generators before each pass
        self._graph = False

    @property
    def places(self) -> np.ndarray:
        """(rows,) int64."""
        return np.arange(self.rows.start, self.rows.stop)

    def encode(self, generators: Generators, *, graph: bool) -> None:
        """Set `outputs`, (rows, dim) of each view, with a graph or without one."""
        outputs: dict[int, Tensor] = {}
        for each in self.passes:
            self._states.append(generators.state())
            with torch.set_grad_enabled(graph):
                outputs |= zip(each.views, each.encode(), strict=True)
        self.outputs, self._graph = tuple(outputs[view] for view in sorted(outputs)), graph

    def encode_again(self, generators: Generators) -> tuple[Tensor, ...]:
        """The same vectors with their graph, by the same random numbers; of views without a gradient, those that are known. Defect where they are others."""
        if self._graph:
            return self.outputs
        outputs = list(self.outputs)
        for each, state in zip(self.passes, self._states, strict=True):
            if each.joined.grad:
                generators.restore(state)
                for view, vectors in zip(each.views, each.encode(), strict=True):
                    _check_same(vectors.detach(), outputs[view])
                    outputs[view] = vectors
        return tuple(outputs)


def _check_same(again: Tensor, first: Tensor) -> None:
    """Other dropout masks would give another gradient, and nothing else would tell."""
    apart = float((again - first).norm() / first.norm().clamp_min(1e-12))
    if not apart < _ROUNDING:
        remedy = "let the encoder and its views draw from torch's generators alone, or leave chunk_rows out"
        raise Defect(
            "second pass over a chunk",
            "the vectors of the first",
            f"vectors that differ by {apart:.1%}",
            remedy,
        )


def _chunks(views: Sequence[View], rows: int, chunk_rows: int | None) -> list[_Chunk]:
    size = rows if chunk_rows is None else chunk_rows
    _check(views, rows, size)
    chunks = []
    for start in range(0, rows, size):
        part = slice(start, min(start + size, rows))
        places = np.arange(part.start, part.stop)
        chunks.append(
            _Chunk(
                part,
                [_joined(group, [views[view].of_rows(places) for view in group]) for group in _groups(views)],
            )
        )
    return chunks


def _check(views: Sequence[View], rows: int, size: int) -> None:
    if size < 1:
        raise ConfigError("chunk_rows", "at least one row in a chunk", f"{size}", "raise it, or leave it out")
    for view in views:
        if len(view.tokens) != rows:
            raise Defect(
                "view of a batch",
                f"{rows} texts, one for each row",
                f"{len(view.tokens)}",
                "look at the objective's views",
            )
        if view.whole_batch_reason is not None and size < rows:
            raise ConfigError(
                "chunk_rows",
                f"no chunks, since {view.whole_batch_reason}",
                f"chunks of {size} of {rows} rows",
                "leave chunk_rows out, or choose other views",
            )


def _groups(views: Sequence[View]) -> list[tuple[int, ...]]:
    """Numbers of the views that can share a pass."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, view in enumerate(views):
        shared = view.at_embedding is None or isinstance(view.at_embedding, PerText)
        groups.setdefault(
            (id(view.encoder), view.grad, None if shared else id(view.at_embedding)), []
        ).append(number)
    return [tuple(group) for group in groups.values()]


def _joined(numbers: tuple[int, ...], views: list[View]) -> _Pass:
    """Changes and positions of their own, each for its own texts."""
    positions, change = None, views[0].at_embedding
    if any(view.positions is not None for view in views):
        positions = np.concatenate(
            [standing(view.tokens) if view.positions is None else view.positions for view in views]
        )
    changes = [view.at_embedding if isinstance(view.at_embedding, PerText) else None for view in views]
    if any(each is not None for each in changes):
        change = Each(changes, [view.tokens.lengths for view in views])
    return _Pass(
        numbers,
        replace(
            views[0],
            tokens=Tokens.joined([view.tokens for view in views]),
            positions=positions,
            at_embedding=change,
        ),
    )

"""Chunks of a batch: consecutive rows, encoded in as few forward passes as their views allow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ConfigError, Defect
from pipeline.models.trainable.perturbations import Each, PerText
from pipeline.objectives import View
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.generators import Generators

# Relative difference. Half precision and another order of sums stay below; other dropout masks, at the usual
# rate of 0.1, change vectors by tens of per cent.
_ROUNDING = 0.02


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass for several views of the same rows, which share an encoder.

    Attributes:
        views: indices of the views among those of the objective.
        joined: one view with the texts of all of them, view after view.
    """

    views: tuple[int, ...]
    joined: View

    def encode(self) -> tuple[Tensor, ...]:
        """Encode the rows: (rows, dim) per view."""
        vectors = self.joined.encode()
        if len(vectors) != len(self.joined.tokens):
            raise Defect(
                "encoder", f"{len(self.joined.tokens)} vectors", f"{len(vectors)}", "check its forward method"
            )
        return vectors.chunk(len(self.views))


class Chunk:
    """Consecutive rows of the batch, in as few passes as their views allow."""

    def __init__(self, rows: slice, passes: list[Pass]) -> None:
        self.rows, self.passes = rows, passes
        self.outputs: tuple[Tensor, ...] = ()
        self._states: list[list[Tensor]] = []  # of the generators before each pass
        self._graph = False

    @property
    def indices(self) -> np.ndarray:
        """(rows,) int64 indices within the batch."""
        return np.arange(self.rows.start, self.rows.stop)

    def encode(self, generators: Generators, *, graph: bool) -> None:
        """Set `outputs`, (rows, dim) per view, with or without a graph."""
        outputs: dict[int, Tensor] = {}
        for one in self.passes:
            self._states.append(generators.state())
            with torch.set_grad_enabled(graph):
                outputs |= zip(one.views, one.encode(), strict=True)
        self.outputs, self._graph = tuple(outputs[view] for view in sorted(outputs)), graph

    def encode_again(self, generators: Generators) -> tuple[Tensor, ...]:
        """Encode again with a graph and the same random numbers, except views without a gradient.

        Raises:
            Defect: the vectors differ from those of the first pass.
        """
        if self._graph:
            return self.outputs
        outputs = list(self.outputs)
        for one, state in zip(self.passes, self._states, strict=True):
            if one.joined.grad:
                generators.restore(state)
                for view, vectors in zip(one.views, one.encode(), strict=True):
                    _check_same(vectors.detach(), outputs[view])
                    outputs[view] = vectors
        return tuple(outputs)


def _check_same(again: Tensor, first: Tensor) -> None:
    """Raise Defect if vectors differ: other dropout masks would silently give another gradient."""
    difference = float((again - first).norm() / first.norm().clamp_min(1e-12))
    if not difference < _ROUNDING:
        raise Defect(
            "second pass over a chunk",
            "the vectors of the first pass",
            f"a difference of {difference:.1%}",
            "make the encoder and its views use torch's generators only, or leave chunk_rows out",
        )


def plan_chunks(views: Sequence[View], rows: int, chunk_rows: int | None) -> list[Chunk]:
    """Divide the batch into chunks of at most `chunk_rows` rows; None for one chunk.

    Raises:
        ConfigError: a view that cannot be divided would be in several chunks.
        Defect: a view without one text per row.
    """
    size = rows if chunk_rows is None else chunk_rows
    for view in views:
        if len(view.tokens) != rows:
            raise Defect(
                "view of a batch",
                f"{rows} texts, one per row",
                f"{len(view.tokens)}",
                "check the objective's views",
            )
        if view.whole_batch_reason is not None and size < rows:
            raise ConfigError(
                "chunk_rows",
                f"no chunks, because {view.whole_batch_reason}",
                f"chunks of {size} of {rows} rows",
                "leave chunk_rows out, or choose other views",
            )
    chunks = []
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        parts = [view.of_rows(np.arange(start, stop)) for view in views]
        passes = [_joined(group, [parts[view] for view in group]) for group in _groups(views)]
        chunks.append(Chunk(slice(start, stop), passes))
    return chunks


def _groups(views: Sequence[View]) -> list[tuple[int, ...]]:
    """Return groups of indices of views that can share a pass.

    A change of embeddings that is not PerText applies to a whole pass, so only views with it share a pass.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, view in enumerate(views):
        divisible = view.at_embedding is None or isinstance(view.at_embedding, PerText)
        key = id(view.encoder), view.grad, None if divisible else id(view.at_embedding)
        groups.setdefault(key, []).append(number)
    return [tuple(group) for group in groups.values()]


def _joined(numbers: tuple[int, ...], views: list[View]) -> Pass:
    """Join views into one pass; each keeps its own positions and changes of embeddings."""
    joined = replace(views[0], tokens=Tokens.joined([view.tokens for view in views]))
    if any(view.positions is not None for view in views):
        positions = [view.tokens.positions if view.positions is None else view.positions for view in views]
        joined = replace(joined, positions=np.concatenate(positions))
    changes = [view.at_embedding if isinstance(view.at_embedding, PerText) else None for view in views]
    if any(each is not None for each in changes):
        joined = replace(joined, at_embedding=Each(changes, [view.tokens.lengths for view in views]))
    return Pass(numbers, joined)

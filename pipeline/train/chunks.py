"""Chunks of a batch: consecutive rows that are encoded together, to limit the memory of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import ConfigError, Defect
from pipeline.models.trainable.perturbations import ChangePerView, PerTextChange
from pipeline.objectives import View
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.generators import RandomGenerators

# Relative difference of the vectors of two passes. Rounding in half precision stays below it; different
# dropout masks, at the usual rate of 0.1, change vectors by tens of per cent.
_MAX_DIFFERENCE = 0.02


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass of an encoder, for one or several views of the same rows.

    Attributes:
        indices: positions of these views among those of the objective.
        joined: a single view with the texts of all of them, one view after the other.
    """

    indices: tuple[int, ...]
    joined: View

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
        passes = [_join(group, [parts[index] for index in group]) for group in _groups(views)]
        chunks.append(Chunk(slice(start, stop), passes))
    return chunks


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

"""Training batches: the rows of one step on one rank, by the roles of their columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.text.tokens.tokens import Tokens

Column = Sequence[str] | np.ndarray


class Peers(Protocol):
    """Ranks that use each other's rows as candidates, that is as positives and negatives."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    def gather(self, z: Tensor) -> Tensor:
        """Concatenate z (n, ...) of all W ranks in rank order: (W n, ...).

        The gradient of every rank flows back to the rank that owns the row.

        Raises:
            DataError: n differs between ranks.
        """


class NoPeers:
    """A single rank, whose candidates are its own rows."""

    rank = 0

    def gather(self, z: Tensor) -> Tensor:
        """Return z."""
        return z


NO_PEERS = NoPeers()


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one training step on one rank."""

    columns: Mapping[str, Column]
    """n texts, n numbers, or (n, k) numbers, by role"""
    rows: np.ndarray
    """(n,) int64 row numbers in the data set"""
    tokenize: Callable[[Sequence[str]], Tokens]
    """tokenizer of the texts"""
    peers: Peers = NO_PEERS
    """ranks whose rows are candidates too"""
    false_negatives: Mapping[str, np.ndarray] = field(default_factory=dict)
    """(n, candidates) bool by role, True where a candidate means the same as the row without being its
    positive. For the roles "text", "next" and "next3" the candidates are all peers' texts of that role; for
    "anchor" they are all peers' positives, then all their texts of the roles negative, negative2 and so on"""
    source: str = ""
    """data source of the rows"""
    indices: np.ndarray | None = None
    """(n,) position of each row within the batch of the step, if this is a part of that batch; else None"""
    counts: Mapping[str, int] = field(default_factory=dict)
    """counts of the rows of all ranks, by name; see `MetricsLine.counts`"""
    max_length: int | None = None
    """largest number of tokens that `tokenize` returns for a text, and of two texts read as one sequence;
    None: the encoder's limit
    """

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    @property
    def step_indices(self) -> np.ndarray:
        """(n,) position of each row within the batch of the step."""
        return np.arange(len(self)) if self.indices is None else self.indices

    def own_rows(self, positions: np.ndarray) -> np.ndarray:
        """Return the row of this batch at each position (m,) within the step's batch: (m,), -1 for none."""
        indices = self.step_indices
        rows = np.full(max(indices.max(), positions.max(initial=0)) + 1, -1)
        rows[indices] = np.arange(len(indices))
        return rows[positions]

    def column(self, role: str) -> Column:
        """Return the n values of a column; raise DataError if it is missing or has another length."""
        if role not in self.columns:
            known = ", ".join(sorted(self.columns)) or "none"
            raise DataError(
                "training batch",
                f"a column with the role {role}",
                f"columns with the roles {known}",
                "set which column of the data has this role",
            )
        if len(self.columns[role]) != len(self):
            raise DataError(
                "training batch",
                f"{len(self)} values of {role}",
                f"{len(self.columns[role])}",
                "provide one value per row",
            )
        return self.columns[role]

    def tokens(self, role: str) -> Tokens:
        """Tokenize the n texts of a column."""
        return self.tokenize(list(self.column(role)))

    def of_rows(self, indices: np.ndarray) -> "Batch":
        """Select rows. The result has no `false_negatives`: it serves losses that compare no rows."""
        columns: dict[str, Column] = {
            role: values[indices] if isinstance(values, np.ndarray) else [values[index] for index in indices]
            for role, values in self.columns.items()
        }
        return replace(
            self,
            columns=columns,
            rows=self.rows[indices],
            false_negatives={},
            indices=indices if self.indices is None else self.indices[indices],
        )

    def false_negative_mask(self, role: str, device: torch.device) -> Tensor | None:
        """Return the `false_negatives` of a role as a tensor on `device`; None if they are unknown."""
        if role not in self.false_negatives:
            return None
        return torch.from_numpy(self.false_negatives[role]).to(device)

    @property
    def offset(self) -> int:
        """Index of this rank's first row among the gathered rows."""
        return self.peers.rank * len(self)

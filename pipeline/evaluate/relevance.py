"""Scores of a release for a user's own queries, and their change since another release.

Only the gate uses this module. It is separate because it knows nothing of workers or a store.
"""

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.evaluate.bootstrap import ScoreEstimate, estimate, resample_rows, rows_by_label
from pipeline.evaluate.judgements import JudgedPairs, JudgedQueries
from pipeline.evaluate.metrics import ndcg_at, recall_at, reciprocal_rank
from pipeline.evaluate.sts import correlation
from pipeline.stats.correlation import spearman

ANSWERS = 10  # answers whose ranks count
MIN_ROWS = 10  # a slice of fewer rows gets no interval: resamples of a few rows differ too little
RESAMPLES, SEED = 1_000, 1_111
RECALL, MRR = f"recall@{ANSWERS}", f"MRR@{ANSWERS}"


@dataclass(frozen=True)
class RelevanceScores:
    """Scores of all queries, or of all pairs; rows with equal keys can be compared between releases."""

    keys: tuple[tuple[str, ...], ...]
    """query and relevant ids of each row, or the two sentences and their score"""
    scores: np.ndarray
    """(n,) float64: nDCG@10 of each query, or the cosine of each pair"""
    gold: np.ndarray | None = None
    """(n,) scores of the pairs; None for queries"""
    recall: np.ndarray | None = None
    """(n,) recall@10 of each query; None for pairs, and for releases of earlier versions"""
    reciprocal_rank: np.ndarray | None = None
    """(n,) 1 / rank of each query's first relevant row among ten answers, 0 without any; None as above"""
    slices: tuple[str, ...] | None = None
    """slice of each row; None without slices"""

    @classmethod
    def of_ranks(cls, judged: JudgedQueries, rows: Sequence[int], ranks: Sequence[np.ndarray]) -> Self:
        """Score queries by the ranks of their relevant rows.

        Args:
            judged: all queries.
            rows: indices of the queries to score.
            ranks: for each of these, the ascending ranks, from 1, of its relevant rows; infinity for rows
                that are not among the answers.
        """
        keys = tuple((judged.queries[row], *judged.relevant[row]) for row in rows)
        slices = None if judged.slices is None else tuple(judged.slices[row] for row in rows)
        recall, reciprocal = recall_at(ranks, ANSWERS), reciprocal_rank(ranks)
        return cls(keys, ndcg_at(ranks, ANSWERS), None, recall, reciprocal, slices)

    @classmethod
    def of_cosines(cls, judged: JudgedPairs, cosines: np.ndarray) -> Self:
        """Score pairs by their cosines (n,)."""
        keys = zip(judged.left, judged.right, map(repr, judged.gold.tolist()), strict=True)
        return cls(tuple(keys), cosines, judged.gold, slices=judged.slices)

    def without(self, ids: Collection[str], texts: Collection[str]) -> "RelevanceScores | None":
        """Leave out the rows with one of the ids or texts; None if no other rows are left.

        A query with other relevant ids is left out, too: without one of them it would have another score.
        """

        def names_one(key: tuple[str, ...]) -> bool:
            if self.gold is not None:
                return key[0] in texts or key[1] in texts
            return key[0] in texts or any(relevant in ids for relevant in key[1:])

        kept = np.array([row for row, key in enumerate(self.keys) if not names_one(key)])
        if not len(kept):
            return None
        changes: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[kept]
            for name in ("scores", "gold", "recall", "reciprocal_rank")
        }
        slices = None if self.slices is None else tuple(self.slices[row] for row in kept)
        return replace(self, keys=tuple(self.keys[row] for row in kept), slices=slices, **changes)

    @property
    def metric(self) -> str:
        """Name of the metric of `value`."""
        return f"nDCG@{ANSWERS}" if self.gold is None else "Spearman's correlation"

    @property
    def unit(self) -> str:
        """Plural noun for the rows: queries or pairs."""
        return "queries" if self.gold is None else "pairs"

    def value(self, rows: np.ndarray | slice = slice(None)) -> float:
        """Return the mean nDCG@10, or Spearman's correlation, of the rows; nan if it is undefined."""
        scores = self.scores[rows]
        return float(scores.mean()) if self.gold is None else correlation(spearman, scores, self.gold[rows])

    def estimate(self, rows: np.ndarray | None = None) -> ScoreEstimate:
        """Return the value of the rows, or of all, with its bootstrap interval."""
        rows = np.arange(len(self.scores)) if rows is None else rows
        values = [self.value(rows[chosen]) for chosen in _resamples(len(rows))]
        return estimate(_defined(self.value(rows)), np.array(values))

    def estimates(self, rows: np.ndarray | None = None) -> dict[str, ScoreEstimate]:
        """Return every metric of the rows, or of all, with its bootstrap interval, by name."""
        rows = np.arange(len(self.scores)) if rows is None else rows
        found = {self.metric: self.estimate(rows)}
        for name, values in ((RECALL, self.recall), (MRR, self.reciprocal_rank)):
            if values is not None:
                means = [values[rows[chosen]].mean() for chosen in _resamples(len(rows))]
                found[name] = estimate(float(values[rows].mean()), np.array(means))
        return found

    def of_slices(self, before: "RelevanceScores | None") -> "tuple[SliceScores, ...]":
        """Return the scores of every slice, the largest slice first.

        Args:
            before: scores of the previous release; None if there are none.
        """
        if self.slices is None:
            return ()
        labels, numbers = np.unique(self.slices, return_inverse=True)
        found = []
        for label, rows in zip(labels, rows_by_label(numbers), strict=True):
            scores, change = self.estimates(rows), compare_scores(before, self, rows) if before else None
            if len(rows) < MIN_ROWS:
                scores = {name: ScoreEstimate(each.value) for name, each in scores.items()}
                change = change and change._replace(difference=ScoreEstimate(change.difference.value))
            found.append(SliceScores(str(label), len(rows), scores, change))
        return tuple(sorted(found, key=lambda each: -each.rows))

    def to_bytes(self) -> bytes:
        """Return a Parquet file of the rows."""
        keys = [list(key) for key in self.keys]
        columns: dict[str, pa.Array] = {"score": pa.array(self.scores)}
        others = {"gold": self.gold, "recall": self.recall, "reciprocal_rank": self.reciprocal_rank}
        columns |= {name: pa.array(values) for name, values in others.items() if values is not None}
        if self.slices is not None:
            columns["slice"] = pa.array(self.slices, pa.string())
        table = pa.table({"key": pa.array(keys, pa.list_(pa.string()))} | columns)
        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the file that `to_bytes` returns."""
        table = pq.read_table(pa.BufferReader(content))
        columns = {
            name: table[name].to_numpy() if name in table.column_names else None
            for name in ("gold", "recall", "reciprocal_rank")
        }
        return cls(
            tuple(map(tuple, table["key"].to_pylist())),
            scores=table["score"].to_numpy(),
            gold=columns["gold"],
            recall=columns["recall"],
            reciprocal_rank=columns["reciprocal_rank"],
            slices=tuple(table["slice"].to_pylist()) if "slice" in table.column_names else None,
        )


class ScoreChange(NamedTuple):
    """Scores of the rows that two releases share."""

    keys: tuple[tuple[str, ...], ...]
    """the shared rows"""
    before: np.ndarray
    """(n,) their scores in the earlier release"""
    now: np.ndarray
    """(n,) their scores in the later release"""
    difference: ScoreEstimate
    """change of the value on these rows"""

    @property
    def is_worse(self) -> bool:
        """True if the whole interval of the difference is below 0."""
        return self.difference.high is not None and self.difference.high < 0


class SliceScores(NamedTuple):
    """Scores of the rows with one value in the column of the slices."""

    name: str
    """the value"""
    rows: int
    """number of rows"""
    estimates: dict[str, ScoreEstimate]
    """every metric, by name, without intervals if there are fewer than ten rows"""
    change: ScoreChange | None
    """change since the previous release; None if there is nothing to compare with"""


def compare_scores(
    before: RelevanceScores, now: RelevanceScores, rows_now: np.ndarray | None = None
) -> ScoreChange | None:
    """Compare two releases on the rows that both have, by the paired bootstrap; None if they share none.

    Both are measured on the same resamples.

    Args:
        rows_now: the rows of `now` to compare; None: all.
    """
    rows_before = {key: row for row, key in enumerate(before.keys)}
    pairs = [
        (rows_before.pop(key), row)
        for row in (range(len(now.keys)) if rows_now is None else rows_now.tolist())
        if (key := now.keys[row]) in rows_before and (before.gold is None) == (now.gold is None)
    ]
    if not pairs:
        return None
    earlier, later = np.array(pairs).T
    differences = [now.value(later[rows]) - before.value(earlier[rows]) for rows in _resamples(len(pairs))]
    return ScoreChange(
        tuple(now.keys[row] for row in later),
        before.scores[earlier],
        now.scores[later],
        estimate(_defined(now.value(later) - before.value(earlier)), np.array(differences)),
    )


def _resamples(count: int) -> Sequence[np.ndarray]:
    return list(resample_rows({"row": np.zeros(count)}, RESAMPLES, SEED))


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else value

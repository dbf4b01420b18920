"""Retrieval by exact search: whether a query finds its relevant targets among all targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.bootstrap import grouped
from pipeline.evaluate.metrics import ndcg_at, recall_at, reciprocal_rank
from pipeline.evaluate.ranks import relevant_ranks
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.source import RowOptions, TaskRoles, TaskRows

RECALLS = (1, 5, 10, 100)


class RetrievalOptions(RowOptions):
    """Options of tasks of kind "retrieval"."""

    k: int = Field(default=10, ge=1)
    """number of results for nDCG, the task's value, and for recall@k, besides recall@1, 5, 10 and 100"""
    queries: int | None = Field(default=None, ge=1)
    """number of queries, drawn by evaluate.seed; null: all"""


@dataclass(frozen=True)
class SearchProblem:
    """Queries, targets and relevance.

    Attributes:
        texts: all texts.
        queries: indices into `texts`.
        targets: distinct indices into `texts`.
        relevant: ascending indices into `targets` of the relevant targets of each query.
        own: index into `targets` of the query's own text, which its search leaves out; -1 for none.
    """

    texts: list[str]
    queries: np.ndarray
    targets: np.ndarray
    relevant: list[np.ndarray]
    own: np.ndarray


@TASKS.register("retrieval")
@dataclass(frozen=True)
class RetrievalTask(EvaluationTask):
    """Exact search of queries among targets.

    Roles: query, positive (the targets are all distinct positives; those of the query are relevant), or text,
    group (the targets are all other rows; those of the same group are relevant). Options: see
    RetrievalOptions.
    """

    kind: ClassVar[str] = "retrieval"
    description: ClassVar[str] = (
        "Ranking of the texts that belong to a query; 100 means that they are always first."
    )
    roles: ClassVar[TaskRoles] = TaskRoles(("query", "positive"), ("text", "group"))
    options_type: ClassVar[type[RetrievalOptions]] = RetrievalOptions
    score_settings: ClassVar[tuple[str, ...]] = ("similarity", "seed")
    options: RetrievalOptions

    def problem(self) -> SearchProblem:
        """Return the queries and targets; DataError if no query has a relevant target."""
        rows = self.file.rows()
        problem = _by_positive(rows) if rows.has("query") else _by_group(rows)
        if not len(problem.queries):
            raise DataError(
                self.file.where,
                "queries with relevant targets",
                f"{len(rows):,} rows, in which no text shares its group with another"
                if rows.has("group")
                else "no rows",
                "use another file, or set the columns by role in `columns`",
            )
        wanted = self.options.queries or len(problem.queries)
        if wanted >= len(problem.queries):
            return problem
        chosen = np.sort(
            np.random.default_rng(self.settings.seed).choice(len(problem.queries), wanted, replace=False)
        )
        return replace(
            problem,
            queries=problem.queries[chosen],
            relevant=[problem.relevant[query] for query in chosen],
            own=problem.own[chosen],
        )

    def sentences(self) -> Sequence[str]:
        problem = self.problem()
        return [problem.texts[index] for index in np.unique(np.r_[problem.queries, problem.targets])]

    def score(self, vectors: Vectors) -> Score:
        problem = self.problem()
        needed, inverse = np.unique(np.r_[problem.queries, problem.targets], return_inverse=True)
        x = vectors_of(vectors, [problem.texts[index] for index in needed], self.name)
        queries, targets = x[inverse[: len(problem.queries)]], x[inverse[len(problem.queries) :]]
        ranks = relevant_ranks(self.similarity, queries, targets, problem.relevant, problem.own)
        k = self.options.k
        gains = ndcg_at(ranks, k)
        recalls = {
            f"recall@{each}": 100 * float(recall_at(ranks, each).mean()) for each in sorted({*RECALLS, k})
        }
        metrics = recalls | {
            "MRR": 100 * float(reciprocal_rank(ranks).mean()),
            f"nDCG@{k}": 100 * float(gains.mean()),
        }
        rows = self.file.rows()
        facts = {
            "similarity": self.similarity,
            "queries": len(problem.queries),
            "targets": len(problem.targets),
            "relevant": sum(len(each) for each in ranks),
            "search": "exact; a tie counts against",
            "missing_texts": rows.missing(
                *(role for role in ("query", "positive", "text") if rows.has(role))
            ),
        }
        return Score(
            f"nDCG@{k} x100, {self.similarity}",
            metrics[f"nDCG@{k}"],
            len(ranks),
            metrics,
            facts,
            (),
            {"gain": gains},
        )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * float(evidence["gain"][rows].mean())


def _by_positive(rows: TaskRows) -> SearchProblem:
    """Search distinct queries among distinct positives."""
    queries, targets = rows.texts("query"), rows.texts("positive")
    query = {text: index for index, text in enumerate(dict.fromkeys(queries))}
    target = {text: index for index, text in enumerate(dict.fromkeys(targets))}
    found = [(query[q], target[t]) for q, t in zip(queries, targets, strict=True)]
    pairs = np.unique(np.array(found, np.int64).reshape(-1, 2), axis=0)
    return SearchProblem(
        [*query, *target],
        queries=np.arange(len(query)),
        targets=len(query) + np.arange(len(target)),
        relevant=[pairs[rows, 1] for rows in grouped(pairs[:, 0]) if len(rows)],
        own=np.full(len(query), -1),
    )


def _by_group(rows: TaskRows) -> SearchProblem:
    """Search every row whose group has another row among all rows."""
    groups, _ = rows.codes("group")
    members = {int(groups[part[0]]): part for part in grouped(groups) if len(part)}
    queries = np.flatnonzero([group >= 0 and len(members[group]) > 1 for group in groups.tolist()])
    return SearchProblem(
        rows.texts("text"),
        queries,
        np.arange(len(rows)),
        [members[int(groups[row])] for row in queries],
        queries,
    )

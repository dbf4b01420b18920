"""Retrieval by exact search: rank all targets for each query, and score the ranks of the relevant ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.bootstrap import rows_by_label
from pipeline.evaluate.exact_ranks import search_targets
from pipeline.evaluate.metrics import ndcg_at, recall_at, reciprocal_rank
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.source import RowOptions, TaskRoles, TaskRows

RECALLS = (1, 5, 10, 100)


class RetrievalOptions(RowOptions):
    """Options of tasks of kind "retrieval"."""

    k: int = Field(default=10, ge=1)
    """number of results for nDCG, the task's value, and for recall@k, besides recall@1, 5, 10 and 100"""
    queries: int | None = Field(default=None, ge=1)
    """number of queries, drawn at random with evaluate.seed; null: all"""


@dataclass(frozen=True)
class SearchProblem:
    """Queries, targets, and which targets are relevant to which queries."""

    texts: list[str]
    """all texts"""
    queries: np.ndarray
    """indices into `texts`"""
    targets: np.ndarray
    """distinct indices into `texts`"""
    relevant: list[np.ndarray]
    """for each query the ascending indices into `targets` of its relevant targets"""
    self_index: np.ndarray
    """(queries,) index of the query itself among the targets, which its search leaves out; -1 if it is not a
    target"""


@TASKS.register("retrieval")
@dataclass(frozen=True)
class RetrievalTask(EvaluationTask):
    """Ranking of targets for queries, by exact search.

    Roles: query, positive (the targets are all distinct positives; a query's own positives are relevant), or
    text, group (every text is a query, and all other texts are its targets; texts of its group are relevant).
    Options: see RetrievalOptions.
    """

    kind: ClassVar[str] = "retrieval"
    description: ClassVar[str] = (
        "Ranking of the texts that belong to a query; 100 means that they are always first."
    )
    accepts_sparse: ClassVar[bool] = True
    roles: ClassVar[TaskRoles] = TaskRoles(("query", "positive"), ("text", "group"))
    options_type: ClassVar[type[RetrievalOptions]] = RetrievalOptions
    score_settings: ClassVar[tuple[str, ...]] = ("similarity", "seed")
    options: RetrievalOptions

    def problem(self) -> SearchProblem:
        """Return the queries, or a sample, and the targets; DataError if no query has a relevant target."""
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
        sample_size = self.options.queries or len(problem.queries)
        if sample_size >= len(problem.queries):
            return problem
        rng = np.random.default_rng(self.settings.seed)
        chosen = np.sort(rng.choice(len(problem.queries), sample_size, replace=False))
        return replace(
            problem,
            queries=problem.queries[chosen],
            relevant=[problem.relevant[query] for query in chosen],
            self_index=problem.self_index[chosen],
        )

    def sentences(self) -> Sequence[str]:
        problem = self.problem()
        return [problem.texts[index] for index in np.unique(np.r_[problem.queries, problem.targets])]

    def queries(self) -> Sequence[str]:
        problem = self.problem() if self.file.rows().has("query") else None
        return [] if problem is None else [problem.texts[index] for index in problem.queries]

    def score(self, vectors: Vectors, of_queries: Vectors | None = None) -> Score:
        """Rank the targets. `of_queries`, if given, encodes the queries, with a prompt of their own."""
        problem = self.problem()
        # Encode each text once, although it may be a query and a target.
        distinct, inverse = np.unique(np.r_[problem.queries, problem.targets], return_inverse=True)
        x = vectors_of(vectors, [problem.texts[index] for index in distinct], self.name)
        queries, targets = x[inverse[: len(problem.queries)]], x[inverse[len(problem.queries) :]]
        if of_queries is not None:
            queries = vectors_of(of_queries, [problem.texts[index] for index in problem.queries], self.name)
        found = search_targets(self.similarity, queries, targets, problem.relevant, problem.self_index)
        ranks, k = found.ranks, self.options.k
        gains = ndcg_at(ranks, k)
        recalls = {
            f"recall@{rank}": 100 * float(recall_at(ranks, rank).mean()) for rank in sorted({*RECALLS, k})
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
            "relevant": sum(map(len, ranks)),
            "search": "exact; a tie counts against",
            "missing_texts": rows.missing(
                *(role for role in ("query", "positive", "text") if rows.has(role))
            ),
        }
        return Score(
            f"nDCG@{k} x100, {self.similarity}",
            metrics[f"nDCG@{k}"],
            len(ranks),
            metrics=metrics,
            facts=facts,
            evidence={"gain": gains, "nearest": found.nearest},
        )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * float(evidence["gain"][rows].mean())


def _by_positive(rows: TaskRows) -> SearchProblem:
    """Build the problem for pairs: the distinct queries, and the distinct positives as targets."""
    queries, targets = rows.texts("query"), rows.texts("positive")
    query_index = {text: index for index, text in enumerate(dict.fromkeys(queries))}
    target_index = {text: index for index, text in enumerate(dict.fromkeys(targets))}
    indices = [
        (query_index[query], target_index[target]) for query, target in zip(queries, targets, strict=True)
    ]
    pairs = np.unique(np.array(indices, np.int64).reshape(-1, 2), axis=0)
    return SearchProblem(
        [*query_index, *target_index],
        queries=np.arange(len(query_index)),
        targets=len(query_index) + np.arange(len(target_index)),
        relevant=[pairs[of_query, 1] for of_query in rows_by_label(pairs[:, 0]) if len(of_query)],
        self_index=np.full(len(query_index), -1),
    )


def _by_group(rows: TaskRows) -> SearchProblem:
    """Build the problem for groups: rows whose group has another row are queries, all rows are targets."""
    groups, _ = rows.codes("group")
    members = {int(groups[part[0]]): part for part in rows_by_label(groups) if len(part)}
    queries = np.flatnonzero([group >= 0 and len(members[group]) > 1 for group in groups.tolist()])
    return SearchProblem(
        rows.texts("text"),
        queries=queries,
        targets=np.arange(len(rows)),
        relevant=[members[int(groups[row])] for row in queries],
        self_index=queries,
    )

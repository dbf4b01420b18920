"""Semantic textual similarity: the correlation of vector similarities with human scores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from pydantic import Field

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.similarity import row_similarities, vectors_of
from pipeline.evaluate.source import RowOptions, TaskRoles
from pipeline.evaluate.vocabulary import has_vector, missing_facts, missing_texts, missing_warnings
from pipeline.stats.correlation import is_constant, pearson, spearman

Aggregation = Literal["all", "mean", "wmean"]
Correlation = Callable[[np.ndarray, np.ndarray], float]

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)


class StsOptions(RowOptions):
    """Options of tasks of kind "sts"."""

    low: float = Field(default=0.0)
    """lowest possible human score; 1 for SICK"""
    high: float = Field(default=5.0)
    """highest possible human score"""


@dataclass(frozen=True)
class StsPairs:
    """Sentence pairs with a gold score, in the order of the file."""

    left: list[str]
    """first sentence of each of the n pairs"""
    right: list[str]
    """second sentence of each pair"""
    gold: np.ndarray
    """(n,) scores"""
    subset: np.ndarray
    """(n,) index of each pair's subset in `names`"""
    names: list[str]
    """names of the subsets"""
    without_score: int
    """number of pairs of the file that are left out because they have no score"""
    missing: int
    """number of missing texts"""


@TASKS.register("sts")
@dataclass(frozen=True)
class StsTask(EvaluationTask):
    """Correlation of similarities with human scores.

    Roles: sentence1, sentence2, score, and optionally subset. Options: see StsOptions. The texts may be
    single words. A text without a vector, such as a word that is missing from the vocabulary, has cosine 0
    with every other text; the correlation over the remaining pairs is reported, too.
    """

    kind: ClassVar[str] = "sts"
    description: ClassVar[str] = (
        "Correlation of similarities with human scores; 100 is the same order. The aggregation all is one "
        "correlation over all pairs of a task, mean and wmean are averages over its subsets."
    )
    quick: ClassVar[bool] = True
    accepts_sparse: ClassVar[bool] = True
    roles: ClassVar[TaskRoles] = TaskRoles(("sentence1", "sentence2", "score"), optional=("subset",))
    options_type: ClassVar[type[StsOptions]] = StsOptions
    score_settings: ClassVar[tuple[str, ...]] = ("similarity", "aggregation")
    options: StsOptions

    def pairs(self) -> StsPairs:
        """Return the pairs that have a score.

        Raises:
            DataError: a score is out of range, all scores are equal, or there are fewer than two; or a column
                of sentences is blank.
        """
        rows = self.file.rows()
        scored_rows = rows.take(~np.isnan(rows.numbers("score")))
        gold = scored_rows.numbers("score")
        check_scores(gold, self.options.low, self.options.high, self.file.where)
        subset, names = (
            scored_rows.codes("subset")
            if scored_rows.has("subset")
            else (np.zeros(len(scored_rows), np.int64), [self.name])
        )
        names = [*map(str, names), *(["(none)"] if (subset < 0).any() else [])]
        subset = np.where(subset < 0, len(names) - 1, subset)
        left, right = scored_rows.texts("sentence1"), scored_rows.texts("sentence2")
        check_sentences(left, right, self.file.where)
        return StsPairs(
            left=left,
            right=right,
            gold=gold,
            subset=subset,
            names=names,
            without_score=len(rows) - len(scored_rows),
            missing=scored_rows.missing("sentence1", "sentence2"),
        )

    def sentences(self) -> Sequence[str]:
        pairs = self.pairs()
        return [*pairs.left, *pairs.right]

    def score(self, vectors: Vectors) -> Score:
        pairs = self.pairs()
        texts = [*pairs.left, *pairs.right]
        x = vectors_of(vectors, texts, self.name)
        missing, is_known = missing_texts(texts, x), np.logical_and(*np.split(has_vector(x), 2))
        count = len(pairs.gold)
        predicted = row_similarities(self.similarity, x[:count], x[count:])
        evidence = {"prediction": predicted, "gold": pairs.gold, "stratum": pairs.subset}
        metrics = _correlations(evidence, pairs.names)
        value = metrics[f"Spearman {self.settings.aggregation}"]
        if np.isnan(value):
            raise self._undefined_score(len(pairs.names))
        if missing:
            known_pairs = (predicted[is_known], pairs.gold[is_known])
            metrics["Spearman of pairs with vectors"] = 100 * correlation(spearman, *known_pairs)
        counts = np.bincount(pairs.subset, minlength=len(pairs.names)).tolist()
        return Score(
            f"Spearman x100, {self.similarity}, {self.settings.aggregation}",
            value,
            len(pairs.gold),
            metrics={name: metric for name, metric in metrics.items() if not np.isnan(metric)},
            facts={
                "similarity": self.similarity,
                "aggregation": self.settings.aggregation,
                "pairs": len(pairs.gold),
                "without_gold": pairs.without_score,
                "missing_texts": pairs.missing,
                "subsets": dict(zip(pairs.names, counts, strict=True)),
                **(missing_facts(missing) if missing else {}),
            },
            warnings=(
                *self._warnings(pairs, predicted),
                *missing_warnings(
                    self.name,
                    missing,
                    f"{int((~is_known).sum()):,} of {len(is_known):,} pairs are scored with a zero vector",
                ),
            ),
            evidence=evidence,
        )

    def _undefined_score(self, subsets: int) -> DataError:
        return DataError(
            self.file.where,
            f"a subset with different scores, for the aggregation {self.settings.aggregation}",
            f"none of {subsets}",
            "use evaluate.aggregation=all or larger subsets",
        )

    def _warnings(self, pairs: StsPairs, predicted: np.ndarray) -> Iterator[str]:
        if is_constant(predicted):
            yield (
                f"{self.name}: every pair has the same {self.similarity} similarity, "
                f"{predicted[0] or 0.0:g}; correlations are given as 0"
            )
            return
        parts = [
            (name, predicted[pairs.subset == number], pairs.gold[pairs.subset == number])
            for number, name in enumerate(pairs.names)
        ]
        flat = [name for name, part, gold in parts if is_constant(part) and not is_constant(gold)]
        undefined = [name for name, _, gold in parts if is_constant(gold)]
        if undefined:
            yield (
                f"{self.name}: no correlation is defined in {', '.join(undefined)} (one pair, or one "
                "score for all); mean and wmean leave them out"
            )
        if flat:
            yield (
                f"{self.name}: every pair of {', '.join(flat)} has the same similarity; "
                "its correlation counts as 0"
            )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * aggregate(
            spearman, {name: values[rows] for name, values in evidence.items()}, self.settings.aggregation
        )


def check_sentences(left: Sequence[str], right: Sequence[str], where: str) -> None:
    """Raise DataError if the first or the second sentence of every pair is blank."""
    for role, texts in (("sentence1", left), ("sentence2", right)):
        if not any(map(str.strip, texts)):
            raise DataError(
                where,
                f"sentences in the column {role}",
                f"{len(texts):,} blank or missing ones",
                "correct the file, or name another column",
            )


def check_scores(gold: np.ndarray, low: float, high: float, where: str) -> None:
    """Raise DataError if scores (n,) are not from low to high, all equal, or fewer than two."""
    outside = gold[(gold < low) | (gold > high)]
    if len(outside):
        raise DataError(
            where,
            f"scores from {low:g} to {high:g}",
            f"{len(outside):,} outside, such as {outside[0]:g}",
            "correct the file, or set the options `low` and `high`",
        )
    if len(gold) < 2:
        raise DataError(where, "at least two pairs with a score", f"{len(gold)}", "use more pairs")
    if is_constant(gold):
        raise DataError(
            where,
            "at least two different scores",
            f"{len(gold):,} pairs, all with {gold[0]:g}",
            "use other pairs; no correlation is defined for these",
        )


def _correlations(evidence: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, float]:
    """Compute both correlations x100 for each aggregation, and Spearman for each subset; nan if undefined."""
    correlations = {
        f"{name} {aggregation}": 100 * aggregate(correlate, evidence, aggregation)
        for name, correlate in (("Spearman", spearman), ("Pearson", pearson))
        for aggregation in AGGREGATIONS
    }
    for number, name in enumerate(names):
        part = evidence["stratum"] == number
        value = correlation(spearman, evidence["prediction"][part], evidence["gold"][part])
        correlations[f"Spearman of {name}"] = 100 * value
    return correlations


def aggregate(correlate: Correlation, evidence: Mapping[str, np.ndarray], aggregation: Aggregation) -> float:
    """Aggregate a correlation over subsets; nan if undefined.

    Args:
        correlate: correlation of two samples.
        evidence: "prediction", "gold" and "stratum" of the pairs.
        aggregation: "all" for one correlation over all pairs, "mean" for the mean over the subsets, "wmean"
            for their mean weighted by the number of pairs.
    """
    predicted, gold, subset = evidence["prediction"], evidence["gold"], evidence["stratum"]
    if aggregation == "all":
        return correlation(correlate, predicted, gold)
    parts = [subset == number for number in np.unique(subset)]
    values = np.array([correlation(correlate, predicted[part], gold[part]) for part in parts])
    defined = ~np.isnan(values)
    weights = np.array([part.sum() if aggregation == "wmean" else 1 for part in parts])[defined]
    return float(np.average(values[defined], weights=weights)) if defined.any() else float("nan")


def correlation(correlate: Correlation, predicted: np.ndarray, gold: np.ndarray) -> float:
    """Compute a correlation: 0 for constant predictions, nan for constant gold scores."""
    return 0.0 if is_constant(predicted) and not is_constant(gold) else correlate(predicted, gold)

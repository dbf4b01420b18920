"""Semantic relatedness: human scores predicted by a regressor on frozen vectors (Tai et al. 2015)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.config import Settings
from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.protocol import DEV, TEST, TRAIN
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.solvers.scale import ScalePredictions, predict_on_scale
from pipeline.evaluate.source import TaskRoles
from pipeline.evaluate.sts import check_scores, correlation
from pipeline.evaluate.transfer import pair_features
from pipeline.stats.correlation import is_constant, pearson, spearman

STRENGTHS = tuple(4.0**power for power in range(-1, 6))  # values of C


class RelatednessOptions(Settings):
    """Options of tasks of kind "relatedness"."""

    low: int = 0
    """lowest value of the scale; 1 for SICK"""
    high: int = 5
    """highest value of the scale"""


@dataclass(frozen=True)
class RelatednessPairs:
    """Sentence pairs with a score, in the order of the file."""

    left: list[str]
    """first sentence of each of the n pairs"""
    right: list[str]
    """second sentence of each pair"""
    gold: np.ndarray
    """(n,) scores"""
    parts: dict[str, np.ndarray]
    """row numbers of each split"""
    without_score: int
    """number of pairs that are left out because they have no score"""
    missing: int
    """number of missing texts"""


@TASKS.register("relatedness")
@dataclass(frozen=True)
class RelatednessTask(EvaluationTask):
    """Prediction of human scores from |u - v| and u * v by a softmax over an integer scale.

    Roles: sentence1, sentence2, score, split (train and test, and dev to choose the strength of the penalty;
    without dev it is chosen by cross-validation on train). The value is Pearson's correlation on test.
    Options: see RelatednessOptions.
    """

    kind: ClassVar[str] = "relatedness"
    description: ClassVar[str] = (
        "Correlation of human scores with those that a regressor, trained on frozen vectors, predicts. It "
        "is not comparable with the correlation of similarities, which needs no training."
    )
    trains: ClassVar[bool] = True
    roles: ClassVar[TaskRoles] = TaskRoles(("sentence1", "sentence2", "score", "split"))
    options_type: ClassVar[type[RelatednessOptions]] = RelatednessOptions
    score_settings: ClassVar[tuple[str, ...]] = ("folds", "seed")
    options: RelatednessOptions

    def pairs(self) -> RelatednessPairs:
        """Return the scored pairs of the splits. Raises DataError for unsuitable scores or splits."""
        rows = self.file.rows()
        scored_rows = rows.take(~np.isnan(rows.numbers("score")))
        gold, (codes, names) = scored_rows.numbers("score"), scored_rows.codes("split")
        check_scores(gold, self.options.low, self.options.high, self.file.where)
        if (codes < 0).any() or not {TRAIN, TEST} <= set(names) <= {TRAIN, DEV, TEST}:
            raise DataError(
                self.file.where,
                f"the split {TRAIN}, {DEV} or {TEST} for every row, with rows of {TRAIN} and of {TEST}",
                ", ".join(map(str, names)) + (" and rows without one" if (codes < 0).any() else ""),
                "rename the values of the split column",
            )
        parts = {name: np.flatnonzero(codes == names.index(name)) for name in names}
        self._check_parts({name: gold[part] for name, part in parts.items()})
        return RelatednessPairs(
            left=scored_rows.texts("sentence1"),
            right=scored_rows.texts("sentence2"),
            gold=gold,
            parts=parts,
            without_score=len(rows) - len(scored_rows),
            missing=scored_rows.missing("sentence1", "sentence2"),
        )

    def _check_parts(self, gold: Mapping[str, np.ndarray]) -> None:
        """Raise DataError for a split whose scores are all equal, or too few pairs for cross-validation."""
        for name, scores in gold.items():
            if is_constant(scores):
                raise DataError(
                    self.file.where,
                    f"at least two different scores in the split {name}",
                    f"{len(scores):,} pairs that all have the same score",
                    "use more pairs",
                )
        least = 2 * self.settings.folds  # two pairs to correlate in each fold
        if DEV not in gold and len(gold[TRAIN]) < least:
            raise DataError(
                self.file.where,
                f"at least {least:,} pairs in the split {TRAIN}, or a split {DEV}",
                f"{len(gold[TRAIN]):,}",
                "lower evaluate.folds, or use more pairs",
            )

    def sentences(self) -> Sequence[str]:
        pairs = self.pairs()
        return [*pairs.left, *pairs.right]

    def score(self, vectors: Vectors) -> Score:
        pairs = self.pairs()
        features = pair_features(*np.split(vectors_of(vectors, [*pairs.left, *pairs.right], self.name), 2))
        x = {name: features[part] for name, part in pairs.parts.items()}
        y = {name: pairs.gold[part] for name, part in pairs.parts.items()}
        chosen, trials_converged = self._choose(x, y)
        final = predict_on_scale(x[TRAIN], y[TRAIN], [chosen], x[TEST])
        predicted, gold = final.values[0], y[TEST]
        chosen_on = DEV if DEV in x else f"{self.settings.folds}-fold cross-validation on {TRAIN}"
        metrics = {
            "Pearson": 100 * correlation(pearson, predicted, gold),
            "Spearman": 100 * correlation(spearman, predicted, gold),
            "mean squared error": float(np.mean((predicted - gold) ** 2)),
        }
        return Score(
            f"Pearson x100 of a regressor, chosen on {chosen_on}",
            metrics["Pearson"],
            len(gold),
            metrics,
            facts={
                "features": "|u-v|, u*v",
                "standardised": False,
                "scale": f"{self.options.low} to {self.options.high}",
                "strength": "inverse strength C",
                "strengths": list(STRENGTHS),
                "chosen": chosen,
                "pairs": {name: len(part) for name, part in pairs.parts.items()},
                "without_gold": pairs.without_score,
                "missing_texts": pairs.missing,
            },
            warnings=tuple(self._warnings(predicted, converged=final.converged and trials_converged)),
            evidence={"prediction": predicted, "gold": gold},
        )

    def _choose(self, x: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray]) -> tuple[float, bool]:
        """Choose the strength of the penalty; return it, and whether all regressions converged.

        The strength with the best correlation on dev, or the best mean correlation over the folds, is chosen;
        if several are equal, the strongest penalty.
        """
        if DEV in x:
            trials = [(predict_on_scale(x[TRAIN], y[TRAIN], STRENGTHS, x[DEV]), y[DEV])]
        else:
            trials = list(self._folds(x[TRAIN], y[TRAIN]))
        correlations = [
            [correlation(pearson, predicted, gold) for predicted in predictions.values]
            for predictions, gold in trials
        ]
        # A fold whose scores are all equal has no correlation with any prediction.
        defined = np.array(correlations)[~np.isnan(correlations).any(axis=1)]
        best = int(np.argmax(defined.mean(axis=0))) if len(defined) else 0
        return STRENGTHS[best], all(predictions.converged for predictions, _ in trials)

    def _folds(self, x: np.ndarray, y: np.ndarray) -> Iterator[tuple[ScalePredictions, np.ndarray]]:
        """Yield, for each fold, its predictions by regressors trained on the other folds, and its scores."""
        from sklearn.model_selection import KFold

        for train, test in KFold(self.settings.folds, shuffle=True, random_state=self.settings.seed).split(x):
            yield predict_on_scale(x[train], y[train], STRENGTHS, x[test]), y[test]

    def _warnings(self, predicted: np.ndarray, *, converged: bool) -> Iterator[str]:
        if is_constant(predicted):
            yield f"{self.name}: every pair has the same prediction; correlations are given as 0"
        if not converged:
            yield f"{self.name}: a regression stopped before the optimum; the value may change slightly"

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * correlation(pearson, evidence["prediction"][rows], evidence["gold"][rows])

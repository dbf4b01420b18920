"""Transfer tasks of SentEval: the accuracy of a logistic regression on frozen sentence vectors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from pipeline.config import Settings
from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.protocol import (
    CROSS_VALIDATION,
    TEST,
    LabelledVectors,
    TransferOutcome,
    TransferProtocol,
    check_classes,
    protocol_of,
)
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.solvers import build_solver
from pipeline.evaluate.solvers.linear import Solver
from pipeline.evaluate.source import TaskRoles


class TransferOptions(Settings):
    """Options of tasks of kind "transfer"; solver, folds and seed come from the settings `evaluate`."""

    curve_seeds: Annotated[int, Field(ge=0)] = 0
    """measure a learning curve: the mean accuracy after training on few texts, drawn with this many seeds
    (ten are usual); 0: no learning curve
    """
    curve_first: Annotated[int, Field(ge=1)] = 1_000
    """number of training texts at which the learning curve begins; each next point has twice as many"""


@dataclass(frozen=True)
class LabelledTexts:
    """Texts or pairs of texts with a label, in the order of the file."""

    left: list[str]
    """n texts, or the first text of each pair"""
    right: list[str] | None
    """the second text of each pair; None if the task has single texts"""
    y: np.ndarray
    """(n,) indices into `labels`"""
    labels: list[Any]
    """the distinct labels, sorted"""
    split: np.ndarray
    """(n,) split of each row"""
    protocol: TransferProtocol
    """division of the rows for training and test"""
    facts: Mapping[str, Any]
    """counts of unlabelled rows and missing texts, for `Score.facts`"""


@TASKS.register("transfer")
@dataclass(frozen=True)
class TransferTask(EvaluationTask):
    """Classification of texts, or of pairs, by logistic regression.

    Roles: text, label; or sentence1, sentence2, label, with the features |u - v| and u * v; and optionally
    `split` (cv, or train, dev, test). The value is accuracy: the mean over the outer folds of a nested
    cross-validation, or the accuracy on the test part. Features are not standardized.
    """

    kind: ClassVar[str] = "transfer"
    description: ClassVar[str] = (
        "Proportion of texts that a linear classifier of the frozen vectors classifies correctly. "
        "Results of lbfgs and sgd, two methods to fit it, are not comparable."
    )
    trains: ClassVar[bool] = True
    roles: ClassVar[TaskRoles] = TaskRoles(
        ("text", "label"), ("sentence1", "sentence2", "label"), optional=("split",)
    )
    options_type: ClassVar[type[TransferOptions]] = TransferOptions
    score_settings: ClassVar[tuple[str, ...]] = ("solver", "folds", "seed")
    options: TransferOptions

    def labelled_texts(self) -> LabelledTexts:
        """Return the labelled rows that the protocol uses. Raises DataError for bad splits or classes."""
        rows = self.file.rows()
        splits, names = (
            rows.codes("split") if rows.has("split") else (np.zeros(len(rows), np.int64), [CROSS_VALIDATION])
        )
        if (splits < 0).any():
            raise DataError(
                self.file.where,
                "a split for every row",
                f"{(splits < 0).sum():,} rows without one",
                "fill in the column",
            )
        protocol = protocol_of(self.name, names, self.settings.folds, self.settings.seed, self.file.where)
        codes, values = rows.codes("label")
        split = np.array(names, object)[splits]
        is_used = (codes >= 0) & np.isin(split, protocol.used_splits)
        labels = sorted({values[code] for code in codes[is_used]})
        classes = {label: index for index, label in enumerate(labels)}
        y = np.array([classes[values[code]] for code in codes[is_used]], np.int64)
        used_rows = rows.take(is_used)
        check_classes(y, split[is_used], protocol, labels, self.file.where)
        options = self.options
        protocol.check_curve(y, split[is_used], options.curve_first, options.curve_seeds, self.file.where)
        roles = ("text",) if rows.has("text") else ("sentence1", "sentence2")
        texts = [used_rows.texts(role) for role in roles]
        return LabelledTexts(
            left=texts[0],
            right=texts[1] if len(texts) > 1 else None,
            y=y,
            labels=labels,
            split=split[is_used],
            protocol=protocol,
            facts={"without_label": int((codes < 0).sum()), "missing_texts": used_rows.missing(*roles)},
        )

    def sentences(self) -> Sequence[str]:
        labelled = self.labelled_texts()
        return [*labelled.left, *(labelled.right or [])]

    def score(self, vectors: Vectors) -> Score:
        labelled, solver = self.labelled_texts(), build_solver(self.settings.solver, self.settings.seed)
        x = vectors_of(vectors, [*labelled.left, *(labelled.right or [])], self.name)
        features = x if labelled.right is None else pair_features(*np.split(x, 2))
        outcome = labelled.protocol.run(solver, features, labelled.y, labelled.split)
        gold = labelled.y[outcome.rows]
        evidence = {"right": outcome.predicted == gold, "stratum": outcome.fold}
        metrics = {
            "accuracy": 100 * _mean_of_folds(evidence),
            "majority class": 100 * float(np.bincount(gold).max() / len(gold)),
        }
        if len(labelled.labels) == 2 and labelled.right is not None:
            metrics["F1"] = 100 * f1(outcome.predicted == 1, gold == 1)
        curve = labelled.protocol.learning_curve(
            solver,
            LabelledVectors(features, labelled.y, labelled.split),
            self.options.curve_first,
            self.options.curve_seeds,
        )
        metrics |= {f"accuracy, {count:,} training texts": float(np.mean(curve[count])) for count in curve}
        return Score(
            f"accuracy x100, {self.settings.solver}, {labelled.protocol.name}",
            metrics["accuracy"],
            len(gold),
            metrics,
            self._facts(labelled, solver, outcome) | _curve_facts(curve),
            (
                *self._warnings(labelled.protocol, outcome),
                *self._curve_warnings(labelled.protocol, curve),
            ),
            evidence,
        )

    def _facts(self, labelled: LabelledTexts, solver: Solver, outcome: TransferOutcome) -> dict[str, Any]:
        protocol = labelled.protocol
        return {
            "solver": self.settings.solver,
            "protocol": protocol.name,
            "missing_splits": list(protocol.missing),
            "folds": self.settings.folds,
            "seed": self.settings.seed,
            "strength": "inverse strength C" if self.settings.solver == "lbfgs" else "weight decay",
            "strengths": list(solver.strengths),
            "chosen": list(outcome.chosen_strengths),
            "features": "u" if labelled.right is None else "|u-v|, u*v",
            "standardised": False,
            "texts": {name: int((labelled.split == name).sum()) for name in protocol.used_splits},
            "classes": {
                str(label): int(count)
                for label, count in zip(labelled.labels, np.bincount(labelled.y), strict=True)
            },
            **labelled.facts,
        }

    def _warnings(self, protocol: TransferProtocol, outcome: TransferOutcome) -> Iterator[str]:
        if protocol.missing:
            yield (
                f"{self.name}: the {' and '.join(protocol.missing)} part is missing; {protocol.name} is not "
                "the published protocol, and the value is not comparable"
            )
        if not outcome.converged:
            yield (
                f"{self.name}: {self.settings.solver} stopped before the optimum; "
                "accuracies may change slightly"
            )

    def _curve_warnings(self, protocol: TransferProtocol, curve: Mapping[int, list[float]]) -> Iterator[str]:
        if self.options.curve_seeds and not curve:
            yield (
                f"{self.name}: there is no learning curve, because it has at most "
                f"{self.options.curve_first:,} training texts; lower the option curve_first"
            )
        if curve and TEST not in protocol.splits:
            yield f"{self.name}: the learning curve is measured on the first of {protocol.folds} folds"

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * _mean_of_folds({name: values[rows] for name, values in evidence.items()})


def _curve_facts(curve: Mapping[int, list[float]]) -> dict[str, Any]:
    """Return mean and standard deviation over the seeds for each number of training texts; none if empty."""
    spread = {
        str(count): {"mean": float(np.mean(accuracies)), "standard_deviation": float(np.std(accuracies))}
        for count, accuracies in curve.items()
    }
    return {"learning_curve": spread} if spread else {}


def pair_features(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute |u - v| and u * v for rows u of left and v of right (n, d): (n, 2d) (Tai et al. 2015)."""
    return np.concatenate([np.abs(left - right), left * right], axis=1)


def f1(predicted: np.ndarray, positive: np.ndarray) -> float:
    """Compute F1 of the positive class, in [0, 1]. Both arguments are (n,) bool."""
    return 2 * int((predicted & positive).sum()) / max(int(predicted.sum()) + int(positive.sum()), 1)


def _mean_of_folds(evidence: Mapping[str, np.ndarray]) -> float:
    """Compute the unweighted mean of the accuracies on the outer folds."""
    fold, is_right = evidence["stratum"], evidence["right"]
    return float(np.mean([is_right[fold == number].mean() for number in np.unique(fold)]))

"""Transfer: what a logistic regression on frozen sentence vectors gets right (SentEval: MR, CR, SUBJ, MPQA, SST2, SST5, TREC, MRPC)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np

from pipeline.config import Settings, validated
from pipeline.errors import DataError
from pipeline.evaluate import TASKS, Score, Vectors
from pipeline.evaluate.protocol import Outcome, Protocol, check_classes, protocol_of
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.solvers import Solver, solver_of
from pipeline.evaluate.source import TaskFile, digest, name_of, open_file
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.base import Store


class TransferOptions(Settings):
    """Kind "transfer" has no options: its solver, folds and seed are those of `evaluate`."""


@dataclass(frozen=True)
class Labelled:
    """Texts, or pairs (right is None for texts), in the file's order. y: places in `labels`; split: of each row."""

    left: list[str]
    right: list[str] | None
    y: np.ndarray
    labels: list[Any]
    split: np.ndarray
    protocol: Protocol
    facts: Mapping[str, Any]


@TASKS.register("transfer")
@dataclass(frozen=True)
class TransferTask:
    """Roles text, label; or sentence1, sentence2, label, whose features are |u - v| and u * v; split if there (cv, or train, dev, test).

    The value is accuracy: the mean of the outer folds of a nested cross-validation, or that of the test part. Features are taken as they are, not standardised.
    """

    kind: ClassVar[str] = "transfer"
    name: str
    file: TaskFile
    solver: Literal["lbfgs", "sgd"]
    folds: int
    seed: int

    @classmethod
    def of(cls, source: TaskSettings, store: Store, path: str, settings: EvaluateSettings) -> Self:
        validated(TransferOptions, source.options, f"{source.uri}: options")
        file = open_file(
            source, store, path, [("text", "label"), ("sentence1", "sentence2", "label")], ("split",)
        )
        task = cls(name_of(source, path), file, settings.solver, settings.folds, settings.seed)
        task.labelled()
        return task

    @property
    def digest(self) -> str:
        return digest(self.kind, self.name, self.file, solver=self.solver, folds=self.folds, seed=self.seed)

    def labelled(self) -> Labelled:
        """The rows that the protocol reads and that have a label; DataError for splits or classes that do not serve."""
        rows = self.file.rows()
        splits, names = rows.codes("split") if rows.has("split") else (np.zeros(len(rows), np.int64), None)
        if names is not None and (splits < 0).any():
            raise DataError(
                self.file.where,
                "a split for every row",
                f"{(splits < 0).sum():,} rows without",
                "fill the column in",
            )
        protocol = protocol_of(self.name, names, self.folds, self.seed, self.file.where)
        codes, values = rows.codes("label")
        split = np.array(names if names is not None else ["cv"], object)[splits]
        kept = (codes >= 0) & np.isin(split, protocol.used)
        order = {value: place for place, value in enumerate(sorted({values[code] for code in codes[kept]}))}
        y, chosen = np.array([order[values[code]] for code in codes[kept]], np.int64), rows.take(kept)
        check_classes(y, split[kept], protocol, list(order), self.file.where)
        roles = ("text",) if rows.has("text") else ("sentence1", "sentence2")
        texts = [chosen.texts(role) for role in roles]
        facts = {"without_label": int((codes < 0).sum()), "missing_texts": chosen.missing(*roles)}
        return Labelled(
            texts[0], texts[1] if len(texts) > 1 else None, y, list(order), split[kept], protocol, facts
        )

    def sentences(self) -> Sequence[str]:
        labelled = self.labelled()
        return [*labelled.left, *(labelled.right or [])]

    def score(self, vectors: Vectors) -> Score:
        labelled, solver = self.labelled(), solver_of(self.solver, self.seed)
        x = vectors_of(vectors, [*labelled.left, *(labelled.right or [])], self.name)
        features = x if labelled.right is None else pair_features(*np.split(x, 2))
        outcome = labelled.protocol.run(solver, features, labelled.y, labelled.split)
        gold = labelled.y[outcome.rows]
        evidence = {"right": outcome.predicted == gold, "stratum": outcome.fold}
        figures = {
            "accuracy": 100 * _mean_of_folds(evidence),
            "majority class": 100 * float(np.bincount(gold).max() / len(gold)),
        }
        if len(labelled.labels) == 2 and labelled.right is not None:
            figures["F1"] = 100 * f1(outcome.predicted == 1, gold == 1)
        metric = f"accuracy x100, {self.solver}, {labelled.protocol.name}"
        return Score(
            metric,
            figures["accuracy"],
            len(gold),
            figures,
            self._facts(labelled, solver, outcome),
            self._warnings(labelled.protocol, outcome),
            evidence,
        )

    def _facts(self, labelled: Labelled, solver: Solver, outcome: Outcome) -> dict[str, Any]:
        strength = "inverse strength C" if self.solver == "lbfgs" else "weight decay"
        protocol = labelled.protocol
        return {
            "solver": self.solver,
            "protocol": protocol.name,
            "missing_splits": list(protocol.missing),
            "folds": self.folds,
            "seed": self.seed,
            "strength": strength,
            "strengths": list(solver.strengths),
            "chosen": list(outcome.chosen),
            "features": "u" if labelled.right is None else "|u-v|, u*v",
            "standardised": False,
            "texts": {name: int((labelled.split == name).sum()) for name in protocol.used},
            "classes": {
                str(label): int(count)
                for label, count in zip(labelled.labels, np.bincount(labelled.y), strict=True)
            },
            **labelled.facts,
        }

    def _warnings(self, protocol: Protocol, outcome: Outcome) -> tuple[str, ...]:
        absent = f"{self.name}: the {' and '.join(protocol.missing)} part is not there; {protocol.name} is not the published protocol, and the figure not comparable"
        unfinished = f"{self.name}: {self.solver} stopped before the optimum; accuracies may move a little"
        return (*([absent] if protocol.missing else []), *([] if outcome.converged else [unfinished]))

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        return 100 * _mean_of_folds({name: values[rows] for name, values in evidence.items()})


def pair_features(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n, 2d): |u - v| beside u * v of left and right (n, d) (Tai et al. 2015)."""
    return np.concatenate([np.abs(left - right), left * right], axis=1)


def f1(predicted: np.ndarray, positive: np.ndarray) -> float:
    """Of the positive class, in [0, 1]; both (n,) bool."""
    hits = int((predicted & positive).sum())
    return 2 * hits / max(int(predicted.sum()) + int(positive.sum()), 1)


def _mean_of_folds(evidence: Mapping[str, np.ndarray]) -> float:
    """Unweighted mean over the outer folds of the share that is right."""
    fold, right = evidence["stratum"], evidence["right"]
    return float(np.mean([right[fold == number].mean() for number in np.unique(fold)]))

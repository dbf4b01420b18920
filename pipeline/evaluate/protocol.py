"""How a transfer task is cut into training, choice of the penalty, and test: the protocols of SentEval (Conneau and Kiela 2018)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.evaluate.solvers import Linear, Solver

CROSS, TRAIN, DEV, TEST = "cv", "train", "dev", "test"
EXPECTED = {
    "SST2": (TRAIN, DEV, TEST),
    "SST5": (TRAIN, DEV, TEST),
    "TREC": (TRAIN, TEST),
    "MRPC": (TRAIN, TEST),
}
LEAST = 3  # texts of a class, so that every training part of a nested cross-validation has one


@dataclass(frozen=True)
class Outcome:
    """Predictions of the texts tested. rows: their places; predicted: classes; fold: which outer fold, 0 for a fixed test; chosen: the strength of each fold."""

    rows: np.ndarray
    predicted: np.ndarray
    fold: np.ndarray
    chosen: tuple[float, ...]
    converged: bool = True


@dataclass(frozen=True)
class Protocol:
    """name: as in tables. missing: splits that the set has elsewhere and not here."""

    name: str
    splits: tuple[str, ...]
    missing: tuple[str, ...]
    folds: int
    seed: int

    @property
    def used(self) -> tuple[str, ...]:
        """The splits whose rows it reads: without a test part, cross-validation is over the training part."""
        return self.splits if TEST in self.splits or CROSS in self.splits else (TRAIN,)

    def run(self, solver: Solver, x: np.ndarray, y: np.ndarray, split: np.ndarray) -> Outcome:
        """The outcome over vectors x (n, d), classes y (n,) and the split of each row (n,)."""
        parts = {name: np.flatnonzero(split == name) for name in (TRAIN, DEV, TEST)}
        if TEST not in self.splits:
            return self._nested(solver, x, y)
        if DEV in self.splits:
            model, chosen = self._by_dev(solver, x, y, parts)
        else:
            model, chosen = self._by_folds(solver, x[parts[TRAIN]], y[parts[TRAIN]])
        return Outcome(
            parts[TEST],
            model.predict(x[parts[TEST]])[0, 0],
            np.zeros(len(parts[TEST]), np.int64),
            (chosen,),
            model.converged,
        )

    def _nested(self, solver: Solver, x: np.ndarray, y: np.ndarray) -> Outcome:
        """Every row is tested once, by a classifier whose strength was chosen by cross-validation within the other outer folds."""
        predicted, fold, chosen, converged = np.empty(len(y), np.int64), np.empty(len(y), np.int64), [], True
        for number, (train, test) in enumerate(stratified(y, self.folds, self.seed)):
            model, strength = self._by_folds(solver, x[train], y[train])
            predicted[test], fold[test] = model.predict(x[test])[0, 0], number
            chosen.append(strength)
            converged &= model.converged
        return Outcome(np.arange(len(y)), predicted, fold, tuple(chosen), converged)

    def _by_folds(self, solver: Solver, x: np.ndarray, y: np.ndarray) -> tuple[Linear, float]:
        """A classifier of all rows with the strength that is best on average over folds of them; of equal ones the strongest penalty."""
        parts = np.ones((self.folds, len(y)), bool)
        for part, (_, test) in zip(parts, stratified(y, self.folds, self.seed), strict=True):
            part[test] = False
        tried = solver.fit(x, y, int(y.max()) + 1, parts, solver.strengths)
        right = tried.predict(x) == y
        accuracy = np.mean([right[fold][:, ~part].mean(axis=1) for fold, part in enumerate(parts)], axis=0)
        chosen = solver.strengths[int(np.argmax(accuracy))]
        model = solver.fit(x, y, int(y.max()) + 1, np.ones((1, len(y)), bool), [chosen])
        return replace(model, converged=model.converged and tried.converged), chosen

    def _by_dev(
        self, solver: Solver, x: np.ndarray, y: np.ndarray, parts: dict[str, np.ndarray]
    ) -> tuple[Linear, float]:
        """A classifier of the training part, with the strength that is best on the dev part."""
        train, dev = parts[TRAIN], parts[DEV]
        tried = solver.fit(
            x[train], y[train], int(y[train].max()) + 1, np.ones((1, len(train)), bool), solver.strengths
        )
        best = int(np.argmax((tried.predict(x[dev])[0] == y[dev]).mean(axis=1)))
        return Linear(
            tried.weights[:, best : best + 1], tried.bias[:, best : best + 1], tried.converged
        ), solver.strengths[best]


def protocol_of(name: str, splits: Sequence[Any] | None, folds: int, seed: int, where: str) -> Protocol:
    """The protocol that fits the splits of a file (None: it has no such column); DataError for unknown ones or for a test part alone."""
    there = tuple(
        each for each in (CROSS, TRAIN, DEV, TEST) if each in (splits if splits is not None else (CROSS,))
    )
    if splits is not None and (
        len(there) < len(splits)
        or not (there == (CROSS,) or TRAIN in there)
        or (CROSS in there and len(there) > 1)
    ):
        found = ", ".join(map(str, splits)) or "none"
        raise DataError(
            where,
            f"the split {CROSS} for all rows, or {TRAIN}, {DEV} and {TEST}",
            found,
            "rename the values of the split column",
        )
    wanted = EXPECTED.get(name, () if there == (CROSS,) else (TRAIN, TEST))
    missing = tuple(each for each in wanted if each not in there)
    if TEST not in there:
        title = f"nested {folds}-fold cross-validation" + (f" on {TRAIN}" if there != (CROSS,) else "")
    else:
        title = (
            f"chosen on {DEV}, {TEST}"
            if DEV in there
            else f"chosen by {folds}-fold cross-validation on {TRAIN}, {TEST}"
        )
    return Protocol(title, there, missing, folds, seed)


def check_classes(
    y: np.ndarray, split: np.ndarray, protocol: Protocol, labels: Sequence[Any], where: str
) -> None:
    """DataError for a split with one class only, for classes too small for the folds, and for a tested label that no training text has."""
    for name in protocol.used:
        counts = np.bincount(y[split == name], minlength=len(labels))
        if np.count_nonzero(counts) < 2:
            raise DataError(
                where,
                f"texts of at least two classes in the split {name}",
                f"one class only: {counts.sum():,} texts",
                "give texts of every class",
            )
        if name in (TEST, DEV):
            continue
        small = {
            labels[place]: int(count)
            for place, count in enumerate(counts)
            if count < (1 if DEV in protocol.splits else LEAST)
        }
        if small:
            found = ", ".join(f"{count} of {label!r}" for label, count in small.items())
            raise DataError(
                where,
                f"at least {LEAST} texts of every class to train on in the split {name}",
                found,
                "leave the class out, or give more of it",
            )
        if (
            DEV not in protocol.splits
            and counts.max() * (protocol.folds - 1) // protocol.folds < protocol.folds
        ):
            raise DataError(
                where,
                f"a class with more than {protocol.folds} texts",
                f"{counts.max()} at most",
                "lower evaluate.folds",
            )


def stratified(y: np.ndarray, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(training, test) places of each fold, with about the same share of every class, shuffled by seed."""
    from sklearn.model_selection import StratifiedKFold

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # of a class smaller than the number of folds: it is in every training part, see LEAST
        return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(np.zeros((len(y), 1)), y))

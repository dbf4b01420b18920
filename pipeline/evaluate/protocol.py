"""Protocols of transfer tasks: how a data set is split to train a classifier, tune its penalty and test it.

The protocols are those of SentEval (Conneau and Kiela 2018).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.evaluate.solvers.linear import LinearClassifiers, Solver
from pipeline.log import counted

CROSS_VALIDATION, TRAIN, DEV, TEST = "cv", "train", "dev", "test"
# Splits of the published data sets that are not cross-validated as a whole.
PUBLISHED_SPLITS = {
    "SST2": (TRAIN, DEV, TEST),
    "SST5": (TRAIN, DEV, TEST),
    "TREC": (TRAIN, TEST),
    "MRPC": (TRAIN, TEST),
}
MIN_TEXTS_PER_CLASS = 3  # so that every training part of a nested cross-validation has a text of each class


@dataclass(frozen=True)
class TransferOutcome:
    """Predictions for the n tested texts."""

    rows: np.ndarray
    """(n,) indices of the texts"""
    predicted: np.ndarray
    """(n,) classes"""
    fold: np.ndarray
    """(n,) outer fold of each text; 0 if the test part is fixed"""
    chosen_strengths: tuple[float, ...]
    """strength of the penalty that was chosen for each fold"""
    converged: bool = True
    """False if a solver stopped early"""


@dataclass(frozen=True)
class LabelledVectors:
    """Vectors with their classes."""

    x: np.ndarray
    """(n, d) vectors"""
    y: np.ndarray
    """(n,) classes"""
    split: np.ndarray
    """(n,) split of each row"""


@dataclass(frozen=True)
class TransferProtocol:
    """Split of a data set to train a classifier, tune its penalty and test it."""

    name: str
    """displayed name"""
    splits: tuple[str, ...]
    """splits of the file"""
    missing: tuple[str, ...]
    """splits of the published data set that the file lacks"""
    folds: int
    """number of folds of cross-validation"""
    seed: int
    """seed of the division into folds"""

    @property
    def used_splits(self) -> tuple[str, ...]:
        """Splits whose rows are read; without a test part, cross-validation uses the training part."""
        return self.splits if TEST in self.splits or CROSS_VALIDATION in self.splits else (TRAIN,)

    @property
    def chooses_on_dev(self) -> bool:
        """True if the strength of the penalty is chosen on dev; without a test part, it is not."""
        return DEV in self.splits and TEST in self.splits

    def run(self, solver: Solver, x: np.ndarray, y: np.ndarray, split: np.ndarray) -> TransferOutcome:
        """Train and test on vectors x (n, d), classes y (n,) and the split of each row (n,)."""
        if TEST not in self.splits:
            return self._cross_validate(solver, x, y)
        parts = {name: np.flatnonzero(split == name) for name in (TRAIN, DEV, TEST)}
        model, chosen = (
            self._fit_by_dev(solver, x, y, parts)
            if self.chooses_on_dev
            else self._fit_by_folds(solver, x[parts[TRAIN]], y[parts[TRAIN]])
        )
        return TransferOutcome(
            parts[TEST],
            model.predict(x[parts[TEST]])[0, 0],
            np.zeros(len(parts[TEST]), np.int64),
            (chosen,),
            model.converged,
        )

    def learning_curve(
        self, solver: Solver, rows: LabelledVectors, first: int, seeds: int
    ) -> dict[int, list[float]]:
        """Measure the test accuracies after training on few rows: one per seed, by number of training rows.

        The number of rows doubles from `first` while it is below the number of training rows. Each seed, from
        0 on, draws its own rows. The strength of the penalty is chosen on dev, or by folds of the drawn rows.
        Without a test part, the first outer fold is the test part, and the other folds are the training part.
        """
        parts = self._curve_parts(rows.y, rows.split)
        accuracies: dict[int, list[float]] = {}
        for seed in range(seeds):
            shuffled, count = self._shuffled(parts[TRAIN], seed), first
            while count < len(shuffled):
                train_rows = shuffled[:count]
                model, _ = (
                    self._fit_by_dev(solver, rows.x, rows.y, parts | {TRAIN: train_rows})
                    if self.chooses_on_dev
                    else self._fit_by_folds(solver, rows.x[train_rows], rows.y[train_rows])
                )
                is_right = model.predict(rows.x[parts[TEST]])[0, 0] == rows.y[parts[TEST]]
                accuracies.setdefault(count, []).append(100 * float(is_right.mean()))
                count *= 2
        return accuracies

    def check_curve(self, y: np.ndarray, split: np.ndarray, first: int, seeds: int, where: str) -> None:
        """Check that the first texts of a learning curve are enough to train on, for every seed.

        Raises:
            DataError: these texts have a single class, or too few texts of two classes for the folds.
        """
        train = self._curve_parts(y, split)[TRAIN]
        least = (1, 1) if self.chooses_on_dev else (self.folds, 2)  # texts of the two largest classes
        for seed in range(seeds if first < len(train) else 0):
            counts = np.bincount(y[self._shuffled(train, seed)[:first]], minlength=2)
            largest, second = np.sort(counts)[:-3:-1]
            if largest < least[0] or second < least[1]:
                raise DataError(
                    where,
                    f"{counted(least[0], 'text')} of one class and {least[1]} of another, or more, among the "
                    "first training texts of the learning curve",
                    f"{largest} and {second} among {counted(first, 'text')}",
                    "raise the option curve_first"
                    + ("" if self.chooses_on_dev else ", or lower evaluate.folds"),
                )

    def _curve_parts(self, y: np.ndarray, split: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows of train, dev and test; without a test part, test is the first outer fold."""
        if TEST in self.splits:
            return {name: np.flatnonzero(split == name) for name in (TRAIN, DEV, TEST)}
        train, test = stratified(y, self.folds, self.seed)[0]
        return {TRAIN: train, DEV: np.zeros(0, np.int64), TEST: test}

    def _shuffled(self, rows: np.ndarray, seed: int) -> np.ndarray:
        """Return the rows in the order in which a seed draws them."""
        return np.random.default_rng((self.seed, seed)).permutation(rows)

    def _cross_validate(self, solver: Solver, x: np.ndarray, y: np.ndarray) -> TransferOutcome:
        """Test every outer fold with a classifier that is trained on the other folds.

        The strength of the penalty is chosen by an inner cross-validation on these other folds.
        """
        predicted, fold = np.empty(len(y), np.int64), np.empty(len(y), np.int64)
        chosen, converged = list[float](), True
        for number, (train, test) in enumerate(stratified(y, self.folds, self.seed)):
            model, strength = self._fit_by_folds(solver, x[train], y[train])
            predicted[test], fold[test] = model.predict(x[test])[0, 0], number
            chosen.append(strength)
            converged &= model.converged
        return TransferOutcome(np.arange(len(y)), predicted, fold, tuple(chosen), converged)

    def _fit_by_folds(self, solver: Solver, x: np.ndarray, y: np.ndarray) -> tuple[LinearClassifiers, float]:
        """Fit a classifier on all rows with the strength that has the best mean accuracy over folds.

        If several are equal, the strongest penalty is chosen.
        """
        parts = np.ones((self.folds, len(y)), bool)  # True for the training rows of each fold
        for fold, (_, test) in enumerate(stratified(y, self.folds, self.seed)):
            parts[fold, test] = False
        trials = solver.fit(x, y, int(y.max()) + 1, parts, solver.strengths)
        is_right = trials.predict(x) == y  # (folds, strengths, n)
        accuracy = np.mean([is_right[fold][:, ~part].mean(axis=1) for fold, part in enumerate(parts)], axis=0)
        chosen = solver.strengths[int(np.argmax(accuracy))]
        model = solver.fit(x, y, int(y.max()) + 1, np.ones((1, len(y)), bool), [chosen])
        return replace(model, converged=model.converged and trials.converged), chosen

    def _fit_by_dev(
        self, solver: Solver, x: np.ndarray, y: np.ndarray, parts: dict[str, np.ndarray]
    ) -> tuple[LinearClassifiers, float]:
        """Fit a classifier on the training part with the strength that is best on the dev part."""
        train, dev = parts[TRAIN], parts[DEV]
        all_rows = np.ones((1, len(train)), bool)
        trials = solver.fit(x[train], y[train], int(y[train].max()) + 1, all_rows, solver.strengths)
        best = int(np.argmax((trials.predict(x[dev])[0] == y[dev]).mean(axis=1)))
        model = LinearClassifiers(trials.weights[:, [best]], trials.bias[:, [best]], trials.converged)
        return model, solver.strengths[best]


def protocol_of(name: str, splits: Sequence[Any], folds: int, seed: int, where: str) -> TransferProtocol:
    """Return the protocol for the splits of a file.

    Args:
        name: name of the task.
        splits: distinct values of the split column; "cv" if the file has none.
        folds: number of folds of cross-validation.
        seed: seed of the division into folds.
        where: name of the file, for errors.

    Raises:
        DataError: unknown splits, or a test part alone.
    """
    known_splits = tuple(split for split in (CROSS_VALIDATION, TRAIN, DEV, TEST) if split in splits)
    is_divided = known_splits != (CROSS_VALIDATION,)
    if len(known_splits) < len(splits) or (
        is_divided and (TRAIN not in known_splits or CROSS_VALIDATION in known_splits)
    ):
        raise DataError(
            where,
            f"the split {CROSS_VALIDATION} for all rows, or {TRAIN}, {DEV} and {TEST}",
            ", ".join(map(str, splits)) or "none",
            "rename the values of the split column",
        )
    expected = PUBLISHED_SPLITS.get(name, (TRAIN, TEST) if is_divided else ())
    missing = tuple(split for split in expected if split not in known_splits)
    if TEST not in known_splits:
        title = f"nested {folds}-fold cross-validation" + (f" on {TRAIN}" if is_divided else "")
    elif DEV in known_splits:
        title = f"chosen on {DEV}, {TEST}"
    else:
        title = f"chosen by {folds}-fold cross-validation on {TRAIN}, {TEST}"
    return TransferProtocol(title, known_splits, missing, folds, seed)


def check_classes(
    y: np.ndarray, split: np.ndarray, protocol: TransferProtocol, labels: Sequence[Any], where: str
) -> None:
    """Raise DataError for a split with a single class, or with too few texts of a class to train on."""
    for name in protocol.used_splits:
        counts = np.bincount(y[split == name], minlength=len(labels))
        if np.count_nonzero(counts) < 2:
            raise DataError(
                where,
                f"texts of at least two classes in the split {name}",
                f"a single class: {counts.sum():,} texts",
                "use texts of every class",
            )
        if name in (TEST, DEV):
            continue
        least = 1 if protocol.chooses_on_dev else MIN_TEXTS_PER_CLASS
        small = {label: int(count) for label, count in zip(labels, counts, strict=True) if count < least}
        if small:
            raise DataError(
                where,
                f"at least {counted(least, 'training text')} of every class in the split {name}",
                ", ".join(f"{count} of {label!r}" for label, count in small.items()),
                "leave the class out, or use more texts of it",
            )
        # The training part of each outer fold is divided into `folds` inner folds.
        largest_in_part = counts.max() * (protocol.folds - 1) // protocol.folds
        if not protocol.chooses_on_dev and largest_in_part < protocol.folds:
            raise DataError(
                where,
                f"a class with more than {protocol.folds} texts",
                f"{counts.max()} at most",
                "lower evaluate.folds",
            )


def stratified(y: np.ndarray, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Divide rows at random into folds with similar class proportions: (training, test) indices of each."""
    from sklearn.model_selection import StratifiedKFold

    with warnings.catch_warnings():
        # sklearn warns of a class with fewer texts than folds, but MIN_TEXTS_PER_CLASS texts are enough here
        warnings.simplefilter("ignore", UserWarning)
        return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(np.zeros((len(y), 1)), y))

"""Agreement of predicted classes with gold classes: accuracy, F1 and Matthews' correlation (GLUE, 2019).

This module is separate from its only user, the predictions of a trained model, because it knows nothing of
models.
"""

import numpy as np

POSITIVE = 1  # the class whose F1 is measured: paraphrase in MRPC, duplicate in QQP


def accuracy(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Proportion of correct predictions, in [0, 1]; both arrays are (n,) integers.

    >>> accuracy(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0]))
    0.75
    """
    return float(np.mean(predicted == gold))


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """F1 of class 1: 2 TP / (2 TP + FP + FN) of (n,) integers, in [0, 1]; 0 if the class does not occur.

    >>> round(f1(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0])), 4)
    0.6667
    """
    is_predicted, is_gold = predicted == POSITIVE, gold == POSITIVE
    count = int(np.count_nonzero(is_predicted) + np.count_nonzero(is_gold))
    return float(2 * np.count_nonzero(is_predicted & is_gold) / count) if count else 0.0


def matthews(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Matthews' correlation of (n,) integers, of two or more classes (Gorodkin 2004, R_K), in [-1, 1].

    0 if all predictions, or all gold classes, are equal.

    >>> round(matthews(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0])), 4)
    0.5774
    """
    classes = np.union1d(predicted, gold)
    of_predicted, of_gold = predicted[:, None] == classes, gold[:, None] == classes  # (n, classes)
    centred = [one_hot - one_hot.mean(axis=0) for one_hot in (of_predicted, of_gold)]
    norm = np.linalg.norm(centred[0]) * np.linalg.norm(centred[1])
    return float((centred[0] * centred[1]).sum() / norm) if norm > 0 else 0.0

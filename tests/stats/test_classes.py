"""Agreement of classes, compared with scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pipeline.stats.classes import accuracy, f1, matthews


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_metrics_are_those_of_scikit_learn(classes: int):
    random = np.random.default_rng(classes)
    gold = random.integers(0, classes, 200)
    predicted = np.where(random.random(200) < 0.4, gold, random.integers(0, classes, 200))
    assert accuracy(predicted, gold) == pytest.approx(accuracy_score(gold, predicted), abs=1e-12)
    assert matthews(predicted, gold) == pytest.approx(matthews_corrcoef(gold, predicted), abs=1e-12)
    if classes == 2:
        assert f1(predicted, gold) == pytest.approx(f1_score(gold, predicted), abs=1e-12)


def test_one_class_alone_has_no_correlation_and_no_f1():
    gold, zeros = np.array([0, 1, 1, 0]), np.zeros(4, int)
    assert matthews(zeros, gold) == 0
    assert matthews(gold, zeros) == 0
    assert f1(zeros, gold) == 0
    assert f1(zeros, zeros) == 0

"""The pairs whose ranks differ most between two candidates are shown."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.evaluate import Score
from pipeline.flows.evaluate.evaluate import disagreements
from pipeline.flows.evaluate.scoring import MeasuredTask, ResampledResult
from pipeline.report.evaluation_report import Disagreement
from pipeline.stats.tensors import pack
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.write_once import store_by_content
from tests.flows.evaluate.evaluating import sts_result


class Pairs:
    """A task of 20 pairs."""

    name, kind, digest = "own", "sts", "d"

    def sentences(self) -> list[str]:
        return [f"{side} {row}" for side in ("left", "right") for row in range(20)]

    def score(self, vectors: object) -> Score:
        raise NotImplementedError

    def statistic(self, evidence: object, rows: object) -> float:
        raise NotImplementedError


def shown(store: Store, *predictions: np.ndarray | None) -> tuple[Disagreement, ...]:
    measured = MeasuredTask(Pairs(), tuple(scored(store, prediction) for prediction in predictions))
    return disagreements([measured], ["now", "new"][: len(predictions)], store)


def scored(store: Store, prediction: np.ndarray | None) -> ResampledResult:
    evidence = None
    if prediction is not None:
        tensors = {"prediction": prediction, "gold": np.arange(20) / 4}
        evidence = store_by_content(
            store, pack(tensors, {"kind": "evidence"}), "evidence/rows", ".safetensors", rows=20
        )
    return sts_result(metric="Spearman x100", value=1.0, count=20, evidence=evidence)


def test_pairs_with_the_largest_rank_difference_are_shown(tmp_path: Path):
    store, first = open_store(tmp_path), np.linspace(0.1, 0.9, 20)
    second = first.copy()
    second[[2, 17]] = first[[17, 2]]
    found = shown(store, first, second)
    assert [(task.task, task.first, task.other) for task in found] == [("own", "now", "new")]
    assert [(pair.left, pair.right, pair.gold) for pair in found[0].pairs] == [
        ("left 2", "right 2", "0.5"),
        ("left 17", "right 17", "4.25"),
    ]
    assert found[0].pairs[0].similarities == pytest.approx((first[2], first[17]))
    assert found[0].pairs[0].ranks == pytest.approx((2 / 19, 17 / 19))


def test_candidates_that_agree_and_tasks_without_evidence_are_left_out(tmp_path: Path):
    store, prediction = open_store(tmp_path), np.linspace(0.1, 0.9, 20)
    assert shown(store, prediction, 2 * prediction) == ()
    assert shown(store, prediction, None) == ()
    assert shown(store, prediction) == ()

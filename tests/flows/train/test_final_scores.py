"""The trained model's predictions are measured on dev and test by all metrics of the objective."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.flows.train.plan import open_dev, open_test
from pipeline.flows.train.train import open_training
from pipeline.settings import Job
from pipeline.train.metrics import read_metrics
from tests.flows.train.test_fine_tuning import (
    PAIRS,
    SCORES,
    SIDES,
    logits_of_transformers,
    rank_for,
    small,
    write_rows,
)
from tests.flows.train.training import train, train_on_two_ranks, training_job
from tests.models.pair_folders import pair_folder

Metric = Callable[[np.ndarray, np.ndarray], float]
OF_CLASSES: dict[str, Metric] = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews": matthews_corrcoef,
}
OF_SCORES: dict[str, Metric] = {
    "pearson": lambda gold, predicted: float(pearsonr(gold, predicted).statistic),
    "spearman": lambda gold, predicted: float(spearmanr(gold, predicted).statistic),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_folder(tmp_path_factory.mktemp("start") / "bert")


@pytest.mark.parametrize(
    ("config", "target", "metrics"),
    [(PAIRS, "label", OF_CLASSES), (SCORES, "score", OF_SCORES)],
    ids=["classes", "scores"],
)
def test_all_metrics_of_the_trained_model_in_transformers_are_in_result_report_and_card(
    tmp_path: Path, start: Path, config: Path, target: str, metrics: dict[str, Metric]
):
    write_rows(tmp_path / "test.parquet", 30, 9)
    rank = rank_for(config, tmp_path, start, "run", f"train.test.uri={tmp_path / 'test.parquet'}")
    train(rank)
    found = dict(rank.run.result().metrics)
    assert found.pop("dev") == found[f"dev_{rank.settings.dev.measure}"]
    expected = {}
    for file in ("dev", "test"):
        rows = tmp_path / f"{file}.parquet"
        logits = logits_of_transformers(Path(rank.run.encoder), rows, *SIDES)
        predicted = logits.argmax(1) if target == "label" else logits[:, 0]
        gold = pq.read_table(rows)[target].to_numpy()
        expected |= {f"{file}_{name}": 100 * metric(gold, predicted) for name, metric in metrics.items()}
    assert found == pytest.approx(expected, abs=1e-3)
    assert any(found[f"dev_{name}"] != found[f"test_{name}"] for name in metrics)
    report, card = Path(rank.run.report).read_text(), Path(rank.run.encoder, "README.md").read_text()
    for value in expected.values():
        shown = f"{value:.2f}".replace("-", "−")
        assert shown in report
        assert shown in card


def test_the_weights_that_are_kept_are_measured(tmp_path: Path, start: Path):
    rank = rank_for(PAIRS, tmp_path, start, "run", "train.dev.keep=last", "train.dev.measure=matthews")
    train(rank)
    scores = [line.dev for line in read_metrics(rank.run.store) if line.dev is not None]
    metrics = rank.run.result().metrics
    assert (metrics["dev"], metrics["dev_matthews"]) == (max(scores), scores[-1])


def test_f1_is_left_out_of_three_classes(tmp_path: Path, start: Path):
    test = write_rows(tmp_path / "test.parquet", 30, 9)
    rank = rank_for(
        PAIRS,
        tmp_path,
        start,
        "run",
        "train.data.values.labels=[a, b, c]",
        "train.objective.options.classes=3",
        "train.max_steps=1",
        "train.dev.uri=null",
        f"train.test={test}",
    )
    train(rank)
    metrics = rank.run.result().metrics
    assert [name for name in metrics if name.startswith("test")] == ["test_accuracy", "test_matthews"]
    assert "dev" not in metrics
    assert "start_loss" in metrics


def test_the_test_file_defines_the_training(tmp_path: Path, start: Path):
    test = write_rows(tmp_path / "test.parquet", 30, 9)
    overrides = small(PAIRS, tmp_path, start)
    plain, tested, seeded = (
        open_training(load_settings(Job, PAIRS, (*overrides, *more)))[1]
        for more in ((), (f"train.test.uri={test}",), ("train.seeds=[1, 2]",))
    )
    assert "test" not in plain.definition["train"]
    assert len({plain.name, tested.name}) == 2
    assert seeded.name == plain.name


@pytest.mark.parametrize(
    ("config", "measure", "label", "message"),
    [
        (SCORES, "spearman", 1, "two different scores, found 1 row, all with the same"),
        (PAIRS, "matthews", 1, r"two labels, .*, found b; .*accuracy"),
        (PAIRS, "f1", 0, r"rows with the label b, .*, found a; .*accuracy"),
    ],
)
def test_a_dev_file_on_which_all_predictions_have_one_score_is_refused(
    tmp_path: Path, config: Path, measure: str, label: int, message: str
):
    rows = pq.read_table(write_rows(tmp_path / "all.parquet"))
    one = rows.filter(pc.equal(rows["label"], label)).slice(0, 1)
    pq.write_table(one, tmp_path / "one.parquet")
    overrides = (f"train.dev={{uri: {tmp_path / 'one.parquet'}, measure: {measure}}}",)
    if config == PAIRS:
        overrides = (*overrides, "train.data.values.labels=[a, b]")
    with pytest.raises(DataError, match=message):
        open_dev(load_settings(Job, config, overrides).train)


def test_a_test_file_without_different_scores_is_refused(tmp_path: Path):
    pq.write_table(pq.read_table(write_rows(tmp_path / "all.parquet")).slice(0, 1), tmp_path / "one.parquet")
    job = load_settings(Job, SCORES, (f"train.test.uri={tmp_path / 'one.parquet'}",))
    with pytest.raises(DataError, match=r"one.parquet: expected at least two different scores"):
        open_test(job.train)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_measure_what_transformers_computes(tmp_path: Path, start: Path, strategy: str):
    write_rows(tmp_path / "test.parquet", 31, 9)
    rank = rank_for(
        PAIRS,
        tmp_path,
        start,
        "run",
        f"train.test.uri={tmp_path / 'test.parquet'}",
        "train.workers=2",
        f"train.strategy={strategy}",
    )
    train_on_two_ranks(rank, tmp_path)
    logits = logits_of_transformers(Path(rank.run.encoder), tmp_path / "test.parquet", *SIDES)
    gold = pq.read_table(tmp_path / "test.parquet")["label"].to_numpy()
    expected = {f"test_{name}": 100 * metric(gold, logits.argmax(1)) for name, metric in OF_CLASSES.items()}
    found = rank.run.result().metrics
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-3)


def test_a_test_file_of_an_objective_without_predictions_is_refused(tmp_path: Path, encoder: Path):
    job = training_job(tmp_path, encoder, "train.test.uri=sts.parquet")
    with pytest.raises(
        ConfigError, match=r"train.test.uri: expected a first objective .*, found simcse; .*manta evaluate"
    ):
        open_test(job.train)

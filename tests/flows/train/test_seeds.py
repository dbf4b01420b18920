"""Trainings with several seeds: each in a folder of its own, and the median and the best of their scores."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.flows.train.run_folder import RunFolder
from pipeline.flows.train.train import job_of_seed, open_training, train_seeds
from pipeline.log import Stages
from pipeline.settings import Job
from tests.conftest import CommandResult
from tests.flows.train.test_fine_tuning import SCORES, small, write_rows
from tests.flows.train.training import rank_of_config, train
from tests.models.pair_folders import pair_folder

SEEDS = (4, 1, 7)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Complete a training for each seed in this process, without Ray; return their common overrides."""
    folder = tmp_path_factory.mktemp("seeds")
    start, test = pair_folder(folder / "bert"), write_rows(folder / "test.parquet", 30, 9)
    settings = (*small(SCORES, folder, start), "train.max_steps=6", f"train.test.uri={test}")
    for seed in SEEDS:
        seeded = (f"train.seed={seed}", f"train.order.seed={seed}")
        train(rank_of_config(SCORES, folder, f"run-seed-{seed}", *settings, *seeded))
    return (*settings, f"train.root={folder / 'trainings'}", "train.name=run")


def stored_metrics(run: RunFolder) -> dict[str, float]:
    found: dict[str, float] = json.loads(run.store.read("result.json"))["figures"]
    return found


def test_scores_are_summarized_by_the_median_and_by_the_seed_that_is_best_on_dev(arguments: tuple[str, ...]):
    job = load_settings(Job, SCORES, (*arguments, f"train.seeds={list(SEEDS)}"))
    trained = train_seeds(job, Stages())
    assert [each.status for each in trained.trainings.values()] == ["unchanged"] * 3
    metrics = [stored_metrics(each.run) for each in trained.trainings.values()]
    assert len({each["dev"] for each in metrics}) > 1
    best = SEEDS[int(np.argmax([each["dev"] for each in metrics]))]
    assert trained.best == best
    scores = trained.scores()
    assert set(scores) == {
        "dev",
        *(f"{file}_{name}" for file in ("dev", "test") for name in ("pearson", "spearman")),
    }
    for name, score in scores.items():
        values = [each[name] for each in metrics]
        assert score.by_seed == dict(zip(SEEDS, values, strict=True))
        assert score.median == pytest.approx(np.median(values))
        assert score.best == score.by_seed[best]


def test_the_command_answers_with_a_table_and_with_json(
    arguments: tuple[str, ...], manta: Callable[..., CommandResult]
):
    given = ("train", "--config", str(SCORES), *arguments, f"train.seeds={list(SEEDS)}")
    answer = json.loads(manta(*given, "--json").out)
    assert answer["status"] == "unchanged"
    assert [each["seed"] for each in answer["trainings"]] == list(SEEDS)
    assert [each["name"] for each in answer["trainings"]] == [f"run-seed-{seed}" for seed in SEEDS]
    shown = manta(*given).out
    score = answer["scores"]["test_pearson"]
    values = [score["median"], score["best"], *(score["by_seed"][str(seed)] for seed in SEEDS)]
    (line,) = (line for line in shown.splitlines() if line.startswith("test pearson"))
    assert line.split()[2:] == [f"{value:.2f}" for value in values]
    assert f"best is seed {answer['best_seed']}" in shown


def test_a_single_training_answers_with_the_metrics_on_dev_and_test(
    arguments: tuple[str, ...], manta: Callable[..., CommandResult]
):
    own = ("train.name=run-seed-4", "train.seed=4", "train.order.seed=4")
    given = ("train", "--config", str(SCORES), *arguments, *own)
    metrics = json.loads(manta(*given, "--json").out)["figures"]
    (line,) = (line for line in manta(*given).out.splitlines() if line.startswith("pearson"))
    assert line.split()[1:] == [f"{metrics[f'{file}_pearson']:.2f}" for file in ("dev", "test")]


def test_each_seed_has_a_training_of_its_own_even_without_a_name(arguments: tuple[str, ...]):
    job = load_settings(Job, SCORES, (*arguments, "train.seeds=[1, 2]", "train.name="))
    jobs = [job_of_seed(job, seed) for seed in job.train.seeds]
    assert [(each.train.seed, each.train.order.seed, each.train.seeds) for each in jobs] == [
        (1, 1, ()),
        (2, 2, ()),
    ]
    assert len({open_training(each)[1].name for each in jobs}) == 2


def test_repeated_seeds_are_refused():
    with pytest.raises(ConfigError, match=r"train.seeds: expected seeds that differ, not 1, 2, 1"):
        load_settings(Job, None, ("train.seeds=[1, 2, 1]",))

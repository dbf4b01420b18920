"""The shipped settings of trainings can be run as their comments say."""

from pathlib import Path

import pytest

from pipeline.config import load_settings
from pipeline.flows.train.plan import check_settings
from pipeline.objectives.build import data_requirements
from pipeline.settings import Job
from tests.jobs.configs import CONFIGS, arguments_in_comment

TRAIN = CONFIGS / "train"
FILES = sorted(TRAIN.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_config_loads_and_its_objectives_accept_their_options(file: Path):
    job = load_settings(Job, file)
    columns, _, _ = data_requirements(job.train)
    assert columns
    assert job.train.data


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_lengths_limit_the_training_texts_but_not_the_saved_encoder(file: Path):
    job = load_settings(Job, file)
    assert job.encoder.max_length is None
    assert all(term.options.get("limit") is None for term in job.train.objective)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_command_in_the_comment_runs_the_config(file: Path):
    check_settings(load_settings(Job, file, arguments_in_comment(file, "train")).train)


@pytest.mark.parametrize("name", ["simcse-unsupervised", "simcse-supervised", "simcse-masked-lm"])
def test_simcse_trains_a_new_layer_over_cls_instead_of_the_pooler(name: str):
    job = load_settings(Job, TRAIN / f"{name}.yaml")
    assert (job.encoder.pooling, job.train.objective[0].options["head"]) == ("cls", "cls_mlp")


# Settings of no paper, and of two methods whose batches are successive sentences, which are never sorted.
NOT_RANDOM = ("mined-negatives", "quickthoughts", "quickthoughts-gru")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_batches_of_published_methods_are_random(file: Path):
    order = load_settings(Job, file).train.order
    assert (order.bucket_batches == 1) == (file.stem not in NOT_RANDOM)


def test_optiprompt_has_the_settings_of_its_comparison():
    train = load_settings(Job, TRAIN / "optiprompt.yaml").train
    assert (train.order.batch_rows, train.optimizer.learning_rate, train.epochs) == (256, 3e-5, 5)
    assert train.dev.steps == 1_000


@pytest.mark.parametrize(("name", "nonlinear"), [("infersent", False), ("infersent-convnet", True)])
def test_infersent_classifies_by_a_hidden_layer_of_512_with_an_activation_for_convolutions_only(
    name: str, nonlinear: bool
):
    options = load_settings(Job, TRAIN / f"{name}.yaml").train.objective[0].options
    assert options["features"] == ["u", "v", "|u-v|", "u*v"]
    assert (options["hidden"], options["nonlinear"]) == (512, nonlinear)

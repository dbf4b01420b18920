"""The log likelihood of masked words on dev is that of transformers, on any number of ranks."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForMaskedLM

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.flows.train.plan import check_settings
from pipeline.objectives import TrainedModel
from pipeline.objectives.build import Sum, Term
from pipeline.objectives.masked_lm import MaskedLanguageModelling
from pipeline.objectives.simcse import SimCSE
from pipeline.settings import Job
from pipeline.settings.training import TrainSettings
from pipeline.train.dev import MaskedTexts
from tests.models.folders import folder_of_language_model
from tests.objectives.tiny import texts
from tests.train.dev_ranks import encoder_of, masked_work

DEV = MaskedTexts("dev", tuple(f"a man reads {text} on the grass" for text in texts(150)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_language_model(tmp_path_factory.mktemp("encoders") / "bert")


@pytest.fixture
def objective(folder: Path) -> MaskedLanguageModelling:
    return MaskedLanguageModelling(encoder_of(folder))


def score(dev: MaskedTexts, objective: MaskedLanguageModelling) -> float:
    return dev.score(objective.trained_model(), objective)


def test_it_is_the_mean_log_probability_that_transformers_gives_the_masked_words(
    folder: Path, objective: MaskedLanguageModelling
):
    tokens = objective.encoder.folder.tokenizer()(list(DEV.texts))
    masked = objective.mask(tokens, np.random.default_rng(0))
    assert masked.kept is not None
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    found = []
    for row in range(len(tokens)):
        text, original = masked.of_rows(np.array([row])), tokens.of_rows(np.array([row]))
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(text.ids).long()[None]).logits[0]
        chosen = np.flatnonzero(text.kept)
        words = torch.from_numpy(original.ids[chosen]).long()
        found += logits[chosen].log_softmax(-1).gather(1, words[:, None])[:, 0].tolist()
    assert len(found) == masked.kept.sum() > 100
    assert score(DEV, objective) == pytest.approx(np.mean(found), rel=1e-5)


def test_it_is_the_same_each_time_and_leaves_the_training_as_it_was(objective: MaskedLanguageModelling):
    objective.train()
    state = torch.get_rng_state()
    assert score(DEV, objective) == score(DEV, objective)
    assert torch.equal(torch.get_rng_state(), state)
    assert objective.encoder.training
    assert all(parameter.grad is None for parameter in objective.parameters())


def test_a_sum_is_measured_by_its_first_objective(folder: Path, objective: MaskedLanguageModelling):
    expected, encoder = score(DEV, objective), encoder_of(folder)
    terms = [
        Term("masked_lm", 0.5, MaskedLanguageModelling(encoder)),
        Term("simcse", 1.0, SimCSE(encoder)),
    ]
    total = Sum(encoder, terms)
    assert DEV.metrics(TrainedModel(encoder), total).score == expected


@pytest.mark.slow
def test_two_ranks_measure_what_one_measures(
    folder: Path, objective: MaskedLanguageModelling, tmp_path: Path
):
    torch.multiprocessing.spawn(masked_work, (2, tmp_path, folder, DEV.texts), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first == second == pytest.approx(score(DEV, objective), rel=1e-6)


def test_texts_without_a_masked_word_and_diverged_weights_are_refused(objective: MaskedLanguageModelling):
    with pytest.raises(DataError, match="expected texts with words to mask, found 1 without"):
        score(MaskedTexts("dev", ("",)), objective)
    with torch.no_grad():
        objective.head.bias.fill_(float("nan"))
    with pytest.raises(DataError, match=r"^dev: expected finite values, .* language model; the weights have"):
        score(DEV, objective)


def test_the_texts_are_those_of_the_column_that_the_objective_trains_on(tmp_path: Path):
    pq.write_table(pa.table({"text": ["a", "b"], "body": ["c", "d"]}), tmp_path / "dev.parquet")

    def opened(options: dict[str, str], **dev: object) -> tuple[str, ...]:
        settings = {
            "objective": {"name": "masked_lm", "options": options},
            "dev": {"uri": str(tmp_path / "dev.parquet"), "measure": "log_likelihood", **dev},
        }
        return MaskedTexts.open(TrainSettings.model_validate(settings)).texts

    assert opened({}) == ("a", "b")
    assert opened({}, columns={"text": "body"}) == ("c", "d")
    assert opened({"role": "anchor"}, columns={"anchor": "body"}) == ("c", "d")
    with pytest.raises(DataError, match="anchor"):
        opened({"role": "anchor"})


def test_other_objectives_have_no_log_likelihood():
    job = load_settings(
        Job, None, ("train.data=a.parquet", "train.objective=simcse", "train.dev.measure=log_likelihood")
    )
    with pytest.raises(ConfigError, match=r"simcse has spearman, found a score of masked_lm"):
        check_settings(job.train)

"""Candidates that are compared by their words at the mask: scores and words are right and stored once."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from pipeline.device import resolve
from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.report import store_evaluation
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.mask_words import MaskReader
from tests.flows.evaluate.evaluating import job, write_pairs
from tests.models.folders import folder_of_language_model, save_folder

pytestmark = pytest.mark.usefixtures("cluster")
TEMPLATE = 'encoder.template="[X]" means [MASK].'
SETTINGS = ("evaluate.names=[STSB-dev]", "evaluate.mask_words.top_k=7", "evaluate.mask_words.sentences=3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    folder_of_language_model(folder / "encoder")
    write_pairs(folder / "tasks/sts/STSB-dev.parquet", 40)
    return folder


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.sum(left * right, axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def test_correlations_and_words_equal_those_of_the_reader(folder: Path):
    settings = job(folder, folder / "encoder", TEMPLATE, *SETTINGS)
    evaluation = evaluate(settings, Stages(), mask_words=True)
    (candidate,) = evaluation.mask_words.candidates
    rows = pq.read_table(folder / "tasks/sts/STSB-dev.parquet")
    left, right = rows["sentence1"].to_pylist(), rows["sentence2"].to_pylist()
    reader = MaskReader(open_folder(settings.encoder), resolve("cpu"), 7)
    first, second = reader.read(left), reader.read(right)
    assert set(candidate.words.correlations) == {"states", "denoised_states", "words", "denoised_words"}
    for name, found in candidate.words.correlations.items():
        similarities = cosines(getattr(first, name), getattr(second, name))
        assert found == pytest.approx(100 * spearmanr(similarities, rows["score"]).statistic, abs=0.05), name
    distinct = list(dict.fromkeys((*left, *right)))
    assert [each.text for each in candidate.words.texts] == distinct[:3]
    assert candidate.words.texts[0].words == tuple(reader.spellings(first.ids[0, :5]))
    assert candidate.words.texts[0].denoised == tuple(reader.spellings(first.denoised_ids[0, :5]))
    page = Path(store_evaluation(evaluation, "now").report.removeprefix("file://")).read_text()
    assert "de-noised" in page
    assert "Template: &#34;[X]&#34; means [MASK]." in page
    again = evaluate(settings, Stages(), mask_words=True)
    assert (again.id, again.mask_words) == (evaluation.id, evaluation.mask_words)
    assert len(list((folder / "root/evaluations/mask_words").iterdir())) == 1
    assert evaluate(settings, Stages()).id != evaluation.id


def test_candidates_without_a_template_are_left_out(folder: Path):
    candidates = (
        "evaluate.candidates=[{name: mean, encoder: {path: ENCODER}}, "
        '{name: mask, encoder: {path: ENCODER, template: "[X] is [MASK]"}}]'
    ).replace("ENCODER", str(folder / "encoder"))
    evaluation = evaluate(job(folder, folder / "encoder", candidates, *SETTINGS), Stages(), mask_words=True)
    assert [each.name for each in evaluation.mask_words.candidates] == ["mask"]
    with pytest.raises(ConfigError, match=r"none among encoder; set encoder\.template"):
        evaluate(job(folder, folder / "encoder", *SETTINGS), Stages(), mask_words=True)


def test_texts_need_no_pairs(folder: Path, tmp_path: Path):
    texts = 'evaluate.mask_words.texts=["two dogs", "a cat"]'
    settings = job(folder, folder / "encoder", TEMPLATE, "evaluate.tasks=null", texts, *SETTINGS[1:])
    report = evaluate(settings, Stages(), mask_words=True).mask_words
    (candidate,) = report.candidates
    assert (report.pairs, candidate.words.correlations) == (0, {})
    assert [each.text for each in candidate.words.texts] == ["two dogs", "a cat"]
    with pytest.raises(DataError, match=r"evaluate\.tasks is not set"):
        evaluate(job(folder, folder / "encoder", TEMPLATE, "evaluate.tasks=null"), Stages(), mask_words=True)


def test_an_encoder_without_a_language_head_is_refused(folder: Path, tmp_path: Path):
    bare = save_folder(tmp_path / "bare", "bert")
    with pytest.raises(ModelError, match="without a language model head"):
        evaluate(job(folder, bare, TEMPLATE, *SETTINGS), Stages(), mask_words=True)

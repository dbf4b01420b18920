"""Transforms that an evaluation fits for each task equal those of a direct fit on the same sentences."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.tasks import select_tasks
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.fits import target_texts
from pipeline.flows.evaluate.report import StoredEvaluation, store_evaluation
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.flows.conftest import sentences
from tests.flows.evaluate.evaluating import arguments, oracle, write_pairs

K = 6
WHITENING = f"whiten: {{k: {K}}}"


def texts_of(*files: Path) -> list[str]:
    tables = [pq.read_table(file) for file in files]
    return sorted(
        {text for table in tables for side in ("sentence1", "sentence2") for text in table[side].to_pylist()}
    )


def whitening(encoder: Path, texts: list[str]) -> np.ndarray:
    """(K, d) matrix and (d,) mean of Su et al. 2021, section 3, by numpy in float64."""
    x = (
        load_encoder(EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu")
        .encode(texts)
        .astype(np.float64)
    )
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    matrix = (vectors[:, ::-1] / np.sqrt(values[::-1]))[:, :K]
    return partial(_apply, x.mean(axis=0), matrix)


def _apply(mean: np.ndarray, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) - mean) @ matrix


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """STS12 alone, STSB-dev beside its train split, and a file of other texts."""
    write_pairs(tmp_path / "tasks/sts/STS12.parquet", 60, seed=1)
    write_pairs(tmp_path / "tasks/sts/STSB-dev.parquet", 40, seed=2)
    write_pairs(tmp_path / "tasks/sts/STSB-train.parquet", 50, seed=3)
    pq.write_table(pa.table({"text": sentences(80, seed=9)}), tmp_path / "texts.parquet")
    return tmp_path


def job_of(folder: Path, encoder: Path, *candidates: str) -> Job:
    named = "evaluate.names=[STS12, STSB-dev]"
    return load_settings(
        Job, None, (*arguments(folder, encoder), named, f"evaluate.candidates=[{', '.join(candidates)}]")
    )


def evaluated(job: Job) -> StoredEvaluation:
    return store_evaluation(evaluate(job, Stages()), "today")


def values(stored: StoredEvaluation) -> dict[tuple[str, str], float]:
    return {(each["task"], each["candidate"]): each["value"] for each in stored.facts["results"]}


def test_a_transform_is_fitted_on_all_splits_of_each_task_or_on_a_file(folder: Path, encoder: Path):
    texts = folder / "texts.parquet"
    stored = evaluated(
        job_of(
            folder,
            encoder,
            "{name: raw}",
            f"{{name: target, fit: {{{WHITENING}}}}}",
            f"{{name: file, fit: {{on: {texts}, {WHITENING}}}}}",
        )
    )
    sts = folder / "tasks/sts"
    splits = {
        "STS12": [sts / "STS12.parquet"],
        "STSB-dev": [sts / "STSB-dev.parquet", sts / "STSB-train.parquet"],
    }
    settings, found = EncoderSettings(path=str(encoder)), values(stored)
    for name, files in splits.items():
        of_target = whitening(encoder, texts_of(*files))
        of_file = whitening(encoder, pq.read_table(texts)["text"].to_pylist())
        assert found[name, "raw"] == pytest.approx(oracle(files[0], settings), abs=0.02)
        assert found[name, "target"] == pytest.approx(oracle(files[0], settings, of_target), abs=0.02)
        assert found[name, "file"] == pytest.approx(oracle(files[0], settings, of_file), abs=0.02)
        assert len({round(found[name, each], 3) for each in ("raw", "target", "file")}) == 3
    facts = {(each["task"], each["candidate"]): each["facts"] for each in stored.facts["results"]}
    count = len(texts_of(*splits["STSB-dev"]))
    expected = f"whitening to {K} components, fitted on {count} sentences of the task's sentences"
    assert facts["STSB-dev", "target"]["transform"] == expected
    assert "transform" not in facts["STSB-dev", "raw"]
    assert "whitening, fitted for each task on the target" in Path(stored.report).read_text()


def test_a_second_run_reuses_the_fits_until_a_split_changes(folder: Path, encoder: Path):
    job = job_of(folder, encoder, f"{{name: target, fit: {{{WHITENING}}}}}")
    first = evaluated(job)
    fits = {file: file.stat().st_mtime_ns for file in (folder / "root/evaluations/fits").rglob("*.json")}
    assert len(fits) == 2
    assert values(evaluated(job)) == values(first)
    assert {file: file.stat().st_mtime_ns for file in fits} == fits
    write_pairs(folder / "tasks/sts/STSB-train.parquet", 50, seed=4)
    changed = values(evaluated(job))
    assert changed["STS12", "target"] == values(first)["STS12", "target"]
    assert changed["STSB-dev", "target"] != values(first)["STSB-dev", "target"]


@pytest.mark.slow
def test_a_flow_is_fitted_with_its_own_settings(folder: Path, encoder: Path):
    flow = "{whiten: {transform: flow, flow: {epochs: 2, batch_rows: 16, depth: 1, width: 8}}}"
    job = job_of(folder, encoder, "{name: raw}", f"{{name: flow, fit: {flow}}}")
    stored = evaluated(job)
    found = values(stored)
    assert abs(found["STS12", "flow"] - found["STS12", "raw"]) > 1e-3
    warnings = next(each for each in stored.facts["results"] if each["candidate"] == "flow")["warnings"]
    assert any("too little to be fitted on" in warning for warning in warnings)
    for file in (folder / "root/evaluations/fits").rglob("*.json"):
        file.unlink()
    for file in (folder / "root/evaluations/results").rglob("*.json"):
        file.unlink()
    assert values(evaluated(job)) == found, "a flow depends on seed and sentences alone"


def test_splits_in_a_column_are_all_in_the_target(tmp_path: Path):
    columns = {
        "sentence1": ["a", "b", "c", "d"],
        "sentence2": ["e", None, "f", "g"],
        "score": [1.0, 2.0, None, 4.0],
        "split": ["train", "train", "test", "test"],
    }
    pq.write_table(pa.table(columns), tmp_path / "own.parquet")
    job = load_settings(
        Job,
        None,
        (f"evaluate.own=[{{kind: sts, uri: {tmp_path}/own.parquet, options: {{split: train}}}}]",),
    )
    (task,) = select_tasks(job.evaluate).tasks
    assert sorted(target_texts(task)) == [" ", *"abcdefg"]


def test_a_split_with_other_columns_is_refused(folder: Path, encoder: Path):
    pq.write_table(pa.table({"text": ["a"]}), folder / "tasks/sts/STSB-train.parquet")
    with pytest.raises(DataError, match=r"STSB-train.parquet: expected the columns of .*STSB-dev.parquet"):
        evaluate(job_of(folder, encoder, "{fit: {}}"), Stages())


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("{fit: {whiten: {k: dev}}}", "whiten.k: expected a number"),
        ("{fit: {whiten: {transform: components, remove: dev}}}", "whiten.remove: expected a number"),
        ("{fit: {whiten: {transform: whitening+flow+components}}}", "flow as the last step"),
        ("{fit: {}, transform: file.safetensors}", "transform or fit, not both"),
        ("{fit: {}, release: 1}", "a release or an encoder, not both"),
        ("{fit: {}, tfidf: texts.parquet}", "tfidf alone"),
    ],
)
def test_invalid_fits_are_refused(folder: Path, encoder: Path, candidate: str, message: str):
    with pytest.raises(ConfigError, match=message):
        evaluate(job_of(folder, encoder, candidate), Stages())

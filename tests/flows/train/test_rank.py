"""Trainings of one rank, in this process: the saved encoder, resuming, scores on dev, and invalid numbers."""

import shutil
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from pipeline.errors import ConfigError, DataError
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.lease import lease
from pipeline.text.rows.batches import RankSlice
from pipeline.train.metrics import read_metrics
from tests.flows.conftest import sentences
from tests.flows.train.training import (
    Stop,
    assert_equal_weights,
    assert_resumes_to_the_same_bits,
    losses,
    rank_of,
    train,
    train_on_two_ranks,
    write_sentences,
    write_sts,
)
from tests.train.topics import write_nli


def test_the_trained_encoder_loads_in_sentence_transformers(tmp_path: Path, encoder: Path):
    rank = rank_of(tmp_path, encoder)
    train(rank)
    result = rank.run.result()
    assert result is not None
    trained = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings(), "cpu")
    assert (result.steps, result.space_id) == (12, trained.space_id)
    assert trained.space_id != open_folder(EncoderSettings(path=str(encoder))).space_id
    assert "# run" in Path(rank.run.encoder, "README.md").read_text()
    assert Path(rank.run.report).read_text().startswith("<!doctype html>")
    texts = sentences(20, seed=3)
    library = SentenceTransformer(rank.run.encoder, device="cpu")
    np.testing.assert_allclose(trained.encode(texts), library.encode(texts), atol=1e-5)


def test_a_stopped_training_resumes_to_the_same_bits(tmp_path: Path, encoder: Path):
    """The stops are before the first checkpoint, after it and after the second one."""
    whole, parts = rank_of(tmp_path, encoder), rank_of(tmp_path, encoder, "train.name=parts")
    assert_resumes_to_the_same_bits(whole, parts, 3, 6, 11)
    assert_equal_weights(Path(parts.run.encoder), Path(whole.run.encoder))


def test_a_rank_that_does_not_see_the_drivers_folder_takes_no_step(tmp_path: Path, encoder: Path):
    rank = rank_of(tmp_path, encoder)
    steps: list[int] = []
    with lease(rank.run.store, "leases") as held:
        seen = replace(rank, lease=held)
        shutil.move(rank.run.store.uri, tmp_path / "another disk")
        with pytest.raises(ConfigError, match=r"train.root .*every worker see.*s3://bucket/trainings"):
            seen(RankSlice(), "cpu", lambda step, _: steps.append(step))
    assert not steps
    assert not Path(rank.run.store.uri).exists()


def test_a_file_that_is_replaced_during_training_ends_it(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    rank = rank_of(tmp_path, encoder, "train.data=sentences.parquet")
    monkeypatch.chdir("/")  # a worker has another working directory
    file = tmp_path / "sentences.parquet"

    def replace_file(step: int, _: str) -> None:
        if step == 5:
            write_sentences(file, seed=1)  # as many rows

    with pytest.raises(DataError, match=rf"{file}: expected the file with which training began"):
        rank(RankSlice(), "cpu", replace_file)
    assert rank.run.result() is None
    names = sorted(path.name for path in Path(tmp_path, "trainings/run/checkpoints").glob("*.json"))
    assert [name[:13] for name in names] == ["step-00000004"]


def test_a_deleted_encoder_is_saved_again(tmp_path: Path, encoder: Path):
    rank = rank_of(tmp_path, encoder)
    train(rank)
    result = rank.run.result()
    shutil.move(rank.run.encoder, tmp_path / "before")
    assert rank.run.result() is None
    train(rank)
    assert_equal_weights(Path(rank.run.encoder), tmp_path / "before")
    assert rank.run.result() == result


def dev_of(folder: Path, *more: str) -> tuple[str, ...]:
    """Return overrides that measure the score on dev every three steps, and `more`."""
    return f"train.dev.uri={write_sts(folder / 'sts.parquet')}", "train.dev.steps=3", *more


def test_the_best_weights_on_dev_are_saved_by_a_resumed_training_too(tmp_path: Path, encoder: Path):
    whole, parts = (
        rank_of(tmp_path, encoder, *dev_of(tmp_path, f"train.name={name}")) for name in ("whole", "parts")
    )
    train(whole)
    for stop in (2, 5, 9, 11):
        with pytest.raises(Stop):
            train(parts, stop)
    train(parts)
    expected, found = whole.run.result(), parts.run.result()
    assert expected is not None
    assert found is not None
    assert (found.best_step, found.metrics, found.space_id) == (
        expected.best_step,
        expected.metrics,
        expected.space_id,
    )
    by_step = [
        {line.step: line.dev_geometry for line in read_metrics(rank.run.store) if line.dev is not None}
        for rank in (whole, parts)
    ]
    assert by_step[0] == by_step[1]
    assert list(by_step[0]) == [0, 3, 6, 9, 12]
    assert all(set(geometry) == {"alignment", "uniformity"} for geometry in by_step[0].values())
    assert whole.dev is not None
    saved = load_encoder(EncoderSettings(path=whole.run.encoder), EncodeSettings(), "cpu")
    left, right = saved.encode(whole.dev.left), saved.encode(whole.dev.right)
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert 100 * spearmanr(cosines, whole.dev.gold)[0] == pytest.approx(expected.metrics["dev"], abs=0.01)


def test_a_training_without_improvement_ends_early_and_saves_the_initial_encoder(
    tmp_path: Path, encoder: Path
):
    rank = rank_of(
        tmp_path, encoder, *dev_of(tmp_path, "train.optimizer.learning_rate=1.0e-30", "train.dev.patience=2")
    )
    train(rank)
    result = rank.run.result()
    assert result is not None
    assert (result.best_step, result.steps) == (0, 6)  # after two measurements without improvement
    assert_equal_weights(Path(rank.run.encoder), encoder)


def test_other_weights_do_not_replace_the_best_ones_if_their_checkpoint_is_lost(
    tmp_path: Path, encoder: Path
):
    rank = rank_of(tmp_path, encoder, *dev_of(tmp_path, "train.optimizer.learning_rate=1.0e-30"))
    with pytest.raises(Stop):
        train(rank, 11)
    (best,) = (tmp_path / "trainings/run/checkpoints").glob("step-00000000-*.pt")
    best.unlink()
    with pytest.raises(DataError, match=r"step 0: expected the weights with the best score on dev, .*delete"):
        train(rank)
    assert rank.run.result() is None


def test_the_last_weights_are_saved_if_configured_and_measuring_does_not_change_them(
    tmp_path: Path, encoder: Path
):
    measured = rank_of(tmp_path, encoder, *dev_of(tmp_path, "train.dev.keep=last"))
    unmeasured = rank_of(tmp_path, encoder, "train.name=unmeasured")
    train(measured)
    train(unmeasured)
    assert_equal_weights(Path(measured.run.encoder), Path(unmeasured.run.encoder))


def uniformity(vectors: np.ndarray) -> float:
    """Compute the uniformity of sentence vectors (Wang & Isola 2020, eq. 5) over all pairs."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float(np.log(np.exp(-2 * pdist(unit, "sqeuclidean")).mean()))


def test_without_dev_start_and_end_are_measured_on_the_same_rows(tmp_path: Path, encoder: Path):
    rank = rank_of(tmp_path, encoder, "train.max_steps=6")
    train(rank)
    lines, result = read_metrics(rank.run.store), rank.run.result()
    assert [line.step for line in lines if line.same_rows] == [0, 6]
    rows = [batch.table["text"].to_pylist() for batch in islice(rank.plan.order.batches(6), 6)]
    for index, path in ((0, str(encoder)), (-1, rank.run.encoder)):
        saved = load_encoder(EncoderSettings(path=path), EncodeSettings(), "cpu")
        expected = np.mean([uniformity(saved.encode(texts)) for texts in rows])
        assert lines[index].same_rows["uniformity"] == pytest.approx(expected, abs=1e-4)
    assert result is not None
    assert result.metrics["same_rows"] == 48
    assert result.metrics["end_loss"] < result.metrics["start_loss"]
    report = Path(rank.run.report).read_text()
    assert "Means over the same 48 rows before the first step and after the last" in report
    assert "the training had not seen them" in report


def test_batches_without_vectors_are_left_out_of_the_metrics_of_the_same_rows(tmp_path: Path, encoder: Path):
    """Masked words have a loss and no vectors, so the uniformity is that of the other task's batches."""
    file = write_sentences(tmp_path / "sentences.parquet")
    rank = rank_of(
        tmp_path,
        encoder,
        f"train.data=[{{uri: {file}, name: pairs}}, {{uri: {file}, name: words}}]",
        "train.objective=[{name: simcse, source: pairs}, {name: masked_lm, source: words}]",
        "train.max_steps=4",
    )
    train(rank)
    batches = list(islice(rank.plan.order.batches(4), 4))
    assert Counter(batch.source for batch in batches) == {"pairs": 2, "words": 2}
    rows = [batch.table["text"].to_pylist() for batch in batches if batch.source == "pairs"]
    saved = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings(), "cpu")
    metrics = rank.run.result().metrics
    expected = np.mean([uniformity(saved.encode(texts)) for texts in rows])
    assert metrics["end_uniformity"] == pytest.approx(expected, abs=1e-4)
    assert metrics["same_rows"] == 32


def test_a_resumed_training_has_the_metrics_of_the_same_rows(tmp_path: Path, encoder: Path):
    whole, parts = (rank_of(tmp_path, encoder, f"train.name={name}") for name in ("whole", "parts"))
    train(whole)
    for stop in (2, 11):
        with pytest.raises(Stop):
            train(parts, stop)
    train(parts)
    expected, found = whole.run.result(), parts.run.result()
    assert expected is not None
    assert found is not None
    assert found.metrics == expected.metrics
    assert set(found.metrics) >= {"start_loss", "end_loss", "start_retrieval", "end_uniformity"}


def test_a_loss_that_depends_on_earlier_steps_is_not_compared(tmp_path: Path, encoder: Path):
    pairs, cert = tmp_path / "pairs.parquet", "train.objective={name: cert, options: {queue: 64}}"
    pq.write_table(pa.table({"anchor": sentences(40, 1), "positive": sentences(40, 2)}), pairs)
    rank = rank_of(tmp_path, encoder, f"train.data={pairs}", cert)
    train(rank)
    result = rank.run.result()
    assert result is not None
    assert "start_loss" not in result.metrics
    assert 0 <= result.metrics["start_retrieval"] <= 100


@pytest.mark.parametrize("scheme", ["file", "s3"])
def test_a_training_runs_at_any_uri(
    tmp_path: Path, encoder: Path, s3: str, scheme: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    root = (tmp_path / "trainings").as_uri() if scheme == "file" else f"{s3}/{tmp_path.name}"
    rank = rank_of(tmp_path, encoder, f"train.root={root}", "train.max_steps=5")
    with pytest.raises(Stop):
        train(rank, 4)
    train(rank)
    result = rank.run.result()
    assert result is not None
    assert open_folder(EncoderSettings(path=rank.run.encoder)).space_id == result.space_id
    assert {entry.path.partition("/")[0] for entry in rank.run.store.list()} >= {
        "checkpoints",
        "encoder",
        "result.json",
    }


def test_nan_ends_a_training_and_stores_its_batch(tmp_path: Path, encoder: Path):
    rank = rank_of(tmp_path, encoder, "train.optimizer={name: sgd, learning_rate: 1.0e+38, clip: null}")
    with pytest.raises(
        DataError, match=r"step \d.*finite.*the batch is in .*refused/step-\d+.parquet"
    ) as caught:
        train(rank)
    assert type(caught.value) is DataError  # without the batch, so that the error can leave the process
    (refused,) = Path(rank.run.store.uri).glob("refused/*.parquet")
    stored = pq.read_table(refused)
    step = int(refused.stem.removeprefix("step-"))
    batch = next(rank.plan.order.batches(step - 1)).table
    assert stored["row"].to_pylist() == batch["row"].to_pylist()
    assert stored["text"].to_pylist() == batch["text"].to_pylist()
    assert rank.run.result() is None


@pytest.mark.slow
def test_another_number_of_workers_continues_with_the_same_rows(tmp_path: Path, encoder: Path):
    whole, parts = (
        rank_of(tmp_path, encoder, "train.dropout=0", f"train.name={name}") for name in ("whole", "parts")
    )
    train(whole)
    train_on_two_ranks(parts, tmp_path, stop=6)  # past the checkpoint of step 4
    train(parts)
    expected, found = losses(Path(whole.run.store.uri)), losses(Path(parts.run.store.uri))
    assert len(found) == 12
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert np.ptp(expected) > 0.01  # the losses of steps differ by far more than rounding


def test_a_schedule_follows_the_accuracy_of_the_classifier(tmp_path: Path, encoder: Path):
    data, dev = write_nli(tmp_path / "nli.parquet"), write_nli(tmp_path / "dev.parquet")
    classification = (
        f"train.data={data}",
        "train.objective=classification",
        f"train.dev={{uri: {dev}, measure: accuracy, steps: 3}}",
    )
    plateau = (
        "train.schedule={name: plateau, decay: 1.0, drop: 0.2, least: 1.0e-5}",
        "train.optimizer={name: sgd, learning_rate: 1.0, clip: 5.0}",
        "train.max_steps=12",
    )
    rank = rank_of(tmp_path, encoder, *classification, *plateau)
    train(rank)
    lines = read_metrics(rank.run.store)
    scores = [line.dev for line in lines if line.dev is not None]
    assert len(scores) == 5
    correct = [1.92 * score for score in scores]  # of 192 pairs
    np.testing.assert_allclose(correct, np.round(correct), rtol=1e-6)
    drops = sum(later < earlier for earlier, later in pairwise(scores[:-1]))
    assert drops >= 1
    assert lines[-1].learning_rate == pytest.approx(0.2**drops)
    report = Path(rank.run.report).read_text()
    assert "Accuracy, % on dev" in report
    assert "Spearman x100" not in report

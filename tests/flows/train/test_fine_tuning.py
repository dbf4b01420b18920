"""Fine-tuning on labels from its configs to cross-encoders, which no night uses, and to encoders."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from pipeline.config import load_settings
from pipeline.errors import ConfigError, ModelError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.train.plan import open_dev
from pipeline.flows.train.rank import TrainRank
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.train.metrics import read_metrics
from tests.flows.conftest import job_arguments, sentences, write_corpus
from tests.flows.train.training import assert_resumes_to_the_same_bits, rank_of_config, train
from tests.models.pair_folders import pair_folder

CONFIGS = Path(__file__).parents[3] / "jobs/configs/train"
SIDES = ("sentence1", "sentence2")
PAIRS, TEXTS, SCORES = (
    CONFIGS / f"{name}.yaml" for name in ("glue-pairs", "glue-sentences", "cross-encoder")
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the encoder that the trainings start from."""
    return pair_folder(tmp_path_factory.mktemp("start") / "bert")


def write_rows(file: Path, count: int = 64, seed: int = 0) -> Path:
    """Write pairs with labels and scores.

    With label 0 and score 0 the second text is the first one; with label 1 and score 5 it is four times that.
    """
    left = sentences(count, seed)
    label = np.random.default_rng(seed).integers(0, 2, count)
    right = [" ".join([text] * (4 if is_long else 1)) for text, is_long in zip(left, label, strict=True)]
    columns = {"sentence1": left, "sentence2": right, "text": right, "label": label, "score": 5.0 * label}
    pq.write_table(pa.table(columns), file)
    return file


def small(config: Path, folder: Path, start: Path) -> tuple[str, ...]:
    """Return the overrides that make a config small: 12 steps over 64 rows, and 40 rows of dev."""
    rows, dev = write_rows(folder / "rows.parquet"), write_rows(folder / "dev.parquet", 40, 5)
    data = f"train.data={rows}" if config == SCORES else f"train.data.uri={rows}"
    return (
        f"encoder.path={start}",
        data,
        f"train.dev.uri={dev}",
        "train.max_length=64",
        "train.dev.steps=4",
        "train.max_steps=12",
        "train.optimizer.learning_rate=0.003",
    )


def rank_for(config: Path, folder: Path, start: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of a config, made small."""
    return rank_of_config(config, folder, name, *small(config, folder, start), *overrides)


def logits_of_transformers(folder: Path, file: Path, *roles: str) -> np.ndarray:
    """Compute the logits (n, classes) of the rows of a file with transformers' model of a folder."""
    columns = [pq.read_table(file)[role].to_pylist() for role in roles]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(*columns, truncation=True, max_length=64, padding=True, return_tensors="pt")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return np.asarray(model(**inputs).logits)


@pytest.mark.parametrize("config", [PAIRS, TEXTS, SCORES], ids=lambda config: config.stem)
def test_a_stopped_training_resumes_to_the_same_bits(tmp_path: Path, start: Path, config: Path):
    whole, parts = rank_for(config, tmp_path, start), rank_for(config, tmp_path, start, "parts")
    assert_resumes_to_the_same_bits(whole, parts, 6, cross_encoder=True)
    trained = open_folder(EncoderSettings(path=whole.run.encoder), cross_encoder=True)
    assert whole.run.result().space_id == trained.space_id


@pytest.mark.parametrize(
    ("config", "measure"),
    [(PAIRS, "accuracy"), (PAIRS, "f1"), (PAIRS, "matthews"), (SCORES, "pearson")],
    ids=lambda value: getattr(value, "stem", value),
)
def test_the_score_on_dev_is_that_of_the_trained_model_in_transformers(
    tmp_path: Path, start: Path, config: Path, measure: str
):
    rank = rank_for(config, tmp_path, start, "run", f"train.dev.measure={measure}")
    train(rank)
    file = tmp_path / "dev.parquet"
    logits, dev = logits_of_transformers(Path(rank.run.encoder), file, *SIDES), pq.read_table(file)
    gold, classes = dev["label"].to_numpy(), logits.argmax(1)
    expected = {
        "accuracy": lambda: np.mean(classes == gold),
        "f1": lambda: f1_score(gold, classes),
        "matthews": lambda: matthews_corrcoef(gold, classes),
        "pearson": lambda: pearsonr(logits[:, 0], dev["score"].to_numpy()).statistic,
    }[measure]()
    scores = [line.dev for line in read_metrics(rank.run.store) if line.dev is not None]
    assert len(set(scores)) > 1
    assert rank.run.result().metrics["dev"] == max(scores)
    assert max(scores) == pytest.approx(100 * expected, abs=1e-3)


def test_arguments_on_two_topics_are_trained_on_and_those_on_a_third_are_measured(
    tmp_path: Path, start: Path
):
    *trained, third = (
        write_rows(tmp_path / f"{topic}.parquet", 40, seed)
        for seed, topic in enumerate(("guns", "marriage", "penalty"))
    )
    data = f"train.data=[{', '.join(map(str, trained))}]"
    rank = rank_for(SCORES, tmp_path, start, "run", data, f"train.test.uri={third}")
    assert [counts["rows"] for counts in rank.plan.counts] == [40, 40]
    train(rank)
    predicted = logits_of_transformers(Path(rank.run.encoder), third, *SIDES)[:, 0]
    gold, found = pq.read_table(third)["score"].to_numpy(), rank.run.result().metrics
    for name, correlate in (("spearman", spearmanr), ("pearson", pearsonr)):
        expected = 100 * correlate(predicted, gold).statistic
        assert found[f"test_{name}"] == pytest.approx(expected, abs=1e-3)


def test_the_card_and_report_of_a_cross_encoder_describe_it_as_one(tmp_path: Path, start: Path):
    rank = rank_for(PAIRS, tmp_path, start, "run", "train.max_steps=1")
    train(rank)
    card = Path(rank.run.encoder, "README.md").read_text()
    assert "CrossEncoder(" in card
    assert "manta encode" not in card
    report = Path(rank.run.report).read_text()
    assert "It reads two texts together" in report
    assert "manta evaluate" not in report


def test_no_night_encodes_with_a_cross_encoder_and_a_training_may_start_from_it(tmp_path: Path, start: Path):
    first = rank_for(PAIRS, tmp_path, start, "first", "train.max_steps=1")
    train(first)
    write_corpus(tmp_path / "corpus", 20)
    job = load_settings(Job, None, job_arguments(tmp_path, Path(first.run.encoder)))
    with pytest.raises(ModelError, match="found a cross-encoder, which reads two texts together"):
        nightly(job, Stages())
    second = rank_for(SCORES, tmp_path, Path(first.run.encoder), "second")
    train(second)
    assert second.run.result().steps == 12


def test_a_classifier_of_sentences_is_an_encoder(tmp_path: Path, start: Path):
    rank = rank_for(TEXTS, tmp_path, start)
    train(rank)
    encoder = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings())
    assert (encoder.folder.pooling, encoder.folder.dim) == (("cls",), 48)
    file = tmp_path / "dev.parquet"
    logits = logits_of_transformers(Path(rank.run.encoder), file, "text")
    expected = matthews_corrcoef(pq.read_table(file)["label"].to_numpy(), logits.argmax(1))
    assert rank.run.result().metrics["dev"] == pytest.approx(100 * expected, abs=1e-3)


def test_an_encoder_trained_by_cert_is_fine_tuned_with_its_own_pooler(tmp_path: Path, start: Path):
    texts = sentences(64)
    variants = {"variant_zh": texts, "variant_de": [text.replace("the", "a") for text in texts]}
    pq.write_table(pa.table(variants), tmp_path / "variants.parquet")
    contrast = rank_of_config(
        CONFIGS / "cert.yaml",
        tmp_path,
        "cert",
        f"encoder.path={start}",
        f"train.data.uri={tmp_path / 'variants.parquet'}",
        "train.objective={name: cert, options: {queue: 40}}",
        "train.max_length=64",
        "train.max_steps=4",
    )
    train(contrast)
    one_small_step = ("encoder.pooling=null", "train.max_steps=1", "train.optimizer.learning_rate=1e-6")
    tuned = rank_for(TEXTS, tmp_path, Path(contrast.run.encoder), "tuned", *one_small_step)
    train(tuned)
    before, after = (
        load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings()).encode(texts[:8])
        for rank in (contrast, tuned)
    )
    np.testing.assert_allclose(after, before, atol=0.01)
    logits = logits_of_transformers(Path(tuned.run.encoder), tmp_path / "dev.parquet", "text")
    assert logits.shape == (40, 2)


def test_f1_needs_two_labels(tmp_path: Path, start: Path):
    settings = rank_for(PAIRS, tmp_path, start).settings
    (source,) = settings.data
    three = source.values.model_copy(update={"labels": ("a", "b", "c")})
    data = (source.model_copy(update={"values": three}),)
    dev = settings.dev.model_copy(update={"measure": "f1"})
    with pytest.raises(ConfigError, match=r"train.dev.measure f1: expected two labels"):
        open_dev(settings.model_copy(update={"data": data, "dev": dev}))


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_a_classifier_learns_the_labels_of_real_sentences(tmp_path: Path):
    table = pq.read_table(Path(os.environ["MANTA_EVAL_DATA"]) / "senteval/SUBJ.parquet")
    order = np.random.default_rng(0).permutation(len(table))
    for name, rows in (("train", order[300:]), ("dev", order[:300])):
        pq.write_table(table.take(rows).select(["text", "label"]), tmp_path / f"{name}.parquet")
    rank = rank_of_config(
        TEXTS,
        tmp_path,
        "real",
        "encoder.path=all-MiniLM-L6-v2",
        "encoder.normalize=false",
        f"train.data={{uri: {tmp_path / 'train.parquet'}, values: {{labels: [subjective, objective]}}}}",
        f"train.dev.uri={tmp_path / 'dev.parquet'}",
        "train.dev.steps=30",
        "train.max_steps=30",
        "train.optimizer.learning_rate=2e-4",
        "train.checkpoint={steps: 30, minutes: null}",
    )
    train(rank)
    scores = [line.dev for line in read_metrics(rank.run.store) if line.dev is not None]
    assert abs(scores[0]) < 40
    assert rank.run.result().metrics["dev"] > 50

"""The score on dev equals that of an evaluation on any number of ranks, and does not disturb the training."""

import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.multiprocessing
from scipy.stats import spearmanr

from pipeline.errors import ConfigError, DataError, PipelineError
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.heads import TanhHead
from pipeline.objectives import TrainedModel
from pipeline.objectives.classification import Classification
from pipeline.objectives.weighted import Sum, Term
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.training import Values
from pipeline.settings.watching import DevSettings
from pipeline.train.dev import BestScore, DevSet
from tests.models import folders
from tests.objectives.tiny import texts
from tests.train.dev_ranks import encoder_of, work

PAIRS = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.save_folder(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write pairs with repeated sentences, a missing one, and a pair without a score."""
    random, known = np.random.default_rng(0), [" ".join(texts(8, seed)) for seed in range(300)]
    left, right = ([known[index] for index in random.integers(0, 300, PAIRS)] for _ in range(2))
    scores = [None, *random.uniform(0, 80, PAIRS - 1)]
    return write(
        tmp_path_factory.mktemp("dev") / "dev.parquet",
        {"sentence1": [left[0], None, *left[2:]], "sentence2": right, "score": scores},
    )


def write(path: Path, columns: Mapping[str, object]) -> Path:
    pq.write_table(pa.table(dict(columns)), path)
    return path


def expected(folder: Path, pairs: Path) -> float:
    """Compute the score with the encoder of `manta encode` and SciPy."""
    table = pq.read_table(pairs).slice(1)
    encoder = load_encoder(EncoderSettings(path=str(folder)), EncodeSettings())
    left, right = (
        encoder.encode([text or " " for text in table[side].to_pylist()]).astype(np.float64)
        for side in ("sentence1", "sentence2")
    )
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return float(100 * spearmanr(cosines, table["score"].to_numpy()).statistic)


def test_the_score_equals_an_evaluation_of_the_folder(folder: Path, pairs: Path):
    dev = DevSet.open(DevSettings(uri=str(pairs)))
    assert dev.score(TrainedModel(encoder_of(folder))) == pytest.approx(expected(folder, pairs), abs=0.01)
    assert pickle.loads(pickle.dumps(dev)).score(TrainedModel(encoder_of(folder))) == dev.score(
        TrainedModel(encoder_of(folder))
    )


def test_the_score_is_that_of_the_product(folder: Path, pairs: Path):
    dev, encoder = DevSet.open(DevSettings(uri=str(pairs))), encoder_of(folder)
    torch.manual_seed(0)
    head = TanhHead(encoder.dim)
    torch.nn.init.normal_(head.linear.weight)
    twin = load_trainable(open_folder(EncoderSettings(path=str(folder), pooling="cls")))
    scores = [
        dev.score(product)
        for product in (
            TrainedModel(encoder),
            TrainedModel(encoder, head),
            TrainedModel(encoder, twin=twin),
            TrainedModel(twin),
        )
    ]
    assert len(set(scores)) == 4


def test_scoring_does_not_change_modes_gradients_or_random_numbers(folder: Path, pairs: Path):
    dev, encoder = DevSet.open(DevSettings(uri=str(pairs))), encoder_of(folder)
    encoder.backbone.encoder.layer.get_submodule("1").eval()
    modes, state = [module.training for module in encoder.modules()], torch.get_rng_state()
    assert True in modes
    assert False in modes
    first = dev.score(TrainedModel(encoder))
    assert dev.score(TrainedModel(encoder)) == first  # with dropout the scores would differ
    assert [module.training for module in encoder.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert torch.is_grad_enabled()


def test_every_sentence_is_encoded_once_longest_first(folder: Path, pairs: Path):
    encoder, lengths = encoder_of(folder), []
    encoder.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].lengths))
    DevSet.open(DevSettings(uri=str(pairs))).score(TrainedModel(encoder))
    table = pq.read_table(pairs).slice(1)
    distinct = {text or " " for side in ("sentence1", "sentence2") for text in table[side].to_pylist()}
    assert sum(map(len, lengths)) == len(distinct)
    assert all(part.sum() <= 1_024 for part in lengths)
    assert lengths[0].max() == max(part.max() for part in lengths)


@pytest.mark.slow
def test_ranks_split_the_sentences_and_agree_on_the_score(folder: Path, pairs: Path, tmp_path: Path):
    dev, encoder, alone = DevSet.open(DevSettings(uri=str(pairs))), encoder_of(folder), []
    encoder.register_forward_pre_hook(lambda _, inputs: alone.append(len(inputs[0])))
    score = dev.score(TrainedModel(encoder))
    torch.multiprocessing.spawn(work, (2, tmp_path, folder, pairs), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert [each["figure"] for each in found] == [score] * 2
    passes = [each["passes"] for each in found]
    assert len(alone) % 2  # so that the last turn is incomplete
    assert {len(each) for each in passes} == {-(-len(alone) // 2)}
    assert [each[turn] for turn in range(len(passes[0])) for each in passes][: len(alone)] == alone


def test_vectors_with_nan_are_refused(folder: Path, pairs: Path):
    encoder = encoder_of(folder)
    with torch.no_grad():
        next(encoder.parameters()).fill_(float("nan"))
    with pytest.raises(
        DataError, match=r"finite vectors, found NaN or infinity in .* the weights have diverged"
    ):
        DevSet.open(DevSettings(uri=str(pairs))).score(TrainedModel(encoder))
    assert encoder.training


GOOD = {"sentence1": ["a", "b", "c"], "sentence2": ["d", "e", "f"], "score": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize(("columns", "named", "kind", "message"), [
    ({name: GOOD[name] for name in ("sentence1", "score")}, {}, DataError,
     "the columns sentence1, sentence2, score, found sentence1, score"),
    (GOOD, {"score": "gold"}, DataError, "the columns gold, found"),
    (GOOD, {"scores": "score"}, ConfigError, "did you mean 'score'"),
    (GOOD | {"score": ["1", "2", "3"]}, {}, DataError, "a column of numbers for 'score'"),
    (GOOD | {"sentence2": [1, 2, 3]}, {}, DataError, "a column of strings for 'sentence2'"),
    (GOOD | {"score": [2.5, 2.5, 2.5]}, {}, DataError, "two different scores, found 3 pairs, all with 2.5"),
    (GOOD | {"score": [None, None, 1.0]}, {}, DataError, "at least two pairs with a score"),
])  # fmt: skip
def test_invalid_dev_files_are_refused_when_opened(
    tmp_path: Path,
    columns: Mapping[str, object],
    named: dict[str, str],
    kind: type[PipelineError],
    message: str,
):
    file = write(tmp_path / "dev.parquet", columns)
    with pytest.raises(kind, match=message):
        DevSet.open(DevSettings(uri=str(file), columns=named))


def test_a_missing_dev_file_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="no such file"):
        DevSet.open(DevSettings(uri=str(tmp_path / "dev.parquet")))
    with pytest.raises(ConfigError, match="a file to measure on, found none"):
        DevSet.open(DevSettings())


def test_columns_can_be_renamed_and_scores_have_any_scale(tmp_path: Path, folder: Path, pairs: Path):
    table = pq.read_table(pairs).rename_columns(["a", "b", "gold"])
    table = table.set_column(
        2,
        "gold",
        pa.array([None if score is None else -1e6 + 1e3 * score for score in table["gold"].to_pylist()]),
    )
    pq.write_table(table, tmp_path / "dev.parquet")
    dev = DevSet.open(
        DevSettings(
            uri=str(tmp_path / "dev.parquet"), columns={"sentence1": "a", "sentence2": "b", "score": "gold"}
        )
    )
    assert dev.score(TrainedModel(encoder_of(folder))) == DevSet.open(DevSettings(uri=str(pairs))).score(
        TrainedModel(encoder_of(folder))
    )


NLI = {
    "premise": ["a", "b", None, "d", "a"],
    "hypothesis": ["d", "e", "f", "g", "h"],
    "label": ["neutral", "-", "entailment", "contradiction", "neutral"],
}


def test_accuracy_is_that_of_the_classifier_on_product_vectors(folder: Path, tmp_path: Path):
    dev = DevSet.open(DevSettings(uri=str(write(tmp_path / "nli.parquet", NLI)), measure="accuracy"))
    encoder = encoder_of(folder)
    objective, scores = Classification(encoder), []
    vectors = load_encoder(EncoderSettings(path=str(folder)), EncodeSettings()).encode(
        ["a", " ", "d", "a", "d", "f", "g", "h"]
    )
    left, right, gold = vectors[:4], vectors[4:], [1, 0, 2, 1]  # without the unlabelled row
    for seed in range(12):
        torch.manual_seed(seed)
        torch.nn.init.normal_(linear := objective.classifier.get_parameter("weight"))
        logits = (
            np.concatenate([left, right, np.abs(left - right)], axis=1) @ linear.detach().numpy().T
            + objective.classifier.get_parameter("bias").detach().numpy()
        )
        scores.append(dev.score(TrainedModel(encoder), objective))
        assert scores[-1] == 100 * np.mean(logits.argmax(1) == gold)
        assert linear.grad is None
    assert len(set(scores)) > 2
    both = Sum(encoder, [Term("classification", 1.0, objective)])
    assert dev.score(TrainedModel(encoder), both) == scores[-1]


@pytest.mark.parametrize(("columns", "named", "kind", "message"), [
    ({name: NLI[name] for name in ("premise", "label")}, {}, DataError, "hypothesis"),
    (NLI | {"label": ["neutral"] * 4 + ["maybe"]}, {}, DataError,
     r"row 4.*one of entailment \(0\), neutral \(1\), contradiction \(2\), found 'maybe'"),
    (NLI | {"label": ["-"] * 5}, {}, DataError, "rows to train on, found"),
    (NLI, {"labels": "label"}, ConfigError, "did you mean 'label'"),
])  # fmt: skip
def test_invalid_labels_are_refused(
    tmp_path: Path,
    columns: Mapping[str, object],
    named: dict[str, str],
    kind: type[PipelineError],
    message: str,
):
    with pytest.raises(kind, match=message):
        DevSet.open(
            DevSettings(uri=str(write(tmp_path / "nli.parquet", columns)), measure="accuracy", columns=named)
        )


def test_labels_are_mapped_as_in_the_training_rows(tmp_path: Path):
    file = write(
        tmp_path / "nli.parquet", {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": ["no", "yes"]}
    )
    assert DevSet.open(
        DevSettings(uri=str(file), measure="accuracy"), Values(labels=("yes", "no"))
    ).gold.tolist() == [1, 0]


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_minilm_has_its_published_score():
    dev = DevSet.open(DevSettings(uri=str(Path(os.environ["MANTA_EVAL_DATA"]) / "sts" / "STSB-dev.parquet")))
    assert round(dev.score(TrainedModel(load_trainable(open_folder(EncoderSettings())))), 2) == 86.72


def test_the_best_score_is_the_earliest_of_equals_and_patience_counts():
    best = BestScore(patience=2)
    observed = [(0, 50.0), (250, 60.0), (500, 60.0), (750, 59.0)]
    seen = []
    for step, score in observed:
        best = best.observe(step, score)
        seen.append((best.step, best.score, best.since, best.ended))
    assert seen == [(0, 50.0, 0, False), (250, 60.0, 0, False), (250, 60.0, 1, False), (250, 60.0, 2, True)]
    assert not best.observe(1000, 61.0).ended
    assert not replace(best, patience=None).ended

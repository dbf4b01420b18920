"""The score on dev is that of an evaluation, on any number of ranks, and leaves the training as it was."""

import os
import pickle
from collections.abc import Callable, Mapping
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
from pipeline.models.layers.post_pooling import TanhHead
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import TrainedModel
from pipeline.objectives.build import Sum, Term
from pipeline.objectives.classification import Classification
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.training import DevSettings, Values
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
    """Write pairs with repeated sentences. The first pair has no score, and the second no left sentence."""
    random, sentences = np.random.default_rng(0), [" ".join(texts(8, seed)) for seed in range(300)]
    left, right = ([sentences[index] for index in random.integers(0, 300, PAIRS)] for _ in range(2))
    scores = [None, *random.uniform(0, 80, PAIRS - 1)]
    return write(
        tmp_path_factory.mktemp("dev") / "dev.parquet",
        {"sentence1": [left[0], None, *left[2:]], "sentence2": right, "score": scores},
    )


def write(path: Path, columns: Mapping[str, object]) -> Path:
    pq.write_table(pa.table(dict(columns)), path)
    return path


def spearman_of(encode: Callable[[list[str]], np.ndarray], pairs: Path) -> float:
    """Compute the Spearman correlation of cosines and scores with SciPy, times 100."""
    table = pq.read_table(pairs).slice(1)  # without the pair without a score
    left, right = (
        encode([text or " " for text in table[side].to_pylist()]).astype(np.float64)
        for side in ("sentence1", "sentence2")
    )
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return float(100 * spearmanr(cosines, table["score"].to_numpy()).statistic)


def test_the_score_equals_an_evaluation_of_the_folder(folder: Path, pairs: Path):
    encoder = load_encoder(EncoderSettings(path=str(folder)), EncodeSettings())
    found = DevSet.open(DevSettings(uri=str(pairs))).score(TrainedModel(encoder_of(folder)))
    assert found == pytest.approx(spearman_of(encoder.encode, pairs), abs=0.01)


def test_a_pickled_dev_set_gives_the_same_score(folder: Path, pairs: Path):
    dev, model = DevSet.open(DevSettings(uri=str(pairs))), TrainedModel(encoder_of(folder))
    assert pickle.loads(pickle.dumps(dev)).score(model) == dev.score(model)


@pytest.mark.parametrize("modules", ["encoder", "encoder and head", "two encoders", "second encoder"])
def test_the_score_is_that_of_the_trained_models_vectors(folder: Path, pairs: Path, modules: str):
    first, second = (
        load_trainable(open_folder(EncoderSettings(path=str(folder), pooling=pooling)), dropout=0.0)
        for pooling in ("mean", "cls")
    )
    torch.manual_seed(0)
    head = TanhHead(first.dim)
    torch.nn.init.normal_(head.linear.weight)
    model, vectors_of = {
        "encoder": (TrainedModel(first), first),
        "encoder and head": (TrainedModel(first, head), lambda tokens: head(first(tokens))),
        "two encoders": (
            TrainedModel(first, twin=second),
            lambda tokens: torch.cat([first(tokens), second(tokens)], dim=1),
        ),
        "second encoder": (TrainedModel(second), second),
    }[modules]
    found = DevSet.open(DevSettings(uri=str(pairs))).score(model)
    tokenizer = first.folder.tokenizer()
    with torch.no_grad():
        expected = spearman_of(lambda texts: vectors_of(tokenizer(texts)).numpy(), pairs)
    assert found == pytest.approx(expected, abs=0.01)


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
    encoder, lengths_per_pass = encoder_of(folder), []
    encoder.register_forward_pre_hook(lambda _, inputs: lengths_per_pass.append(inputs[0].lengths))
    DevSet.open(DevSettings(uri=str(pairs))).score(TrainedModel(encoder))
    table = pq.read_table(pairs).slice(1)
    distinct = {text or " " for side in ("sentence1", "sentence2") for text in table[side].to_pylist()}
    assert sum(map(len, lengths_per_pass)) == len(distinct)
    assert max(lengths.sum() for lengths in lengths_per_pass) <= 1_024
    longest = [lengths.max() for lengths in lengths_per_pass]
    assert longest == sorted(longest, reverse=True)
    assert longest[0] > longest[-1]


@pytest.mark.slow
def test_ranks_split_the_sentences_and_agree_on_the_score(folder: Path, pairs: Path, tmp_path: Path):
    dev, encoder, passes = DevSet.open(DevSettings(uri=str(pairs))), encoder_of(folder), []
    encoder.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    score = dev.score(TrainedModel(encoder))
    torch.multiprocessing.spawn(work, (2, tmp_path, folder, pairs), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert (first["score"], second["score"]) == (score, score)
    assert len(passes) % 2 == 1  # so that in the last round the second rank has no texts of its own
    assert first["texts_per_pass"] == passes[::2]
    assert second["texts_per_pass"] == [*passes[1::2], passes[-1]]


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
    (GOOD | {"sentence1": 3 * ["a"], "sentence2": 3 * ["a"]}, {}, DataError, "two different texts"),
    (GOOD | {"sentence1": ["", " ", None]}, {}, DataError, "column sentence1, found 3 blank or missing"),
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
    left, right, scores = pq.read_table(pairs).to_pydict().values()
    scaled = [None if score is None else -1e6 + 1e3 * score for score in scores]
    file = write(tmp_path / "dev.parquet", {"a": left, "b": right, "gold": scaled})
    columns = {"sentence1": "a", "sentence2": "b", "score": "gold"}
    model = TrainedModel(encoder_of(folder))
    expected = DevSet.open(DevSettings(uri=str(pairs))).score(model)
    assert DevSet.open(DevSettings(uri=str(file), columns=columns)).score(model) == expected


def test_alignment_and_uniformity_are_those_of_the_encoders_vectors(folder: Path, tmp_path: Path):
    """Pairs above 4 of 5 are positives, and each different sentence counts once."""
    texts = [*folders.TEXTS[:2], *folders.TEXTS[3:7]]
    columns = {"sentence1": [*texts[:5], texts[0]], "sentence2": texts[::-1], "score": [4.5, 1, 5, 4, 0, 4.1]}
    dev = DevSet.open(DevSettings(uri=str(write(tmp_path / "dev.parquet", columns))))
    found = dev.metrics(TrainedModel(encoder_of(folder)))
    vectors = (
        load_encoder(EncoderSettings(path=str(folder)), EncodeSettings()).encode(texts).astype(np.float64)
    )
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    squared = np.square(unit[:, None] - unit).sum(axis=2)
    assert found.geometry == pytest.approx(
        {
            "alignment": (squared[0, 5] + squared[2, 3] + squared[0, 0]) / 3,
            "uniformity": np.log(np.exp(-2 * squared[np.triu_indices(6, 1)]).mean()),
        },
        abs=1e-5,
    )
    assert found.score == dev.score(TrainedModel(encoder_of(folder)))


def test_without_positive_scores_only_uniformity_is_measured(folder: Path, tmp_path: Path):
    columns = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "score": [-1.0, -2.0]}
    dev = DevSet.open(DevSettings(uri=str(write(tmp_path / "dev.parquet", columns))))
    assert dev.metrics(TrainedModel(encoder_of(folder))).geometry.keys() == {"uniformity"}


NLI = {
    "premise": ["a", "b", None, "d", "a"],
    "hypothesis": ["d", "e", "f", "g", "h"],
    "label": ["neutral", "-", "entailment", "contradiction", "neutral"],
}


def test_accuracy_is_that_of_the_classifier_on_the_trained_models_vectors(folder: Path, tmp_path: Path):
    dev = DevSet.open(DevSettings(uri=str(write(tmp_path / "nli.parquet", NLI)), measure="accuracy"))
    encoder = encoder_of(folder)
    objective, scores = Classification(encoder), []
    classifier = objective.classifier
    left, right = (
        load_encoder(EncoderSettings(path=str(folder)), EncodeSettings()).encode(texts)
        for texts in (["a", " ", "d", "a"], ["d", "f", "g", "h"])  # without the row without a label
    )
    features, gold = np.concatenate([left, right, np.abs(left - right)], axis=1), [1, 0, 2, 1]
    for seed in range(12):
        torch.manual_seed(seed)
        torch.nn.init.normal_(classifier.weight)
        logits = features @ classifier.weight.detach().numpy().T + classifier.bias.detach().numpy()
        scores.append(dev.score(TrainedModel(encoder), objective))
        assert scores[-1] == 100 * np.mean(logits.argmax(1) == gold)
        assert dev.metrics(TrainedModel(encoder), objective) == (scores[-1], {})
        assert classifier.weight.grad is None
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


def test_the_numbers_of_labels_are_those_of_the_training_rows(tmp_path: Path):
    columns = {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": ["no", "yes"]}
    settings = DevSettings(uri=str(write(tmp_path / "nli.parquet", columns)), measure="accuracy")
    assert DevSet.open(settings, Values(labels=("yes", "no"))).gold.tolist() == [1, 0]


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_minilm_has_its_published_score():
    file = Path(os.environ["MANTA_EVAL_DATA"]) / "sts" / "STSB-dev.parquet"
    model = TrainedModel(load_trainable(open_folder(EncoderSettings())))
    assert round(DevSet.open(DevSettings(uri=str(file))).score(model), 2) == 86.72


def test_the_best_score_is_the_earliest_of_equals_and_patience_ends_the_training():
    best = BestScore(patience=2)
    seen = []
    for step, score in ((0, 50.0), (250, 60.0), (500, 60.0), (750, 59.0)):
        best = best.observe(step, score)
        seen.append((best.step, best.score, best.since, best.ended))
    assert seen == [(0, 50.0, 0, False), (250, 60.0, 0, False), (250, 60.0, 1, False), (250, 60.0, 2, True)]
    assert not best.observe(1000, 61.0).ended
    assert not replace(best, patience=None).ended

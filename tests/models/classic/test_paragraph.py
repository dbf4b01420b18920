"""Paragraph vectors are inferred by gradient steps whose bits depend on the text alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.losses.words import sampled_word_prediction
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.saving import save_folder
from pipeline.objectives.simcse import SimCSE
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.text.normalize import normalize, text_keys
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from tests.models.classic.paragraphs import write_paragraphs
from tests.models.folders import folder_at
from tests.objectives.tiny import batch_of

TEXTS = [
    "the dog runs",
    "The dog runs",
    "nothing known",
    "cat",
    "the cat sleeps here now " * 6,
    "",
    "now now the dog and the cat run here",
]
WITH_KNOWN_WORDS = [0, 1, 3, 4, 6]


KINDS = {
    "dm and dbow": {"models": ["dm", "dbow"], "context": "concatenate"},
    "dbow": {"models": ["dbow"], "context": "concatenate"},
    "dm of averages": {"models": ["dm"], "context": "average"},
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """New paragraph vectors, with weights so large that inference moves the vectors."""
    path = tmp_path_factory.mktemp("paragraphs") / "new"
    return write_paragraphs(path, scale=8, **KINDS[request.param])


def encoder_of(folder: Path, **encode: object) -> Encoder:
    return load_encoder(EncoderSettings(path=str(folder)), EncodeSettings(**encode))


def trainable(folder: Path) -> TrainableEncoder:
    return load_trainable(open_folder(EncoderSettings(path=str(folder))))


def test_bits_of_a_vector_do_not_depend_on_batch_order_threads_or_window(folder: Path):
    encoder = encoder_of(folder)
    expected = encoder.encode(TEXTS)
    texts = [*TEXTS, *(f"the dog {number} here" * (1 + number % 3) for number in range(50))]
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled = [texts[row] for row in order]
    for other in (
        encoder,
        encoder_of(folder, threads=2),
        encoder_of(folder, window_rows=3, max_tokens=4_096),
    ):
        found = np.empty((len(texts), encoder.dim), np.float32)
        found[order] = np.concatenate(
            [part.vectors for part in other.encode_stream([shuffled[:9], shuffled[9:]])]
        )
        np.testing.assert_array_equal(found[: len(TEXTS)], expected)
    for text, vector in zip(TEXTS, expected, strict=True):
        np.testing.assert_array_equal(encoder.encode(text), vector)
        np.testing.assert_array_equal(encoder.encode([text], query=True)[0], vector)
        np.testing.assert_array_equal(encoder.encode(f"  {text}\n"), vector)
    with torch.no_grad():
        in_training = trainable(folder)(encoder.folder.tokenizer()(TEXTS)).numpy()
    np.testing.assert_array_equal(in_training, expected)


def test_a_vector_is_the_result_of_gradient_steps_on_the_loss_of_drawn_words(folder: Path):
    backbone = trainable(folder).backbone
    tokens = tokens_of_known_words(folder)
    start, at, candidates = map(torch.from_numpy, backbone._drawn(tokens))
    vectors, rates = start.clone(), np.linspace(0.5, 0.001, 8)
    for step, rate in enumerate(rates):
        leaf = vectors.clone().requires_grad_()
        drawn = candidates[:, step].flatten(0, 1)
        for name, part in backbone.parts(leaf).items():
            contexts = backbone.contexts(name, tokens, at[:, step].numpy()).flatten(0, 1)
            predictor = backbone.predictor(name)
            mean = sampled_word_prediction(
                predictor.hidden(part.repeat_interleave(3, 0), contexts),
                predictor.output,
                words=drawn[:, 0],
                rows=torch.arange(len(drawn)),
                negatives=drawn[:, 1:],
                bias=predictor.bias,
            )
            (mean * len(drawn)).backward()
        vectors = (vectors - rate * leaf.grad).detach()
    found = backbone.infer(tokens)
    torch.testing.assert_close(found, vectors, atol=1e-5, rtol=0)
    assert (found - start).abs().max() > 0.1


def tokens_of_known_words(folder: Path) -> Tokens:
    """Tokenize the texts that have a known word."""
    tokens = open_folder(EncoderSettings(path=str(folder))).tokenizer()(TEXTS)
    return tokens.of_rows(np.array(WITH_KNOWN_WORDS))


def test_only_texts_without_a_known_word_have_the_zero_vector(folder: Path):
    vectors = encoder_of(folder).encode(TEXTS)
    assert np.flatnonzero(vectors.any(axis=1)).tolist() == WITH_KNOWN_WORDS
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3, "the text before lowercasing seeds the draws"


def test_draws_follow_from_the_key_and_the_seed(folder: Path):
    backbone, tokens = trainable(folder).backbone, tokens_of_known_words(folder)
    start, at, candidates = backbone._drawn(tokens)
    assert (np.abs(start) <= 0.1).all()
    assert ((at >= tokens.offsets[:-1, None, None]) & (at < tokens.offsets[1:, None, None])).all()
    np.testing.assert_array_equal(candidates[..., 0], tokens.ids[at])
    assert set(np.unique(candidates)) <= set(range(7))
    swapped = backbone._drawn(replace(tokens, keys=tokens.keys[::-1]))[0]
    np.testing.assert_array_equal(swapped[0], start[-1])
    backbone.settings = backbone.settings.model_copy(update={"seed": 1})
    assert (backbone._drawn(tokens)[0] != start).any(axis=1).all()


def test_negatives_are_drawn_by_the_counts_to_the_power_of_three_quarters(folder: Path):
    uniform = (np.arange(100_000) + 0.5) / 100_000
    found = np.bincount(trainable(folder).backbone.draw_words(uniform)) / 100_000
    weights = np.arange(16, 9, -1) ** 0.75  # the vocabulary begins with the most frequent word
    np.testing.assert_allclose(found, weights / weights.sum(), atol=1e-4)


def test_steps_rates_and_seed_are_part_of_the_space(tmp_path: Path):
    path = write_paragraphs(tmp_path / "new", models=["dbow"])
    config, spaces = json.loads((path / "config.json").read_text()), {folder_at(path).space_id}
    for key, value in {"steps": 9, "learning_rate": 0.4, "final": 0.002, "seed": 3, "words": 4}.items():
        changed = config | {"paragraph_vectors": config["paragraph_vectors"] | {key: value}}
        (path / "config.json").write_text(json.dumps(changed))
        spaces.add(folder_at(path).space_id)
    assert len(spaces) == 1 + 5


def test_a_saved_encoder_gives_the_same_vectors(folder: Path, tmp_path: Path):
    encoder = trainable(folder)
    before = encoder_of(folder).encode(TEXTS)
    saved = save_folder(encoder, encoder.folder, tmp_path / "saved")
    assert (saved.family, saved.pooling, saved.dim) == ("paragraph", ("cls",), encoder.dim)
    np.testing.assert_array_equal(encoder_of(saved.path).encode(TEXTS), before)
    with torch.no_grad():
        encoder.backbone.word_table.mul_(2)
    changed = save_folder(encoder, encoder.folder, tmp_path / "changed")
    assert changed.space_id != saved.space_id
    assert np.abs(encoder_of(changed.path).encode(TEXTS) - before).max() > 1e-3


def test_keys_are_those_of_the_corpus_and_follow_their_texts(folder: Path):
    tokens = open_folder(EncoderSettings(path=str(folder), prompt="the cat: ")).tokenizer()(
        [*TEXTS, " \ud800 "]
    )
    expected = text_keys(normalize(pa.array([*TEXTS, "\ufffd"]))).to_pylist()
    assert [key.tobytes() for key in tokens.keys] == expected
    joined = Tokens.joined([tokens.of_rows(np.array([3, 0])), tokens.of_rows(np.array([4]))])
    np.testing.assert_array_equal(joined.keys, tokens.keys[[3, 0, 4]])


def test_incompatible_settings_and_objectives_are_refused(folder: Path):
    path = str(folder)
    for settings, message in (
        ({"pooling": "mean"}, "cls, the only pooling of paragraph vectors"),
        ({"exclude": ("punctuation",)}, "a pooling over all tokens"),
        ({"sif": 0.001}, "word vectors at encoder.path"),
    ):
        with pytest.raises(ModelError, match=message):
            open_folder(EncoderSettings(path=path, **settings))
    with pytest.raises(ModelError, match=r"train.dropout: expected null"):
        load_trainable(open_folder(EncoderSettings(path=path)), dropout=0.1)
    with pytest.raises(ModelError, match="made for a text as a whole"):
        encoder_of(folder).hidden_states()
    batch = replace(
        batch_of({"text": TEXTS[:2]}), tokenize=open_folder(EncoderSettings(path=path)).tokenizer()
    )
    with pytest.raises(ModelError, match="the objective paragraph_vector, the only one"):
        loss_and_backward(SimCSE(trainable(folder)), batch)


def test_a_config_whose_width_does_not_fit_is_refused(tmp_path: Path):
    path = write_paragraphs(tmp_path / "new")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"hidden_size": 7}))
    with pytest.raises(ModelError, match=r"dim 5, 2 models, hidden_size 7"):
        encoder_of(path)
    del config["paragraph_vectors"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="dim None"):
        encoder_of(path)

"""Prompt objectives: their losses, the product, and steps in chunks."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pipeline.config import load_settings
from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.folder import open_folder, positions_of
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.lora import adapt
from pipeline.models.trainable.prompted import PromptedEncoder, transform_of
from pipeline.models.trainable.saving import save_folder
from pipeline.objectives import OBJECTIVES, Batch, Objective
from pipeline.objectives.build import build_objective
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.settings.training import TrainSettings
from pipeline.settings.weights import LoraSettings
from pipeline.train.gradcache import loss_and_backward
from pipeline.train.loop import Training, fit
from tests.models.folders import folder_of_language_model
from tests.models.folders import save_folder as random_folder
from tests.objectives.tiny import assert_same, batch_of, gradients

CONFIGS = Path(__file__).parents[2] / "jobs/configs/train"
TEXTS = [
    "Two dogs run on the grass.",
    "A man reads.",
    "x",
    "A girl reads a book on the grass.",
    "The cat's café",
    "two dogs",
]
BERT = ('This sentence of "[X]" means [MASK].', 'This sentence : "[X]" means [MASK].')
ROBERTA = ("This sentence : '[X]' means [MASK].", "The sentence : '[X]' means [MASK].")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return encoder folders with and without a masked language model head."""
    top = tmp_path_factory.mktemp("encoders")
    return {
        "bert": folder_of_language_model(top / "bert"),
        "roberta": folder_of_language_model(top / "roberta", family="roberta"),
        "bare": random_folder(top / "bare", "bert"),
    }


def made(path, name: str, dropout: float = 0.0, **options) -> Objective:
    torch.manual_seed(0)
    return OBJECTIVES[name](
        load_trainable(open_folder(EncoderSettings(path=str(path))), dropout=dropout), **options
    )


def batch(path, **columns) -> Batch:
    return replace(batch_of(columns), tokenize=open_folder(EncoderSettings(path=str(path))).tokenizer())


def read(path, template: str, texts, denoise: bool, transform: bool = False) -> torch.Tensor:
    encoder = load_trainable(open_folder(EncoderSettings(path=str(path))), dropout=0.0)
    reading = PromptedEncoder(
        encoder, template, limit=32, denoise=denoise, readout=transform_of(encoder) if transform else None
    )
    return reading(reading.folder.tokenizer()(texts))


def cosines(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.05


def test_without_a_head_the_loss_is_defined_at_several_lengths(folders):
    settings = TrainSettings(objective={"name": "prompt", "options": {"head": "none"}}, matryoshka=(4, 8))
    encoder = load_trainable(open_folder(EncoderSettings(path=str(folders["bert"]))), dropout=0.0)
    objective, given = build_objective(settings, encoder), batch(folders["bert"], text=TEXTS)
    first, second = (view.encode() for view in objective.views(given))
    expected = sum(
        F.cross_entropy(cosines(first[:, :dim], second[:, :dim]), torch.arange(len(TEXTS))) for dim in (4, 8)
    )
    torch.testing.assert_close(objective.loss((first, second), given).total, expected)


@pytest.mark.parametrize(("family", "templates"), [("bert", BERT), ("roberta", ROBERTA)])
@pytest.mark.parametrize("denoise", [True, False])
def test_the_unsupervised_loss_compares_two_templates_through_the_head(folders, family, templates, denoise):
    objective = made(folders[family], "prompt", denoise=denoise)
    first, second = (
        objective.head(read(folders[family], template, TEXTS, denoise)) for template in templates
    )
    expected = F.cross_entropy(cosines(first, second), torch.arange(len(TEXTS)))
    outcome = loss_and_backward(objective, batch(folders[family], text=TEXTS))
    torch.testing.assert_close(outcome.loss.total, expected.detach(), atol=1e-4, rtol=0)


def test_the_supervised_loss_compares_mask_tokens_through_the_language_model_head(folders):
    objective = made(folders["bert"], "prompt_supervised")
    columns = {"anchor": TEXTS, "positive": TEXTS[::-1], "negative": [text.upper() for text in TEXTS]}
    anchors, positives, negatives = (
        read(folders["bert"], BERT[0], texts, True, transform=True) for texts in columns.values()
    )
    expected = F.cross_entropy(cosines(anchors, torch.cat([positives, negatives])), torch.arange(len(TEXTS)))
    outcome = loss_and_backward(objective, batch(folders["bert"], **columns))
    torch.testing.assert_close(outcome.loss.total, expected.detach(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("family", "readout"), [("bert", "transform"), ("roberta", "mlp"), ("bare", "mlp")])
def test_bert_uses_its_language_model_head_and_others_a_new_layer(folders, family, readout):
    objective = made(folders[family], "prompt_supervised")
    assert (objective.transform is not None, objective.head is not None) == (
        readout == "transform",
        readout == "mlp",
    )
    assert made(folders["bare"], "prompt_supervised", readout="transform").warnings()
    assert not objective.warnings()


@pytest.mark.parametrize("name", ["prompt", "prompt_supervised", "optiprompt"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_saved_product_encodes_as_the_paper_does_at_inference(folders, tmp_path, name, family):
    objective = made(folders[family], name)
    product = objective.product().encoder
    saved = save_folder(product, product.folder, tmp_path / "saved")
    found = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS)
    template = (BERT if family == "bert" else ROBERTA)[0]
    expected = read(
        folders[family],
        template,
        TEXTS,
        denoise=name == "prompt_supervised",
        transform=(name, family) == ("prompt_supervised", "bert"),
    )
    if (name, family) == ("prompt_supervised", "roberta"):
        expected = objective.head(expected)
    np.testing.assert_allclose(found, expected.detach(), atol=2e-5)


@pytest.mark.parametrize("name", ["prompt", "prompt_supervised"])
def test_chunks_with_dropout_replay_the_empty_template_too(folders, name):
    """Compare with chunked passes that keep their graph: each chunk encodes the empty template with new
    dropout.
    """
    columns = {"text": TEXTS} if name == "prompt" else {"anchor": TEXTS, "positive": TEXTS[::-1]}
    objective, rows = made(folders["bert"], name, dropout=0.1).double(), batch(folders["bert"], **columns)
    torch.manual_seed(3)
    loss = loss_and_backward(objective, rows, chunk_rows=4).loss.total
    found = gradients(objective)
    torch.manual_seed(3)
    views, parts = objective.views(rows), []
    for rows_of_chunk in (np.arange(4), np.arange(4, 6)):
        tokens = [view.of_rows(rows_of_chunk).tokens for view in views]
        parts.append(views[0].encoder(type(tokens[0]).joined(tokens)).chunk(2))
    expected = objective.loss(tuple(map(torch.cat, zip(*parts, strict=True))), rows).total
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), atol=1e-12, rtol=0)
    assert_same(gradients(objective), found, 1e-10)


def test_both_templates_share_a_pass_with_one_empty_template_per_length(folders):
    objective, seen = made(folders["bert"], "prompt"), []
    objective.encoder.backbone.register_forward_hook(
        lambda module, inputs, output: seen.append(len(inputs[0].tokens))
    )
    loss_and_backward(objective, batch(folders["bert"], text=[*TEXTS, "Two dogs run on the grass."]))
    lengths = set(batch(folders["bert"], text=TEXTS).tokens("text").lengths.tolist())
    assert seen == [2 * 7 + 2 * len(lengths)]


@pytest.mark.parametrize("name", ["prompt", "prompt_supervised", "optiprompt"])
def test_a_limit_above_the_maximal_length_is_refused(folders, name):
    with pytest.raises(
        ConfigError, match=r"limit of the objective.*found 63, where encoder.max_length leaves room for 62"
    ):
        made(folders["bert"], name, limit=63)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", ["prompt", "prompt_supervised", "optiprompt"])
@pytest.mark.parametrize("max_length", [30, 64])
def test_without_a_limit_texts_are_read_as_far_as_the_encoder_reads(
    folders, tmp_path, family, name, max_length
):
    folder = open_folder(EncoderSettings(path=str(folders[family]), max_length=max_length))
    positions = positions_of(folder.config)
    encoder = OBJECTIVES[name](load_trainable(folder, dropout=0.0), limit=None).product().encoder
    assert encoder.folder.max_length == min(max_length - 2 + len(encoder.frame), positions)
    saved, long = save_folder(encoder, encoder.folder, tmp_path / "saved"), " ".join(20 * TEXTS)
    framed = encoder.framed(folder.tokenizer()([long]), encoder.frame)
    expected = encoder.eval()(framed).detach()
    product = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings())
    np.testing.assert_allclose(product.encode([long]), expected, atol=2e-5)
    assert saved.tokenizer()([long]).lengths == [saved.max_length]


def test_a_longer_second_template_leaves_fewer_positions_for_the_text(folders):
    templates = (BERT[0], f"{5 * 'This sentence '} : {BERT[1]}")
    objective, long = made(folders["bert"], "prompt", templates=templates, limit=None), " ".join(20 * TEXTS)
    views = objective.views(batch(folders["bert"], text=[long, *TEXTS]))
    assert {view.tokens.lengths.max() for view in views} == {positions_of(objective.encoder.folder.config)}
    loss_and_backward(objective, batch(folders["bert"], text=[long, *TEXTS]))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("a [MASK]", r"a template with \[X\] once"),
        ("[X]", r"one \[MASK\] around a text, found 0"),
        ("[X] [MASK] [MASK]", "found 2"),
    ],
)
def test_an_incomplete_template_is_refused(folders, second, message):
    with pytest.raises(ModelError, match=message):
        made(folders["bert"], "prompt", templates=(BERT[0], second))


def test_an_encoder_keeps_the_template_of_its_folder(folders, tmp_path):
    product = made(folders["bert"], "prompt").product().encoder
    saved = save_folder(product, product.folder, tmp_path / "saved")
    objective = made(saved.path, "prompt_supervised", readout="none", denoise=False)
    vectors = objective.product()(saved.tokenizer()(TEXTS))
    np.testing.assert_allclose(
        vectors.detach(),
        load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS),
        atol=1e-5,
    )
    rows = batch(saved.path, anchor=TEXTS, positive=TEXTS)
    np.testing.assert_array_equal(objective.views(rows)[0].tokens.ids, saved.tokenizer()(TEXTS).ids)


@pytest.mark.parametrize("name", ["promptbert-unsupervised", "promptbert-supervised", "optiprompt"])
def test_the_published_settings_train_an_encoder_that_can_be_saved_and_loaded(folders, tmp_path, name):
    job = load_settings(
        Job,
        CONFIGS / f"{name}.yaml",
        (
            f"encoder.path={folders['bert']}",
            "train.optimizer.learning_rate=0.003",
            "train.schedule.name=constant",
        ),
    )
    folder = open_folder(job.encoder)
    torch.manual_seed(0)
    objective = build_objective(job.train, load_trainable(folder, dropout=0.02))
    columns = dict.fromkeys((*objective.columns, *objective.optional), TEXTS) | (
        {"positive": TEXTS[::-1]} if "positive" in objective.columns else {}
    )
    rows, training = (
        replace(batch_of(columns), tokenize=folder.tokenizer()),
        Training(objective, job.train, steps=40, steps_per_epoch=40),
    )
    found = [float(step.loss.total) for step in fit(training, itertools.repeat(rows), until=40)]
    assert np.mean(found[-5:]) < 0.8 * np.mean(found[:5])
    product = objective.product()
    saved = save_folder(product.encoder, product.encoder.folder, tmp_path / "saved")
    assert (saved.max_length, saved.pooling) == (product.encoder.folder.max_length, ("mask",))
    with torch.no_grad():
        expected = product.encoder.eval()(saved.tokenizer()(TEXTS))
    np.testing.assert_allclose(
        load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS),
        expected,
        atol=2e-5,
    )


def test_a_sum_holds_the_encoder_once_and_every_trained_layer(folders):
    """A sum has the encoder once, and everything else that a term trains."""
    terms = (
        {"name": "prompt_supervised", "options": {"hard_negative_weight": 1.0}},
        {"name": "supervised", "weight": 0.5},
    )
    settings, path = TrainSettings(objective=terms), folders["bert"]
    torch.manual_seed(0)
    objective = build_objective(
        settings, load_trainable(open_folder(EncoderSettings(path=str(path))), dropout=0.0)
    ).double()
    rows = batch(path, anchor=TEXTS, positive=TEXTS[::-1], negative=[text.upper() for text in TEXTS])
    parts = [
        float(
            made(path, one["name"])
            .double()
            .loss(_vectors(made(path, one["name"]).double(), rows), rows)
            .total
        )
        for one in terms
    ]
    outcome, known = loss_and_backward(objective, rows), gradients(objective)
    assert float(outcome.loss.total) == pytest.approx(parts[0] + 0.5 * parts[1], abs=1e-9)
    assert sum(name.endswith("transform.dense.weight") for name in known) == 1
    assert len(objective.state_dict()) == len(
        {id(value) for value in objective.state_dict(keep_vars=True).values()}
    )
    loss_and_backward(objective, rows, chunk_rows=4)
    assert_same(gradients(objective), known, 1e-10)


def _vectors(objective: Objective, rows: Batch) -> tuple[torch.Tensor, ...]:
    return tuple(view.encode().detach() for view in objective.views(rows))


def test_adapters_are_refused_where_only_the_template_is_trained(folders):
    pytest.importorskip("peft")
    encoder = load_trainable(open_folder(EncoderSettings(path=str(folders["bert"]))))
    adapt(encoder, LoraSettings(rank=2))
    with pytest.raises(ConfigError, match=r"train.lora.rank: expected no adapters for optiprompt"):
        OBJECTIVES["optiprompt"](encoder)

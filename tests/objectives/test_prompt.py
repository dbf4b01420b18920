"""Prompt objectives: their losses, the trained model, and steps in chunks."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.models.folder.folder import open_folder
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
from tests.objectives.prompts import BERT_TEMPLATES, TEXTS, batch, build
from tests.objectives.tiny import assert_same, batch_of, pop_gradients

CONFIGS = Path(__file__).parents[2] / "jobs/configs/train"
ROBERTA_TEMPLATES = ("This sentence : '[X]' means [MASK].", "The sentence : '[X]' means [MASK].")


def vectors_of(
    path: Path, template: str, texts: list[str], denoise: bool, transform: bool = False
) -> torch.Tensor:
    """Encode texts in a template by its mask token, through the language model's transform if asked for."""
    encoder = load_trainable(open_folder(EncoderSettings(path=str(path))), dropout=0.0)
    readout = transform_of(encoder) if transform else None
    prompted = PromptedEncoder(encoder, template, limit=32, denoise=denoise, readout=readout)
    return prompted(prompted.folder.tokenizer()(texts))


def info_nce(texts: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """Compute the loss of picking candidate i for text i by cosines, at a temperature of 0.05."""
    logits = F.normalize(texts, dim=1) @ F.normalize(candidates, dim=1).T / 0.05
    return F.cross_entropy(logits, torch.arange(len(texts)))


def vectors_of_views(objective: Objective, rows: Batch) -> tuple[torch.Tensor, ...]:
    return tuple(view.encode().detach() for view in objective.views(rows))


def test_without_a_head_the_loss_is_defined_at_several_lengths(folders):
    settings = TrainSettings(objective={"name": "prompt", "options": {"head": "none"}}, matryoshka=(4, 8))
    encoder = load_trainable(open_folder(EncoderSettings(path=str(folders["bert"]))), dropout=0.0)
    objective, rows = build_objective(settings, encoder), batch(folders["bert"], text=TEXTS)
    first, second = (view.encode() for view in objective.views(rows))
    expected = sum(info_nce(first[:, :dim], second[:, :dim]) for dim in (4, 8))
    torch.testing.assert_close(objective.loss((first, second), rows).total, expected)


@pytest.mark.parametrize(("family", "templates"), [("bert", BERT_TEMPLATES), ("roberta", ROBERTA_TEMPLATES)])
@pytest.mark.parametrize("denoise", [True, False])
def test_the_unsupervised_loss_compares_two_templates_through_the_head(folders, family, templates, denoise):
    objective = build(folders[family], "prompt", denoise=denoise)
    first, second = (
        objective.head(vectors_of(folders[family], template, TEXTS, denoise)) for template in templates
    )
    outcome = loss_and_backward(objective, batch(folders[family], text=TEXTS))
    torch.testing.assert_close(outcome.loss.total, info_nce(first, second).detach(), atol=1e-4, rtol=0)


def test_the_supervised_loss_compares_mask_tokens_through_the_language_model_head(folders):
    objective = build(folders["bert"], "prompt_supervised")
    columns = {"anchor": TEXTS, "positive": TEXTS[::-1], "negative": [text.upper() for text in TEXTS]}
    anchors, positives, negatives = (
        vectors_of(folders["bert"], BERT_TEMPLATES[0], texts, True, transform=True)
        for texts in columns.values()
    )
    expected = info_nce(anchors, torch.cat([positives, negatives]))
    outcome = loss_and_backward(objective, batch(folders["bert"], **columns))
    torch.testing.assert_close(outcome.loss.total, expected.detach(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "has_transform"),
    [("bert", True), ("roberta", False), ("no language model head", False)],
)
def test_bert_uses_its_language_model_head_and_others_a_new_layer(folders, family, has_transform):
    objective = build(folders[family], "prompt_supervised")
    assert (objective.transform is not None, objective.head is not None) == (has_transform, not has_transform)
    assert not objective.warnings()


def test_the_transform_of_a_missing_language_model_head_is_warned_about(folders):
    objective = build(folders["no language model head"], "prompt_supervised", readout="transform")
    (warning,) = objective.warnings()
    assert "the encoder's folder has no language model head" in warning


@pytest.mark.parametrize("name", ["prompt", "prompt_supervised", "optiprompt"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_saved_encoder_encodes_as_the_paper_does_at_inference(folders, tmp_path, name, family):
    objective = build(folders[family], name)
    trained_model = objective.trained_model().encoder
    saved = save_folder(trained_model, trained_model.folder, tmp_path / "saved")
    found = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS)
    template = (
        ROBERTA_TEMPLATES[0] if family == "roberta" else BERT_TEMPLATES[1 if name == "optiprompt" else 0]
    )
    expected = vectors_of(
        folders[family],
        template,
        TEXTS,
        denoise=name == "prompt_supervised",
        transform=(name, family) == ("prompt_supervised", "bert"),
    )
    if (name, family) == ("prompt_supervised", "roberta"):
        expected = objective.head(expected)
    np.testing.assert_allclose(found, expected.detach(), atol=2e-5)


@pytest.mark.parametrize(("family", "has_transform"), [("bert", True), ("roberta", False)])
def test_a_supervised_model_can_be_saved_without_denoising(folders, tmp_path, family, has_transform):
    template = ROBERTA_TEMPLATES[0] if family == "roberta" else BERT_TEMPLATES[0]
    kept, dropped = (
        build(folders[family], "prompt_supervised", keep_denoise=keep_denoise)
        for keep_denoise in (True, False)
    )
    rows = batch(folders[family], anchor=TEXTS, positive=TEXTS[::-1])
    for expected, found in zip(vectors_of_views(kept, rows), vectors_of_views(dropped, rows), strict=True):
        assert torch.equal(found, expected)  # the training denoises in either case
    trained_model = dropped.trained_model().encoder
    saved = save_folder(trained_model, trained_model.folder, tmp_path / "saved")
    found = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS)
    expected = vectors_of(folders[family], template, TEXTS, denoise=False, transform=has_transform)
    if not has_transform:
        expected = dropped.head(expected)
    np.testing.assert_allclose(found, expected.detach(), atol=2e-5)
    denoised = kept.trained_model().encoder(trained_model.folder.tokenizer()(TEXTS))
    assert (expected - denoised).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["prompt", "prompt_supervised"])
def test_chunks_with_dropout_replay_the_empty_template_too(folders, name):
    """Compare with one graph over the passes of all chunks, each with its own masks of the empty template."""
    columns = {"text": TEXTS} if name == "prompt" else {"anchor": TEXTS, "positive": TEXTS[::-1]}
    objective, rows = build(folders["bert"], name, dropout=0.1).double(), batch(folders["bert"], **columns)
    torch.manual_seed(3)
    loss = loss_and_backward(objective, rows, chunk_rows=4).loss.total
    found = pop_gradients(objective)
    torch.manual_seed(3)
    views, parts = objective.views(rows), []
    for rows_of_chunk in (np.arange(4), np.arange(4, 6)):
        tokens = [view.of_rows(rows_of_chunk).tokens for view in views]
        parts.append(views[0].encoder(type(tokens[0]).joined(tokens)).chunk(2))
    expected = objective.loss(tuple(map(torch.cat, zip(*parts, strict=True))), rows).total
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), atol=1e-12, rtol=0)
    assert_same(pop_gradients(objective), found, 1e-10)


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
    columns = dict.fromkeys((*objective.columns, *objective.optional), TEXTS)
    if "positive" in columns:
        columns["positive"] = TEXTS[::-1]
    rows = replace(batch_of(columns), tokenize=folder.tokenizer())
    training = Training(objective, job.train, steps=40, steps_per_epoch=40)
    losses = [float(step.loss.total) for step in fit(training, itertools.repeat(rows), until=40)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    encoder = objective.trained_model().encoder
    saved = save_folder(encoder, encoder.folder, tmp_path / "saved")
    assert (saved.max_length, saved.pooling) == (encoder.folder.max_length, ("mask",))
    with torch.no_grad():
        expected = encoder.eval()(saved.tokenizer()(TEXTS))
    found = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_sum_holds_the_encoder_once_and_every_trained_layer(folders):
    terms = (
        {"name": "prompt_supervised", "options": {"hard_negative_weight": 1.0}},
        {"name": "supervised", "weight": 0.5},
    )
    settings, path = TrainSettings(objective=terms), folders["bert"]
    torch.manual_seed(0)
    encoder = load_trainable(open_folder(EncoderSettings(path=str(path))), dropout=0.0)
    objective = build_objective(settings, encoder).double()
    rows = batch(path, anchor=TEXTS, positive=TEXTS[::-1], negative=[text.upper() for text in TEXTS])
    alone = [build(path, term["name"]).double() for term in terms]
    losses = [float(each.loss(vectors_of_views(each, rows), rows).total) for each in alone]
    outcome, known = loss_and_backward(objective, rows), pop_gradients(objective)
    assert float(outcome.loss.total) == pytest.approx(losses[0] + 0.5 * losses[1], abs=1e-9)
    assert sum(name.endswith("transform.dense.weight") for name in known) == 1
    state = objective.state_dict(keep_vars=True)
    assert len({id(value) for value in state.values()}) == len(state)
    loss_and_backward(objective, rows, chunk_rows=4)
    assert_same(pop_gradients(objective), known, 1e-10)


def test_adapters_are_refused_where_only_the_template_is_trained(folders):
    pytest.importorskip("peft")
    encoder = load_trainable(open_folder(EncoderSettings(path=str(folders["bert"]))))
    adapt(encoder, LoraSettings(rank=2))
    with pytest.raises(ConfigError, match=r"train.lora.rank: expected no adapters for optiprompt"):
        OBJECTIVES["optiprompt"](encoder)

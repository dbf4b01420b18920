"""Templates of prompt objectives: the room that they leave for a text, and the template of a saved folder."""

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.folder import open_folder, positions_of
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_folder
from pipeline.objectives import OBJECTIVES
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.prompts import BERT_TEMPLATES, TEXTS, batch, build


def test_both_templates_share_a_pass_with_one_empty_template_per_length(folders):
    objective, texts_per_pass = build(folders["bert"], "prompt"), []
    objective.encoder.backbone.register_forward_hook(
        lambda module, inputs, output: texts_per_pass.append(len(inputs[0].tokens))
    )
    rows = batch(folders["bert"], text=[*TEXTS, TEXTS[0]])
    loss_and_backward(objective, rows)
    lengths = set(rows.tokens("text").lengths.tolist())
    assert len(lengths) < len(rows)
    assert texts_per_pass == [2 * len(rows) + 2 * len(lengths)]


@pytest.mark.parametrize(
    ("family", "template"),
    [("bert", 'This sentence : "[X]" means [MASK].'), ("roberta", "This sentence : '[X]' means [MASK].")],
)
def test_a_continuous_template_starts_as_the_words_of_the_papers_template(folders, family, template):
    words = build(folders[family], "optiprompt").trained_model().encoder.words
    tokenizer = open_folder(EncoderSettings(path=str(folders[family]), template=template)).tokenizer()
    _, *inner, _ = tokenizer([""]).ids.tolist()
    ids = [token for token in inner if token != tokenizer.vocabulary()["[MASK]"]]
    assert torch.equal(words.added, words.weight[ids])


@pytest.mark.parametrize("name", ["prompt", "prompt_supervised", "optiprompt"])
def test_a_limit_above_the_maximal_length_is_refused(folders, name):
    with pytest.raises(
        ConfigError, match=r"limit of the objective.*found 63, where encoder.max_length leaves room for 62"
    ):
        build(folders["bert"], name, limit=63)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", ["prompt", "prompt_supervised", "optiprompt"])
@pytest.mark.parametrize("max_length", [30, 64])
def test_without_a_limit_texts_are_truncated_at_the_maximal_length_of_the_encoder(
    folders, tmp_path, family, name, max_length
):
    folder = open_folder(EncoderSettings(path=str(folders[family]), max_length=max_length))
    positions = positions_of(folder.config)
    encoder = OBJECTIVES[name](load_trainable(folder, dropout=0.0), limit=None).trained_model().encoder
    assert encoder.folder.max_length == min(max_length - 2 + len(encoder.frame), positions)
    saved, long = save_folder(encoder, encoder.folder, tmp_path / "saved"), " ".join(20 * TEXTS)
    framed = encoder.put_into(folder.tokenizer()([long]), encoder.frame)
    expected = encoder.eval()(framed).detach()
    found = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode([long])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert saved.tokenizer()([long]).lengths == [saved.max_length]


def test_a_longer_second_template_leaves_fewer_positions_for_the_text(folders):
    templates = (BERT_TEMPLATES[0], f"{5 * 'A man '} : {BERT_TEMPLATES[1]}")
    objective = build(folders["bert"], "prompt", templates=templates, limit=None)
    rows = batch(folders["bert"], text=[" ".join(20 * TEXTS), *TEXTS])
    positions = positions_of(objective.encoder.folder.config)
    assert [view.tokens.lengths.max() for view in objective.views(rows)] == [positions, positions]
    assert torch.isfinite(loss_and_backward(objective, rows).loss.total)


@pytest.mark.parametrize("longer", [0, 1])
def test_a_template_without_room_for_a_text_is_refused(folders, longer):
    templates = [*BERT_TEMPLATES]
    templates[longer] = f"{70 * 'a '} {BERT_TEMPLATES[longer]}"
    with pytest.raises(ModelError, match="fewer tokens than the 66 positions of the model, found a template"):
        build(folders["bert"], "prompt", templates=tuple(templates), limit=None)


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
        build(folders["bert"], "prompt", templates=(BERT_TEMPLATES[0], second))


def test_an_encoder_keeps_the_template_of_its_folder(folders, tmp_path):
    first = build(folders["bert"], "prompt").trained_model().encoder
    saved = save_folder(first, first.folder, tmp_path / "saved")
    objective = build(saved.path, "prompt_supervised", readout="none", denoise=False)
    found = objective.trained_model()(saved.tokenizer()(TEXTS)).detach()
    expected = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    rows = batch(saved.path, anchor=TEXTS, positive=TEXTS)
    np.testing.assert_array_equal(objective.views(rows)[0].tokens.ids, saved.tokenizer()(TEXTS).ids)

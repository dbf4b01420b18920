"""Vectors at the mask of a template equal those of transformers, with and without denoising, and a saved
encoder gives the same vectors.
"""

import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.locate import locate
from pipeline.models.layers.post_pooling import TanhHead
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.prompted import PromptedEncoder, remove_texts, transform_of
from pipeline.models.trainable.saving import save_folder
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.templates import apply_template
from tests.models.folders import (
    FAMILIES,
    LONG,
    TEXTS,
    add_noise,
    edit_json,
    encoder_at,
    folder_at,
    folder_of_language_model,
)

TEMPLATE = 'This sentence of "[X]" means [MASK].'
ALL = [*TEXTS, LONG, "a [MASK] b [MASK] c"]
TEXT_TOKENS = 12  # limit of a text inside the template


def encoded(path, texts=ALL, **changes) -> np.ndarray:
    """Encode texts with the encoder of a folder."""
    return encoder_at(path, **changes).encode(texts)


def parts(path, template: str) -> tuple[list[int], list[int]]:
    """Return the ids before and after a text, special tokens included, by the tokenizer of transformers."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    before, behind = (
        tokenizer(part, add_special_tokens=False)["input_ids"]
        for part in template.replace("[MASK]", tokenizer.mask_token).split("[X]")
    )
    return [tokenizer.cls_token_id, *before], [*behind, tokenizer.sep_token_id]


def at_mask(path, texts, template: str, limit: int = TEXT_TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute h and h_hat, each (n, d), with transformers and one text at a time.

    h_hat is the state at the mask of the template without the text, whose tokens keep the positions that they
    have with it.
    """
    prefix, suffix = parts(path, template)
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    offset = 2 if model.config.model_type in ("roberta", "xlm-roberta", "mpnet") else 0
    mask_from_end = suffix[::-1].index(tokenizer.mask_token_id) + 1
    full, alone = [], []
    for text in texts:
        inner = tokenizer(text, add_special_tokens=False)["input_ids"][:limit]
        positions = [
            *range(len(prefix)),
            *range(len(prefix) + len(inner), len(prefix) + len(inner) + len(suffix)),
        ]
        with torch.no_grad():
            full.append(model(torch.tensor([prefix + inner + suffix])).last_hidden_state[0, -mask_from_end])
            alone.append(
                model(
                    torch.tensor([prefix + suffix]), position_ids=torch.tensor([positions]) + offset
                ).last_hidden_state[0, -mask_from_end]
            )
    return torch.stack(full), torch.stack(alone)


def prompted(folder, template=TEMPLATE, **options) -> PromptedEncoder:
    """Load a trainable encoder in a template, without dropout and with denoising."""
    return PromptedEncoder(
        load_trainable(folder, dropout=0.0), template, limit=TEXT_TOKENS, **{"denoise": True} | options
    )


def perturbed(encoder: PromptedEncoder) -> PromptedEncoder:
    """Add noise to all parameters, and switch to eval()."""
    torch.manual_seed(0)
    add_noise(encoder, 0.02)
    return encoder.eval()


def test_tokens_of_an_empty_template_keep_their_positions():
    path = locate("all-MiniLM-L6-v2")
    tokenizer = apply_template(load_tokenizer(path, 20), path, TEMPLATE, masked=True)
    tokens = tokenizer(["two dogs run", "", "one two three"])
    empty, positions, template_of_text = remove_texts(tokens)
    assert template_of_text.tolist() == [0, 1, 0], "texts of one length share a template"
    assert len(empty) == 2
    assert (tokens.lengths[0], np.flatnonzero(tokens.kept)[0]) == (13, 10)
    of_three_words, of_no_word = np.split(positions, empty.offsets[1:-1])
    assert of_three_words.tolist() == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12]
    assert of_no_word.tolist() == list(range(10))
    assert np.flatnonzero(empty.kept)[0] == 7
    assert positions[empty.kept].tolist() == [10, 7], "the position of the mask in both templates"
    np.testing.assert_array_equal(empty.of_rows(np.array([1])).ids, tokens.of_rows(np.array([1])).ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mask_of_a_template_equals_transformers_for_every_text(folders, family):
    around = sum(map(len, parts(folders[family], TEMPLATE)))
    vectors = encoded(folders[family], template=TEMPLATE, max_length=TEXT_TOKENS + around)
    np.testing.assert_allclose(vectors, at_mask(folders[family], ALL, TEMPLATE)[0], atol=1e-5)
    np.testing.assert_array_equal(
        encoded(folders[family], ALL[:3], template=TEMPLATE, max_length=TEXT_TOKENS + around), vectors[:3]
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
@pytest.mark.parametrize("template", [TEMPLATE, "It was said [X] : [MASK]"])
def test_denoised_vectors_equal_the_difference_of_two_passes(folders, family, template):
    encoder = prompted(folder_at(folders[family]), template)
    full, alone = at_mask(folders[family], ALL, template)
    vectors = encoder(encoder.folder.tokenizer()(ALL))
    torch.testing.assert_close(vectors, full - alone, atol=1e-5, rtol=0)
    assert vectors[TEXTS.index("")].abs().max() < 1e-5, "the empty text in its template is the empty template"
    assert (vectors.norm(dim=1) > 0.1).sum() == len(ALL) - 1


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_texts_in_different_templates_can_share_a_pass(folders, family):
    encoder, other = prompted(folder_at(folders[family])), "So [X] means [MASK] then."
    plain = folder_at(folders[family]).tokenizer()(ALL)
    tokens = [encoder.put_into(plain, frame) for frame in (encoder.frame, encoder.frame_of(other))]
    together = encoder(type(plain).joined(tokens))
    for template, vectors in zip((TEMPLATE, other), together.chunk(2), strict=True):
        full, alone = at_mask(folders[family], ALL, template)
        torch.testing.assert_close(vectors, full - alone, atol=1e-5, rtol=0)


def test_the_gradient_includes_the_empty_template(folders, tmp_path):
    encoder, path = prompted(folder_at(folders["bert"])), folders["bert"]
    direction = torch.randn(len(ALL), encoder.dim, generator=torch.Generator().manual_seed(1))
    (encoder(encoder.folder.tokenizer()(ALL)) * direction).sum().backward()
    bias = encoder.backbone.get_parameter("embeddings.LayerNorm.bias")
    gradient, model, step = bias.grad.clone(), AutoModel.from_pretrained(path), 2e-2
    values = []
    for sign in (1, -1):
        moved_path = shutil.copytree(path, tmp_path / f"bumped{sign}")
        with torch.no_grad():
            model.embeddings.LayerNorm.bias[7] += sign * step
            model.save_pretrained(moved_path)
            model.embeddings.LayerNorm.bias[7] -= sign * step
        full, alone = at_mask(moved_path, ALL, TEMPLATE)
        values.append(((full - alone) * direction).sum().item())
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(gradient[7].item(), rel=3e-2, abs=1e-2)


def test_dropout_is_active_for_texts_and_for_the_empty_template(folders):
    encoder = PromptedEncoder(
        load_trainable(folder_at(folders["bert"]), dropout=0.1), TEMPLATE, limit=TEXT_TOKENS, denoise=True
    ).train()
    tokens = encoder.folder.tokenizer()(100 * [""])
    first, second = encoder(tokens), encoder(tokens)
    deviation = first.std(dim=0).mean()
    assert deviation > 1e-2, "dropout differs between the texts"
    # the texts of a call share one empty template, whose dropout shifts all of their vectors
    assert (first.mean(dim=0) - second.mean(dim=0)).abs().mean() > 0.5 * deviation
    assert encoder.eval()(tokens).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
@pytest.mark.parametrize("kind", ["plain", "denoised", "transform", "head"])
def test_the_saved_folder_gives_the_vectors_of_the_encoder(folders, tmp_path, family, kind):
    path = (
        folder_of_language_model(tmp_path / "lm", family=family) if kind == "transform" else folders[family]
    )
    folder = folder_at(path, normalize=kind == "head")
    source = load_trainable(folder)
    options = (
        {"denoise": kind != "plain"}
        | ({"readout": transform_of(source)} if kind == "transform" else {})
        | ({"readout": TanhHead(48)} if kind == "head" else {})
    )
    encoder = perturbed(PromptedEncoder(source, TEMPLATE, limit=TEXT_TOKENS, **options))
    expected = encoder(encoder.folder.tokenizer()(ALL)).detach()
    saved = save_folder(encoder, encoder.folder, tmp_path / "saved")
    assert (saved.pooling, saved.max_length, saved.normalize) == (
        ("mask",),
        TEXT_TOKENS + sum(map(len, parts(path, TEMPLATE))),
        kind == "head",
    )
    np.testing.assert_allclose(encoded(saved.path), expected, atol=2e-5)
    again = load_trainable(saved).eval()
    np.testing.assert_allclose(again(saved.tokenizer()(ALL)).detach(), expected, atol=2e-5)
    twice = save_folder(again, saved, tmp_path / "twice")
    assert twice.space_id == saved.space_id != folder.space_id
    with pytest.raises(ValueError, match="trust_remote_code"):  # the library has no mask pooling of its own
        SentenceTransformer(str(saved.path), device="cpu")
    library = SentenceTransformer(str(saved.path), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(library.encode(ALL), expected, atol=2e-5)
    library.save_pretrained(str(tmp_path / "saved by the library"))
    np.testing.assert_allclose(encoded(tmp_path / "saved by the library"), expected, atol=2e-5)


def test_a_saved_encoder_with_denoising_refuses_longer_texts_and_other_poolings(folders, tmp_path):
    encoder = prompted(folder_at(folders["bert"]))
    saved = save_folder(encoder, encoder.folder, tmp_path / "saved")
    np.testing.assert_allclose(
        encoded(saved.path, TEXTS[1:3], max_length=saved.max_length - 1),
        encoded(saved.path, TEXTS[1:3]),
        atol=1e-5,
    )
    with pytest.raises(ModelError, match=f"expected at most {saved.max_length}, the longest text"):
        encoded(saved.path, max_length=saved.max_length + 1)
    with pytest.raises(ModelError, match="mask, the pooling that the folder's Denoise module belongs to"):
        folder_at(saved.path, pooling="mean")
    assert folder_at(saved.path, max_length=20).space_id != saved.space_id
    edit_json(saved.path / "2_Denoise" / "config.json", shortest=None)
    with pytest.raises(ModelError, match="width, activation, epsilon and shortest"):
        folder_at(saved.path)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_mean_pooling_over_a_template_equals_sentence_transformers(folders, tmp_path, family):
    folder = folder_at(folders[family], template=TEMPLATE, pooling="mean", max_length=50)
    saved = save_folder(load_trainable(folder).eval(), folder, tmp_path / "saved")
    vectors = encoded(folders[family], template=TEMPLATE, pooling="mean", max_length=50)
    np.testing.assert_allclose(encoded(saved.path), vectors, atol=1e-5)
    np.testing.assert_allclose(
        SentenceTransformer(str(saved.path), device="cpu").encode(ALL), vectors, atol=1e-5
    )
    assert np.abs(encoded(folders[family], pooling="mean", max_length=50) - vectors).max() > 1e-2


def test_sentence_transformers_reads_a_saved_template_with_any_class_of_tokenizer(tmp_path):
    assert "BertTokenizer" in (locate("all-MiniLM-L6-v2") / "tokenizer_config.json").read_text()
    folder = folder_at("all-MiniLM-L6-v2", template=TEMPLATE, pooling="mean", max_length=64)
    saved = save_folder(load_trainable(folder).eval(), folder, tmp_path / "saved")
    expected = encoded("all-MiniLM-L6-v2", template=TEMPLATE, pooling="mean", max_length=64)
    np.testing.assert_allclose(
        SentenceTransformer(str(saved.path), device="cpu").encode(ALL), expected, atol=1e-5
    )


def test_templates_and_ensured_final_punctuation_are_part_of_the_space(folders, tmp_path):
    different = (
        {},
        {"template": TEMPLATE},
        {"template": "[X] [MASK]"},
        {"ensure_final_punctuation": True},
    )
    assert len({folder_at(folders["bert"], **changes).space_id for changes in different}) == 4


def test_final_punctuation_is_ensured_also_by_a_saved_encoder(folders, tmp_path):
    np.testing.assert_allclose(
        encoded(folders["bert"], ["Two dogs run"], ensure_final_punctuation=True),
        encoded(folders["bert"], ["Two dogs run."]),
        atol=1e-6,
    )
    folder = folder_at(folders["bert"], ensure_final_punctuation=True)
    saved = save_folder(load_trainable(folder), folder, tmp_path / "saved")
    assert saved.ends_sentences
    with pytest.raises(TypeError, match="ensure_final_punctuation"):
        SentenceTransformer(str(saved.path), device="cpu")
    np.testing.assert_allclose(
        encoded(saved.path, ["Two dogs run"]), encoded(saved.path, ["Two dogs run."]), atol=1e-6
    )


def test_hidden_states_of_a_prompted_encoder_cover_all_tokens(folders):
    hidden = encoder_at(folders["bert"], template=TEMPLATE).hidden_states()
    tokens = hidden.tokens(TEXTS[:2])
    assert sum(states.layers[0].shape[0] for states in hidden.states(tokens)) == len(tokens.ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "mask"}, r"one \[MASK\] around a text, found 0; give encoder.template"),
        ({"pooling": "mask+mean", "template": TEMPLATE}, "mask alone"),
        (
            {"template": TEMPLATE, "pooling": "mean", "exclude": ("case",)},
            "an empty list with encoder.template",
        ),
        ({"template": TEMPLATE, "exclude": ("case",)}, "an empty list with encoder.template"),
    ],
)
def test_incompatible_settings_are_refused(folders, changes, message):
    with pytest.raises(ModelError, match=message):
        encoded(folders["bert"], **changes)


def test_limits_above_that_of_the_encoder_are_refused(folders):
    with pytest.raises(ConfigError, match=r"found 12, where encoder.max_length leaves room for 8"):
        prompted(folder_at(folders["bert"], max_length=10))
    with pytest.raises(
        ModelError, match=r"at most the 66 positions of the model, found 8. with the template"
    ):
        PromptedEncoder(load_trainable(folder_at(folders["bert"])), TEMPLATE, limit=62, denoise=True)

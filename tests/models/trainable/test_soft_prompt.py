"""A soft prompt starts as the words of a manual template, is all that is trained, and is saved as new words
of the vocabulary.
"""

import numpy as np
import pytest
import tokenizers
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from pipeline.errors import ModelError
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.models.trainable.saving import save_folder
from pipeline.models.trainable.soft_prompt import LearnedTemplate, LearnedWords
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import LONG, TEXTS, folder_at

TEMPLATE = 'This sentence of "[X]" means [MASK].'
ALL = [*TEXTS, LONG, "a [MASK] b [template 0]"]


def learned(path) -> LearnedTemplate:
    """Load a frozen encoder, and make the words of TEMPLATE trainable."""
    encoder = load_trainable(folder_at(path), dropout=0.0)
    encoder.requires_grad_(False)
    return LearnedTemplate(encoder, TEMPLATE, limit=12)


def vectors(encoder, texts=ALL) -> torch.Tensor:
    return encoder(encoder.folder.tokenizer()(texts))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet"])
def test_a_soft_prompt_starts_as_the_manual_template(folders, family):
    expected = vectors(
        PromptedEncoder(
            load_trainable(folder_at(folders[family]), dropout=0.0), TEMPLATE, limit=12, denoise=False
        )
    )
    torch.testing.assert_close(vectors(learned(folders[family])), expected, atol=1e-5, rtol=0)


def test_only_prompt_vectors_are_trained_and_words_of_texts_are_unchanged(folders):
    encoder = learned(folders["bert"])
    assert [name for name, parameter in encoder.named_parameters() if parameter.requires_grad] == [
        "backbone.embeddings.word_embeddings.added"
    ]
    vectors(encoder).square().sum().backward()
    added = encoder.words.added
    assert added.shape == (encoder.free_vectors, 48)
    assert (added.grad.abs().sum(1) > 0).all()
    before = vectors(encoder).detach()
    with torch.no_grad():
        added.mul_(-1.0)
    assert (vectors(encoder) - before).abs().max() > 0.1
    ids = folder_at(folders["bert"]).tokenizer()(["This sentence means"]).ids
    torch.testing.assert_close(encoder.words(torch.from_numpy(ids).long()), encoder.words.weight[ids])


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_saved_folder_has_new_words_and_equals_the_encoder_and_transformers(folders, tmp_path, family):
    encoder = learned(folders[family])
    torch.manual_seed(0)
    with torch.no_grad():
        encoder.words.added.add_(torch.randn_like(encoder.words.added))
    expected = vectors(encoder.eval(), TEXTS).detach()
    saved = save_folder(encoder, encoder.folder, tmp_path / "saved")
    found = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(ALL)
    np.testing.assert_allclose(found[: len(TEXTS)], expected, atol=1e-5)
    before, after = (
        tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab()
        for path in (folders[family], saved.path)
    )
    assert len(after) == len(before) + encoder.free_vectors
    assert set(after) - set(before) == {f"[template {number}]" for number in range(encoder.free_vectors)}
    library = SentenceTransformer(str(saved.path), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(library.encode(ALL), found, atol=1e-5)
    tokenizer, model = AutoTokenizer.from_pretrained(saved.path), AutoModel.from_pretrained(saved.path).eval()
    with torch.no_grad():
        ids = tokenizer(TEXTS[0], truncation=True, max_length=saved.max_length, return_tensors="pt")[
            "input_ids"
        ]
        at = ids[0].tolist().index(tokenizer.mask_token_id)
        np.testing.assert_allclose(model(ids).last_hidden_state[0, at], expected[0], atol=1e-5)


def test_a_second_template_shares_the_prompt_vectors(folders):
    encoder = load_trainable(folder_at(folders["bert"]))
    first, second = (LearnedTemplate(encoder, TEMPLATE, limit=12) for _ in range(2))
    assert isinstance(encoder.backbone.get_submodule("embeddings.word_embeddings"), LearnedWords)
    assert first.words is second.words


def test_a_padded_architecture_is_refused(folders):
    with pytest.raises(ModelError, match=r"packed-family .*for a template of free vectors, found electra"):
        learned(folders["electra"])

"""The head of a masked language model is that of transformers, under the names that each family gives it."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForMaskedLM

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.mlm_head import has_language_head, load_language_head
from pipeline.models.trainable.saving import SavedHeads
from pipeline.models.trainable.saving import save_folder as save_encoder
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.tokens import Tokens
from tests.models.folders import TEXTS, add_noise, folder_of_language_model, save_folder


def opened(path) -> TrainableEncoder:
    """Load a trainable encoder without dropout."""
    return load_trainable(open_folder(EncoderSettings(path=str(path))), dropout=0.0)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "electra"])
def test_logits_equal_those_of_the_padded_model(tmp_path, family):
    path = folder_of_language_model(tmp_path / family, family=family)
    model = AutoModelForMaskedLM.from_pretrained(path)
    add_noise(model, 0.1)
    model.eval().save_pretrained(path)
    encoder = opened(path)
    assert has_language_head(encoder)
    head, tokens = load_language_head(encoder), load_tokenizer(path, 64)(TEXTS)
    logits = head(encoder.states(tokens), encoder.backbone.word_table)
    torch.testing.assert_close(logits, logits_of_transformers(path, tokens), atol=2e-4, rtol=1e-4)


def logits_of_transformers(path: Path, tokens: Tokens) -> torch.Tensor:
    """Compute the logits (tokens, vocabulary) with the padded model of transformers."""
    model = AutoModelForMaskedLM.from_pretrained(path).eval()
    rows = torch.nn.utils.rnn.pad_sequence(
        list(torch.from_numpy(tokens.ids).long().split(tokens.lengths.tolist())),
        True,
        model.config.pad_token_id,
    )
    mask = torch.arange(rows.shape[1]) < torch.from_numpy(tokens.lengths)[:, None]
    return model(input_ids=rows, attention_mask=mask.long()).logits[mask]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "electra", "without a head"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_trained_head_is_saved_where_transformers_finds_it(tmp_path, family, tied):
    source = (
        save_folder(tmp_path / "bare", "bert")
        if family == "without a head"
        else folder_of_language_model(tmp_path / family, family=family)
    )
    encoder = opened(source)
    head = load_language_head(encoder, tied=tied)
    add_noise(encoder, 0.1)
    add_noise(head, 0.1)
    saved = save_encoder(encoder, encoder.folder, tmp_path / "saved", SavedHeads(language_head=head))
    tokens = load_tokenizer(source, 64)(TEXTS)
    expected = head(encoder.states(tokens), encoder.backbone.word_table)
    torch.testing.assert_close(logits_of_transformers(saved.path, tokens), expected, atol=2e-4, rtol=1e-4)
    again = opened(saved.path)
    loaded = load_language_head(again, tied=tied).state_dict()
    assert loaded.keys() == head.state_dict().keys()
    assert ("table" in loaded) == (not tied)
    for name, value in head.state_dict().items():
        assert torch.equal(loaded[name], value)
    torch.testing.assert_close(again(tokens), encoder(tokens))


def test_an_untied_output_table_starts_as_a_copy_of_the_word_table(folders):
    encoder = opened(folders["bert"])
    head = load_language_head(encoder, tied=False)
    assert torch.equal(head.table, encoder.backbone.word_table)
    assert head.table.data_ptr() != encoder.backbone.word_table.data_ptr()


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "electra"])
def test_an_incomplete_head_is_refused(tmp_path, family):
    path = folder_of_language_model(tmp_path / family, family=family)
    tensors = load_file(path / "model.safetensors")
    prefixes = ("cls.", "lm_head.", "vocab_", "generator_")
    head_tensors = [name for name in tensors if name.startswith(prefixes) and "decoder" not in name]
    assert len(head_tensors) == 5
    for missing in head_tensors:
        others = {name: tensor for name, tensor in tensors.items() if name != missing}
        save_file(others, path / "model.safetensors", {"format": "pt"})
        encoder = opened(path)
        assert has_language_head(encoder)
        with pytest.raises(
            ModelError, match=r"the 5 tensors of the model, found 1 missing: .*\.(weight|bias)"
        ):
            load_language_head(encoder)


@pytest.mark.parametrize("gone", ["weight", "bias"])
def test_an_incomplete_cls_mlp_layer_is_refused(tmp_path, gone):
    path = save_folder(tmp_path / "bert", "bert")
    tensors = load_file(path / "model.safetensors")
    del tensors[f"pooler.dense.{gone}"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    settings = EncoderSettings(path=str(path), pooling="cls_mlp")
    for load in (lambda: load_encoder(settings), lambda: load_trainable(open_folder(settings))):
        with pytest.raises(ModelError, match=rf"found 1 missing: pooler\.dense\.{gone}"):
            load()


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_an_encoder_without_a_head_gets_a_new_one_that_shares_its_word_table(folders, family):
    encoder = opened(folders[family])
    assert not has_language_head(encoder)
    head, tokens = load_language_head(encoder), load_tokenizer(folders[family], 64)(TEXTS)
    logits = head(encoder.states(tokens), encoder.backbone.word_table)
    assert logits.shape == (len(tokens.ids), 300)
    logits.logsumexp(1).sum().backward()
    assert encoder.backbone.word_table.grad.abs().max() > 0
    assert head.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)

"""Reading the mask token as words equals a computation with the masked language model of transformers."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pipeline.device import resolve
from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.mask_words import MaskReader
from pipeline.settings import EncoderSettings
from tests.models.folders import folder_of_language_model, save_folder

TEMPLATE = 'This sentence : "[X]" means [MASK].'
# without "": its denoised state is zero, so that its words tie
SENTENCES = ["Two dogs run.", "A girl reads a book on the grass.", "a [MASK] b", "x " * 90]
TOP_K = 20


def untied(folder):
    """Replace the output table, which is shared with the words, by a random one with a random bias."""
    model = AutoModelForMaskedLM.from_pretrained(folder)
    model.config.tie_word_embeddings = False
    generator = torch.Generator().manual_seed(3)
    for parameter in ("weight", "bias"):
        drawn = torch.randn(getattr(model.cls.predictions.decoder, parameter).shape, generator=generator)
        setattr(model.cls.predictions.decoder, parameter, torch.nn.Parameter(drawn))
    model.cls.predictions.bias = torch.nn.Parameter(model.cls.predictions.decoder.bias.detach().clone())
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["tied", "untied"])
def folder(request, tmp_path_factory):
    tied = folder_of_language_model(tmp_path_factory.mktemp("encoders") / "bert")
    return tied if request.param == "tied" else untied(tied)


def reader_of(folder, top_k=TOP_K, template=TEMPLATE) -> MaskReader:
    settings = EncoderSettings(path=str(folder), template=template)
    return MaskReader(open_folder(settings), resolve("cpu"), top_k)


def reference(folder, text):
    """Read one text with BertForMaskedLM.

    Returns h, h_hat, and two pairs (mean of the vectors of the most probable words, their ids): without and
    with denoising.
    """
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    assert (table.data_ptr() == output.weight.data_ptr()) == model.config.tie_word_embeddings
    before, behind = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in TEMPLATE.split("[X]")
    )
    prefix, suffix = [tokenizer.cls_token_id, *before], [*behind, tokenizer.sep_token_id]
    limit = 64 - len(prefix) - len(suffix)
    inner = tokenizer(text, add_special_tokens=False)["input_ids"][:limit]
    mask_from_end = suffix[::-1].index(tokenizer.mask_token_id) + 1
    after = len(prefix) + len(inner)
    positions = torch.tensor([[*range(len(prefix)), *range(after, after + len(suffix))]])
    h = model.bert(torch.tensor([prefix + inner + suffix])).last_hidden_state[0, -mask_from_end]
    h_hat = model.bert(torch.tensor([prefix + suffix]), position_ids=positions).last_hidden_state
    transform = model.cls.predictions.transform
    vectors = []
    for transformed in (transform(h), transform(h) - transform(h_hat[0, -mask_from_end])):
        p, ids = output(transformed)[: len(tokenizer)].softmax(dim=-1).topk(TOP_K)
        vectors.append(((p[:, None] * table[ids]).sum(dim=0) / p.sum(), ids))
    return h, h_hat[0, -mask_from_end], *vectors


@torch.no_grad()
def test_readings_equal_those_of_the_reference_model(folder):
    readings = reader_of(folder).read(SENTENCES)
    for row, text in enumerate(SENTENCES):
        h, h_hat, (words, ids), (denoised, denoised_ids) = reference(folder, text)
        np.testing.assert_allclose(readings.states[row], h, atol=2e-5)
        np.testing.assert_allclose(readings.denoised_states[row], h - h_hat, atol=2e-5)
        np.testing.assert_allclose(readings.words[row], words, atol=2e-5)
        np.testing.assert_allclose(readings.denoised_words[row], denoised, atol=2e-5)
        assert readings.ids[row].tolist() == ids.tolist()
        assert readings.denoised_ids[row].tolist() == denoised_ids.tolist()
    assert (readings.ids != readings.denoised_ids).any()


def test_the_mean_of_one_word_is_its_row_of_the_table(folder):
    readings = reader_of(folder, top_k=1).read(SENTENCES)
    table = AutoModelForMaskedLM.from_pretrained(folder).get_input_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(readings.words, table[readings.ids[:, 0]], atol=1e-6)


def test_top_k_is_at_most_the_size_of_the_vocabulary(folder):
    reader, words = reader_of(folder, top_k=10_000), len(AutoTokenizer.from_pretrained(folder))
    ids = reader.read(SENTENCES[:1]).ids
    assert words < 300, "the table has rows without a word"
    assert reader.top_k == words
    assert sorted(ids[0]) == list(range(words))


def test_spellings_are_those_of_the_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = np.arange(len(tokenizer))
    assert reader_of(folder).spellings(ids) == tokenizer.convert_ids_to_tokens(ids.tolist())


def test_an_encoder_without_a_head_is_refused(tmp_path):
    folder = save_folder(tmp_path / "bare", "bert")
    with pytest.raises(ModelError, match="found an encoder without a language model head"):
        reader_of(folder)


def test_an_encoder_without_a_template_is_refused(folder):
    with pytest.raises(ModelError, match=r"found the pooling mean.*set encoder\.template"):
        MaskReader(open_folder(EncoderSettings(path=str(folder), pooling="mean")), resolve("cpu"), 5)

"""Token types that a tokenizer gives to special tokens reach the model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import processors

from pipeline.errors import ModelError
from pipeline.models.trainable.encoder import load_trainable
from tests.models.folders import (
    SIZES,
    TEXTS,
    add_noise,
    edit_json,
    encoder_at,
    folder_at,
    save_tokenizer,
    word_piece,
)

_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
MODELS = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES, type_vocab_size=3)),
    "electra": lambda: transformers.ElectraModel(transformers.ElectraConfig(**SIZES, type_vocab_size=3)),
    "xlnet": lambda: transformers.XLNetModel(
        transformers.XLNetConfig(vocab_size=300, d_model=48, n_layer=2, n_head=4, d_inner=64)
    ),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(vocab_size=300, dim=48, n_layers=2, n_heads=4, hidden_dim=96)
    ),
}


def typed_folder(folder: Path, family: str, template: str) -> Path:
    torch.manual_seed(0)
    model = MODELS[family]().eval()
    add_noise(model, 0.15)
    model.save_pretrained(folder)
    tokenizer = word_piece()
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    save_tokenizer(tokenizer, folder)
    edit_json(folder / "tokenizer_config.json", model_input_names=_INPUTS)
    return folder


@pytest.mark.parametrize("template", ["[CLS]:2 $A:0 [SEP]:0", "[CLS]:1 $A:1 [SEP]:1", "$A:0 [SEP]:0 [CLS]:2"])
@pytest.mark.parametrize("family", MODELS)
def test_vectors_are_those_of_the_model_with_the_tokenizers_types(tmp_path: Path, family: str, template: str):
    folder, texts = typed_folder(tmp_path, family, template), list(TEXTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    expected = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
        if family == "distilbert":
            inputs.pop("token_type_ids")  # its model has none
        with torch.no_grad():
            expected.append(model(**inputs).last_hidden_state[0].mean(dim=0).numpy())
    np.testing.assert_allclose(encoder_at(folder).encode(texts), expected, atol=2e-6)
    trainable = load_trainable(folder_at(folder)).eval()
    with torch.no_grad():
        found = trainable(trainable.folder.tokenizer()(texts))
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)


def test_types_whose_use_depends_on_the_version_of_transformers_are_refused(tmp_path: Path):
    folder = typed_folder(tmp_path, "bert", "[CLS]:2 $A:0 [SEP]:0")
    general = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": None}
    edit_json(folder / "tokenizer_config.json", **general)
    with pytest.raises(ModelError, match="expected model_input_names beside a template"):
        folder_at(folder).tokenizer()


@pytest.mark.parametrize("names", [None, _INPUTS, ["input_ids", "attention_mask"]])
def test_types_are_part_of_the_space_unless_model_input_names_leaves_them_out(
    tmp_path: Path, names: list[str] | None
):
    folder = typed_folder(tmp_path, "bert", "[CLS]:2 $A:0 [SEP]:0")
    edit_json(folder / "tokenizer_config.json", model_input_names=names, tokenizer_class="BertTokenizer")
    space = folder_at(folder).space_id
    vectors = encoder_at(folder).encode(TEXTS)
    edit_json(folder / "tokenizer_config.json", model_input_names=["input_ids"])
    is_equal = "token_type_ids" not in (names or _INPUTS)
    assert (folder_at(folder).space_id == space) == is_equal
    assert np.array_equal(encoder_at(folder).encode(TEXTS), vectors) == is_equal


def test_a_type_that_the_model_lacks_and_a_template_with_types_are_refused(tmp_path: Path):
    folder = typed_folder(tmp_path, "bert", "[CLS]:1 $A:0 [SEP]:0")
    with pytest.raises(ModelError, match="token type 0, for a template or the pooling mask"):
        encoder_at(folder, template="[X] means [MASK].", pooling="mask")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"]["single"][0]["SpecialToken"]["type_id"] = 3
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"token types below 3, the type_vocab_size.*found type 3"):
        encoder_at(folder)

"""Every format of a folder gives the same encoder: pooling configurations, prompts, modules and weights."""

import json

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from pipeline.errors import ModelError
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folder.saved import encoded, save_sentence_transformer
from tests.models.folders import LONG, TEXTS, edit_json, encoder_at, folder_at, hidden_states


@pytest.mark.parametrize(
    "pooling",
    [
        *("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("cls", "mean")),
        ("lasttoken", "weightedmean", "mean", "max", "cls", "mean_sqrt_len_tokens"),
    ],
)
def test_a_sentence_transformers_folder_with_dense_layers_gives_its_vectors(folders, tmp_path, pooling):
    reference = save_sentence_transformer(folders["bert"], tmp_path / "st", pooling)
    folder = folder_at(tmp_path / "st")
    assert (folder.dim, folder.max_length, folder.normalize) == (20, 40, True)
    texts = [*TEXTS, "two dogs run " * 40]
    vectors = load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings()).encode(texts)
    np.testing.assert_allclose(vectors, reference.encode(texts), atol=1e-5)


def test_the_bits_of_dense_layers_do_not_depend_on_the_batch(folders, tmp_path):
    save_sentence_transformer(folders["bert"], tmp_path / "st")
    encoder = load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings())
    together = encoder.encode(TEXTS)
    np.testing.assert_array_equal(np.concatenate([encoder.encode([text]) for text in TEXTS]), together)


def test_the_old_form_of_the_pooling_config_is_equivalent(folders, tmp_path):
    save_sentence_transformer(folders["bert"], tmp_path / "st", ("cls", "mean"), dense=False)
    before = encoded(tmp_path / "st")
    config = next((tmp_path / "st").glob("*_Pooling/config.json"))
    config.write_text(
        json.dumps(
            {"word_embedding_dimension": 48, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
        )
    )
    np.testing.assert_array_equal(encoded(tmp_path / "st"), before)


@pytest.mark.parametrize("include", [True, False])
def test_prompts_of_the_folder_are_used_and_may_be_excluded_from_pooling(folders, tmp_path, include):
    names = {"prompts": {"query": "two dogs: ", "document": "the text: "}, "default_prompt_name": "document"}
    reference = save_sentence_transformer(folders["bert"], tmp_path / "st", **names)
    reference[1].include_prompt = include
    reference.save_pretrained(str(tmp_path / "st"))
    folder = folder_at(tmp_path / "st")
    assert (folder.prompt, folder.query_prompt, folder.include_prompt) == (
        "the text: ",
        "two dogs: ",
        include,
    )
    encoder = load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings())
    np.testing.assert_allclose(encoder.encode(TEXTS), reference.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        encoder.encode(TEXTS, query=True), reference.encode(TEXTS, prompt_name="query"), atol=1e-5
    )
    assert folder_at(tmp_path / "st", prompt="mine ").query_prompt == "mine "
    assert folder_at(tmp_path / "st", prompt="mine ", query_prompt="").query_prompt == ""


def test_a_prompt_that_is_not_pooled_leaves_out_no_token_of_the_text(folders, tmp_path):
    prompts = {"query": "two dogs: ", "document": "two dogs:"}
    for family in ("roberta", "bert"):
        reference = save_sentence_transformer(
            folders[family], tmp_path / family, dense=False, prompts=prompts
        )
        reference[1].include_prompt = False
        reference.save_pretrained(str(tmp_path / family))
    # a byte-level tokenizer joins the blank with the first word; sentence-transformers counts it twice
    vectors = encoder_at(tmp_path / "roberta").encode(["boys run"], query=True)
    states = hidden_states(folders["roberta"], "two dogs: boys run")[-1]
    tokens = AutoTokenizer.from_pretrained(folders["roberta"])("two dogs:", add_special_tokens=False)[
        "input_ids"
    ]
    expected = torch.nn.functional.normalize(states[1 + len(tokens) :].mean(0), dim=0)
    np.testing.assert_allclose(vectors[0], expected, atol=1e-5)
    assert "leaves that token out" in "".join(folder_at(tmp_path / "roberta").warnings)
    assert not folder_at(tmp_path / "bert").warnings


@pytest.mark.parametrize(
    ("names", "prompts"),
    [
        ({"prompts": {"query": "q: ", "document": "d: "}}, ("d: ", "q: ")),
        ({"prompts": {"query": "q: ", "passage": "p: "}, "default_prompt_name": "query"}, ("p: ", "q: ")),
        ({"prompts": {"query": "q: ", "passage": "p: "}, "default_prompt_name": "passage"}, ("p: ", "q: ")),
        ({"prompts": {"query": "q: ", "document": ""}}, ("", "q: ")),
        ({"prompts": {"query": "q: "}}, ("", "q: ")),
        ({"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}, ("", "q: ")),
        ({"prompts": {"query": "q: ", "document": "", "passage": "p: "}}, ("p: ", "q: ")),
        ({"prompts": {"query": "q: ", "text": "t: "}, "default_prompt_name": "text"}, ("t: ", "q: ")),
        ({"prompts": {"query": "", "document": "d: "}}, ("d: ", "")),
        ({"prompts": {"query": "", "document": "d: "}, "default_prompt_name": "document"}, ("d: ", "")),
        ({"prompts": {"document": "d: "}}, ("d: ", "")),
        ({"prompts": {"query": "", "document": "", "a": "t: "}, "default_prompt_name": "a"}, ("t: ", "t: ")),
        ({"prompts": {"task": "t: "}, "default_prompt_name": "task"}, ("t: ", "t: ")),
    ],
)
def test_prompts_of_queries_and_documents_are_found_by_their_names(bert, names, prompts):
    edit_json(bert / "config_sentence_transformers.json", **names)
    folder = folder_at(bert)
    assert (folder.prompt, folder.query_prompt) == prompts
    named = tuple(names["prompts"].get(kind) or "" for kind in ("document", "query"))
    differs = sum(found != expected for found, expected in zip(prompts, named, strict=True))
    assert len(folder.warnings) == differs, "encode_document and encode_query use only prompts named so"
    assert not folder_at(bert, prompt="other: ").warnings
    assert folder_at(bert, query_prompt="mine ").query_prompt == "mine "
    assert folder_at(bert, prompt="d: ").query_prompt == "d: "


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_truncation_at_the_start_of_texts_is_respected(folders, tmp_path, family, file):
    save_sentence_transformer(folders[family], tmp_path / "st", dense=False)
    before = folder_at(tmp_path / "st")
    if file == "tokenizer_config.json":
        edit_json(tmp_path / "st" / file, truncation_side="left")
    else:
        edit_json(tmp_path / "st" / "tokenizer_config.json", truncation_side=...)
        backend = tokenizers.Tokenizer.from_file(str(tmp_path / "st" / file))
        backend.enable_truncation(40, direction="left")
        backend.save(str(tmp_path / "st" / file))
    folder = folder_at(tmp_path / "st")
    assert (before.truncation_side, folder.truncation_side) == ("end", "start")
    assert folder.space_id != before.space_id
    texts = [*TEXTS, LONG + "two dogs run.", "two dogs run " * 14]
    reference = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    for prompt in ("", "the cat: "):
        encoder = load_encoder(EncoderSettings(path=str(tmp_path / "st"), prompt=prompt), EncodeSettings())
        np.testing.assert_allclose(encoder.encode(texts), reference.encode(texts, prompt=prompt), atol=1e-5)
        assert np.abs(encoder.encode(LONG) - encoder.encode(LONG + "two dogs run.")).max() > 1e-3


def test_a_folder_of_transformers_uses_mean_pooling_without_normalization(folders):
    folder = folder_at(folders["distilbert"])
    assert (folder.pooling, folder.normalize, folder.dim, folder.max_length, folder.family) == (
        ("mean",),
        False,
        48,
        64,
        "distilbert",
    )
    assert folder_at(folders["distilbert"], normalize=True, pooling="cls", max_length=12).max_length == 12
    assert folder_at(folders["electra"]).family == "other"


@pytest.mark.parametrize("form", ["prefix", "gamma", "bin", "sharded", "float16"])
def test_weights_are_read_in_every_form_that_folders_have_had(bert, form):
    before = encoded(bert)
    tensors = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    if form == "prefix":
        save_file(
            {f"bert.{name}": tensor for name, tensor in tensors.items()} | {"cls.bias": torch.zeros(3)},
            bert / "model.safetensors",
        )
    if form == "gamma":
        old = {"weight": "gamma", "bias": "beta"}
        names = {
            name: ".".join([*name.split(".")[:-1], old[name.split(".")[-1]]]) if "LayerNorm" in name else name
            for name in tensors
        }
        save_file({names[name]: tensor for name, tensor in tensors.items()}, bert / "model.safetensors")
    if form == "bin":
        torch.save(tensors, bert / "pytorch_model.bin")
    if form == "float16":
        save_file({name: tensor.half() for name, tensor in tensors.items()}, bert / "model.safetensors")
    if form == "sharded":
        shards = {f"model-{part}-of-2.safetensors": dict(list(tensors.items())[part::2]) for part in (0, 1)}
        for name, part in shards.items():
            save_file(part, bert / name)
        edit_json(
            bert / "model.safetensors.index.json",
            weight_map={name: file for file, part in shards.items() for name in part},
        )
    np.testing.assert_allclose(encoded(bert), before, atol=0.05 if form == "float16" else 0)


@pytest.mark.parametrize("own", ["", "bert."])
@pytest.mark.parametrize("other", ["a.", "teacher.bert."])
def test_of_two_encoders_in_one_file_the_one_that_transformers_reads_is_taken(bert, own, other):
    before, tensors = encoded(bert), load_file(bert / "model.safetensors")
    both = {own + name: tensor for name, tensor in tensors.items()}
    save_file(
        both | {other + name: 2 * tensor for name, tensor in tensors.items()}, bert / "model.safetensors"
    )
    np.testing.assert_array_equal(encoded(bert), before)


def test_two_encoders_in_one_file_are_refused_if_none_is_the_models_own(bert):
    tensors = load_file(bert / "model.safetensors")
    both = {
        f"{side}.{name}": tensor.clone() for name, tensor in tensors.items() for side in ("left", "right")
    }
    save_file(both, bert / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"weights of one encoder, .* found left\.embeddings.*, right\.embed"
    ):
        encoded(bert)

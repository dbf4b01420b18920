"""Packed families with rotary positions give the vectors of sentence-transformers, whatever the batch."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from pipeline.errors import ModelError
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.inference.packed import PackedModel
from pipeline.models.inference.padded import PaddedModel
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import edit_json, encoder_at
from tests.models.poolings import FORMULAS, TABLE
from tests.models.rotary_folders import ROTARY, peer_of, save_rotary, save_sentence_transformer, texts_of

WORDS = (1, 2, 3, 8, 17, 33, 64, 65, 130, 250)
_PEAK = """
import resource, sys
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
settings = EncoderSettings(path=sys.argv[1], pooling="last", max_length=32768)
encoder = load_encoder(settings, EncodeSettings())
encoder.encode(["warm up"])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
encoder.encode(["a " * 40_000])
assert encoder.counters.tokens > 32_768, encoder.counters
print((peak() - before) / 1024)
"""
CASES = [(name, pooling) for name, family in ROTARY.items() for pooling in family.poolings]


@pytest.fixture(scope="module")
def rotary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a random model each."""
    top = tmp_path_factory.mktemp("rotary")
    return {name: save_rotary(name, top / name) for name in ROTARY}


@pytest.mark.parametrize(("name", "pooling"), CASES)
def test_vectors_equal_those_of_sentence_transformers(rotary, name, pooling):
    texts = texts_of((*WORDS, 570 if ROTARY[name].byte_level else 1_080))
    encoder = encoder_at(rotary[name], pooling=pooling)
    assert isinstance(encoder._model, PackedModel)
    assert 1_400 < encoder.count_tokens(texts).lengths.max() <= 1_600
    peer, found = peer_of(rotary[name], pooling), encoder.encode(texts)
    np.testing.assert_allclose(found, peer.encode(texts, batch_size=5), atol=1e-5, rtol=0)
    peer.tokenizer.padding_side = "left"
    # transformers counts padding on the left in positions; a float32 angle of 1,500 is rounded by up to 6e-5
    ends = [*range(5), -1]
    padded = peer.encode([texts[number] for number in ends], batch_size=3)
    np.testing.assert_allclose(found[ends], padded, atol=6e-5, rtol=0)


@pytest.mark.parametrize(("name", "pooling"), [("embedding-gemma", "mean"), ("qwen3", "last")])
def test_a_published_folder_gives_the_vectors_of_its_modules(tmp_path, name, pooling):
    folder, texts = save_sentence_transformer(name, tmp_path, pooling), texts_of(WORDS)
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts, batch_size=4)
    np.testing.assert_allclose(encoder_at(folder).encode(texts), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ROTARY)
def test_bits_depend_neither_on_the_batch_nor_on_the_number_of_threads(rotary, name, dtype):
    texts = texts_of([*WORDS, 500, *range(1, 40)])
    settings = EncoderSettings(path=str(rotary[name]), pooling="mean+last")
    encoder = load_encoder(settings, EncodeSettings(dtype=dtype))
    together = encoder.encode(texts)
    order = np.random.default_rng(1).permutation(len(texts))
    np.testing.assert_array_equal(encoder.encode([texts[i] for i in order]), together[order])
    np.testing.assert_array_equal(
        np.concatenate([encoder.encode([text]) for text in texts[7:14]]), together[7:14]
    )
    for threads in (2, 3):
        several = load_encoder(settings, EncodeSettings(dtype=dtype, threads=threads))
        np.testing.assert_array_equal(several.encode(texts[:14]), together[:14])


@pytest.mark.parametrize("name", ["modernbert", "gemma3"])
@pytest.mark.parametrize("pooling", ["table", "static", "first_last", "static_last", "last2", "max"])
def test_poolings_read_the_states_that_they_name(rotary, name, pooling):
    """The final norm belongs to the last layer, and the word table is read before its rows are scaled."""
    (text,) = texts_of([30])
    model, tokenizer = (
        AutoModel.from_pretrained(rotary[name]).eval(),
        AutoTokenizer.from_pretrained(rotary[name]),
    )
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        output = model(ids, output_hidden_states=True)
    states = {number: state[0].numpy() for number, state in enumerate(output.hidden_states)}
    states |= {-1: output.last_hidden_state[0].numpy(), -2: states[3]}
    states[TABLE] = model.get_input_embeddings().weight[ids[0]].detach().numpy()
    expected = FORMULAS[pooling](states, np.arange(ids.shape[1]))
    found = encoder_at(rotary[name], pooling=pooling).encode([text])[0]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": ...}),
        ("modernbert", {"hidden_activation": "tanh"}),
        ("qwen2", {"hidden_act": "relu6"}),
        ("gte", {"hidden_act": "mish"}),
    ],
)
def test_other_settings_are_computed_by_the_padded_pass(tmp_path, name, changes):
    folder, texts = save_rotary(name, tmp_path / name), texts_of(WORDS[:8])
    edit_json(folder / "config.json", **changes)
    encoder = encoder_at(folder, pooling="mean")
    assert isinstance(encoder._model, PaddedModel)
    expected = peer_of(folder, "mean").encode(texts)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5, rtol=0)


def test_the_keys_of_nomics_own_code_give_the_same_vectors(rotary, tmp_path):
    folder = Path(shutil.copytree(rotary["nomic_bert"], tmp_path / "nomic"))
    config = json.loads((folder / "config.json").read_text())
    own = {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
        "layer_norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "n_positions",
    }
    changes = {name: config[key] for key, name in own.items()} | dict.fromkeys((*own, "rope_parameters"), ...)
    edit_json(
        folder / "config.json", **changes, rotary_emb_base=1_000, hidden_act=..., activation_function="swiglu"
    )
    texts = texts_of(WORDS[:8])
    expected = encoder_at(rotary["nomic_bert"], pooling="mean").encode(texts)
    np.testing.assert_array_equal(encoder_at(folder, pooling="mean").encode(texts), expected)


@pytest.mark.parametrize("name", ["modernbert", "gte", "qwen3"])
def test_the_weights_of_a_language_model_give_the_vectors_of_its_encoder(rotary, tmp_path, name):
    folder = Path(shutil.copytree(rotary[name], tmp_path / name))
    tensors = {f"model.{key}": value for key, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors | {"lm_head.weight": np.ones((3, 3), np.float32)}, folder / "model.safetensors")
    texts = texts_of(WORDS[:6])
    expected = encoder_at(rotary[name], pooling="mean").encode(texts)
    np.testing.assert_array_equal(encoder_at(folder, pooling="mean").encode(texts), expected)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("modernbert", "layers.1.attn_norm.weight"),
        ("gte", "encoder.layer.0.mlp.up_gate_proj.weight"),
        ("qwen3", "layers.1.self_attn.q_norm.weight"),
        ("gemma3", "norm.weight"),
    ],
)
def test_a_missing_tensor_is_an_error_that_names_it(rotary, tmp_path, name, tensor):
    folder = Path(shutil.copytree(rotary[name], tmp_path / name))
    tensors = load_file(folder / "model.safetensors")
    del tensors[tensor]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=rf"1 missing: {re.escape(tensor)}"):
        encoder_at(folder, pooling="mean")


def test_a_long_text_is_alone_in_the_smallest_multiple_of_a_buffer(rotary):
    encoder = load_encoder(
        EncoderSettings(path=str(rotary["qwen3"]), pooling="last"), EncodeSettings(max_tokens=128)
    )
    lengths = np.array([5, 300, 128, 129, 100, 27])
    assert [rows.tolist() for rows in encoder._model.plan(lengths, 128)] == [[1], [3], [2], [4, 5], [0]]
    texts = texts_of([3, 120, 35])
    found = encoder.encode(texts)
    tokens, padding = encoder.counters.tokens, encoder.counters.padding
    assert 256 < encoder.count_tokens(texts).lengths.max() <= 384
    assert tokens + padding == 384 + 128
    np.testing.assert_allclose(found, peer_of(rotary["qwen3"], "last").encode(texts), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["modernbert", "gemma3"])
def test_half_precision_is_close(rotary, name, dtype):
    texts = texts_of(WORDS[:9])
    exact = encoder_at(rotary[name], pooling="mean", normalize=True)
    settings = EncoderSettings(path=str(rotary[name]), pooling="mean", normalize=True)
    half = load_encoder(settings, EncodeSettings(dtype=dtype))
    assert (half.encode(texts) * exact.encode(texts)).sum(axis=1).min() > 0.999


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pooling"), dict(CASES).items())
def test_texts_of_thousands_of_tokens_equal_those_of_sentence_transformers(rotary, name, pooling):
    texts = texts_of([600, 1_200, 20, 7_000])
    encoder = encoder_at(rotary[name], pooling=pooling)
    assert encoder.count_tokens(texts).lengths.max() == 8_192
    expected = peer_of(rotary[name], pooling).encode(texts, batch_size=1)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "name",
    [
        "mistral",
        pytest.param("modernbert", marks=pytest.mark.slow),
        pytest.param("qwen3", marks=pytest.mark.slow),
    ],
)
def test_a_text_of_32768_tokens_needs_little_memory(tmp_path, name):
    """The products of all queries and keys of one layer alone would take 16 GiB."""
    folder = save_rotary(name, tmp_path / name)
    edit_json(folder / "config.json", max_position_embeddings=32_768)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 300, "MiB; 32,768 rows of queries, keys, values and states are 50 MiB"

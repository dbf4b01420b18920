"""Architectures read from config.json, with the keys of published files and those of transformers."""

import pytest
from safetensors.numpy import load_file
from transformers import AutoConfig

from pipeline.models.spec.architecture import LayerAttention
from pipeline.models.spec.families import PACKED_FAMILIES, ROTARY_FAMILIES, TABLE_FAMILIES, architecture_of
from pipeline.models.spec.tensor_names import NAMES, tensor_names
from tests.models.folders import FAMILIES, folder_at
from tests.models.rotary_folders import ROTARY, save_rotary


def _sizes(width: int, inner: int, layers: int, heads: int, vocabulary: int) -> dict[str, object]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
    }


PUBLISHED = {
    "ModernBERT-base": {
        "model_type": "modernbert",
        **_sizes(768, 1_152, 22, 12, 50_368),
        "attention_bias": False,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "hidden_activation": "gelu",
        "local_attention": 128,
        "local_rope_theta": 10_000.0,
        "max_position_embeddings": 8_192,
        "mlp_bias": False,
        "norm_bias": False,
        "norm_eps": 1e-5,
    },
    "nomic-embed-text-v1.5": {
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "causal": False,
        "layer_norm_epsilon": 1e-12,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "n_embd": 768,
        "n_head": 12,
        "n_inner": 3_072,
        "n_layer": 12,
        "n_positions": 8_192,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_base": 1_000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_scaling_factor": None,
        "type_vocab_size": 2,
        "use_rms_norm": False,
        "vocab_size": 30_528,
    },
    "Qwen3-Embedding-0.6B": {
        "model_type": "qwen3",
        **_sizes(1_024, 3_072, 28, 16, 151_669),
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 32_768,
        "max_window_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "gte-Qwen2-1.5B": {
        "model_type": "qwen2",
        **_sizes(1_536, 8_960, 28, 12, 151_646),
        "hidden_act": "silu",
        "is_causal": False,
        "max_position_embeddings": 131_072,
        "max_window_layers": 21,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "sliding_window": 131_072,
        "use_sliding_window": False,
    },
    "e5-mistral-7b": {
        "model_type": "mistral",
        **_sizes(4_096, 14_336, 32, 32, 32_000),
        "hidden_act": "silu",
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "sliding_window": 4_096,
    },
    "Llama without newer keys": {
        "model_type": "llama",
        **_sizes(4_096, 11_008, 32, 32, 32_000),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
    },
    "embeddinggemma-300m": {
        "model_type": "gemma3_text",
        **_sizes(768, 1_152, 24, 3, 262_144),
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 2_048,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": None,
        "rope_theta": 1_000_000.0,
        "sliding_window": 512,
        "use_bidirectional_attention": True,
    },
    "gte-multilingual-base": {
        "model_type": "gte",
        **_sizes(768, 3_072, 12, 12, 250_048),
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "rope_parameters": {"rope_type": "default", "rope_theta": 20_000},
        "type_vocab_size": 1,
    },
    "EuroBERT-210m": {
        "model_type": "eurobert",
        **_sizes(768, 3_072, 12, 12, 128_256),
        "head_dim": 64,
        "hidden_act": "silu",
        "num_key_value_heads": 12,
        "rms_norm_eps": 1e-5,
        "rope_theta": 250_000,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_older_keys_mean_what_transformers_reads_in_them(name):
    published = dict(PUBLISHED[name])
    written = AutoConfig.for_model(**published).to_dict()
    assert architecture_of(published) == architecture_of(written)
    assert architecture_of(published) is not None


def test_windows_are_those_of_the_papers():
    """ModernBERT, section 2.1.2: every third layer is global, others see 64 tokens on either side."""
    architecture = architecture_of(PUBLISHED["ModernBERT-base"])
    near = LayerAttention(64, 64, 10_000.0)
    assert architecture.attention[:4] == (
        LayerAttention(base=160_000.0),
        near,
        near,
        LayerAttention(base=160_000.0),
    )
    assert architecture_of(PUBLISHED["e5-mistral-7b"]).attention[0] == LayerAttention(4_095, 0, 10_000.0)
    gemma = architecture_of(PUBLISHED["embeddinggemma-300m"]).attention
    assert gemma[4:6] == (LayerAttention(256, 256, 10_000.0), LayerAttention(base=1_000_000.0))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Qwen3-Embedding-0.6B", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ("Qwen3-Embedding-0.6B", {"hidden_act": "quick_gelu"}),
        ("Qwen3-Embedding-0.6B", {"num_key_value_heads": 5}),
        ("Qwen3-Embedding-0.6B", {"layer_types": ["chunked_attention"] * 28}),
        ("e5-mistral-7b", {"quantization_config": {"bits": 4}}),
        ("embeddinggemma-300m", {"attn_logit_softcapping": 50.0}),
        ("ModernBERT-base", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}),
        ("gte-multilingual-base", {"partial_rotary_factor": 0.5}),
        ("EuroBERT-210m", {"intermediate_size": None}),
        ("EuroBERT-210m", {"attention_bias": "no"}),
        ("EuroBERT-210m", {"is_decoder": True}),
        ("embeddinggemma-300m", {"use_bidirectional_attention": "all"}),
    ],
)
def test_settings_that_are_not_computed_are_left_to_the_padded_pass(name, changes):
    assert architecture_of(PUBLISHED[name]) is not None
    assert architecture_of(PUBLISHED[name] | changes) is None


@pytest.mark.parametrize("name", [*ROTARY, *(name for name in FAMILIES if name != "electra")])
def test_a_checkpoint_has_the_named_tensors_and_no_others(folders, tmp_path, name):
    folder = folder_at(save_rotary(name, tmp_path) if name in ROTARY else folders[name], pooling="mean")
    names = NAMES[folder.family]
    stored = {each for each in load_file(folder.path / "model.safetensors") if not each.startswith("pooler.")}
    assert set(tensor_names(names, architecture_of(folder.config))) == stored


def test_every_family_has_names_and_a_random_model():
    assert set(PACKED_FAMILIES.values()) == NAMES.keys()
    assert set(TABLE_FAMILIES.values()) <= FAMILIES.keys()
    assert {family.make().config.model_type for family in ROTARY.values()} == ROTARY_FAMILIES.keys()

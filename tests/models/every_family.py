"""Tiny random models of every family of transformers that reads texts, saved as users' folders are."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.models.folders import LONG, add_noise, edit_json, save_tokenizer, word_piece

LONGEST = 500  # tokens that the encoders read
_WIDTH, _INNER, _LAYERS, _HEADS, _POSITIONS, _WINDOW = 48, 96, 3, 4, 512, 32
# by the names that families give to them; a family gets the names that its configuration has
_SIZES: Mapping[str, Any] = {
    "vocab_size": 300,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size"), _WIDTH),
    **dict.fromkeys(("word_embed_proj_dim", "d_embed", "true_hidden_size", "intra_bottleneck_size"), _WIDTH),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "n_inner", "d_ff", "ffn_dim", "d_inner"), _INNER),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), _INNER),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), _LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("head_dim", "d_kv", "d_head"), _WIDTH // _HEADS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "seq_length"), _POSITIONS),
    **dict.fromkeys(("max_seq_len", "max_sequence_length"), _POSITIONS),
    **dict.fromkeys(("sliding_window", "attention_window"), _WINDOW),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_dim"), 32),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "rotary_dim", "state_size"), 8),
    "num_key_value_heads": 2,
    "num_attention_groups": 1,
    "time_step_rank": 4,
    "block_size": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PLAIN: Mapping[str, Any] = {}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 24, "mamba_expand": 2, "mamba_d_state": 8}
_DEEPSEEK = {"num_key_value_heads": 4, "head_dim": 8, "first_k_dense_replace": 1}
_LED = {"num_hidden_layers": 2, "attention_window": [_WINDOW] * 2}

ENCODERS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"), _PLAIN),
    **dict.fromkeys(("modernbert", "nomic_bert", "gte", "eurobert", "jina_embeddings_v3"), _PLAIN),
    **dict.fromkeys(
        ("albert", "bert-generation", "big_bird", "convbert", "data2vec-text", "deberta"), _PLAIN
    ),
    **dict.fromkeys(
        ("deberta-v2", "electra", "ernie", "esm", "flaubert", "fnet", "ibert", "layoutlm"), _PLAIN
    ),
    **dict.fromkeys(("lilt", "longformer", "markuplm", "megatron-bert", "mobilebert", "mra"), _PLAIN),
    **dict.fromkeys(("nystromformer", "rembert", "roberta-prelayernorm", "roformer", "splinter"), _PLAIN),
    **dict.fromkeys(("squeezebert", "tapas", "ultrabert", "visual_bert", "xlm", "xlm-roberta-xl"), _PLAIN),
    **dict.fromkeys(("xlnet", "yoso", "clip_text_model"), _PLAIN),
    "canine": {"num_hash_buckets": 600, "local_transformer_stride": 16},
    "funnel": {"block_sizes": [1, 1, 1], "architectures": ["FunnelModel"]},
    "luke": {"entity_vocab_size": 20, "entity_emb_size": _WIDTH},
    "reformer": {
        "attn_layers": ["local", "lsh", "local"],
        "axial_pos_shape": [16, 32],
        "axial_pos_embds_dim": [24, 24],
        "feed_forward_size": _INNER,
        "attention_head_size": 12,
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
        "is_decoder": False,
        "hash_seed": 3,
    },
    "roc_bert": {
        **dict.fromkeys(("pronunciation_vocab_size", "shape_vocab_size"), 50),
        **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim"), _WIDTH),
    },
    "xmod": {"default_language": "en_XX", "languages": ["en_XX", "de_DE"]},
}
"""settings other than `_SIZES` of encoders, by model_type"""
ENCODER_DECODERS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("bart", "bigbird_pegasus", "blenderbot", "m2m_100", "marian", "mbart", "mvp"), _PLAIN),
    **dict.fromkeys(("nllb-moe", "pegasus", "plbart", "prophetnet", "longt5", "mt5", "t5", "umt5"), _PLAIN),
    "switch_transformers": {},
    "fsmt": {"src_vocab_size": 300, "tgt_vocab_size": 300, "langs": ["en", "de"]},
    "led": {
        **_LED,
        **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), _POSITIONS),
    },
}
"""the same of encoder-decoders"""
DECODERS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "gptj", "gpt_bigcode"), _PLAIN
    ),
    **dict.fromkeys(
        ("openai-gpt", "opt", "bloom", "mpt", "falcon", "phi", "phi3", "gemma", "gemma2"), _PLAIN
    ),
    **dict.fromkeys(("granite", "olmo", "olmo2", "olmo3", "cohere", "cohere2", "starcoder2", "glm"), _PLAIN),
    **dict.fromkeys(("glm4", "helium", "persimmon", "xglm", "biogpt", "codegen", "ctrl"), _PLAIN),
    **dict.fromkeys(("smollm3", "ernie4_5", "exaone4", "bitnet", "arcee", "apertus", "diffllama"), _PLAIN),
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "jetmoe", "phimoe"), _PLAIN),
    **dict.fromkeys(("gpt_oss", "llama4_text", "minimax", "doge", "flex_olmo", "seed_oss"), _PLAIN),
    **dict.fromkeys(("mamba", "falcon_mamba", "rwkv", "recurrent_gemma", "lfm2", "hunyuan_v1_dense"), _PLAIN),
    **dict.fromkeys(("internlm3", "ministral3", "jais2", "nanochat", "modernbert-decoder"), _PLAIN),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _DEEPSEEK),
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": 300,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {"vocab_size_per_layer_input": 300, "hidden_size_per_layer_input": 16},
    "gpt_neo": {"attention_types": [[["global", "local", "global"], 1]], "window_size": _WINDOW},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"], **_MAMBA},
    "falcon_h1": {"mamba_d_ssm": 96, "mamba_n_groups": 1, **_MAMBA},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    },
    "nemotron": {"num_key_value_heads": 2},
    "stablelm": {"partial_rotary_factor": 0.5, "head_dim": None},
}
"""the same of decoders and of recurrent models"""
FAMILIES: Mapping[str, Mapping[str, Any]] = ENCODERS | ENCODER_DECODERS | DECODERS
_ENCODER_ONLY = ("t5", "mt5", "umt5")


def config_of(name: str, **changes: Any) -> transformers.PreTrainedConfig:
    """Make the configuration of a tiny model, of a family of FAMILIES."""
    known = transformers.AutoConfig.for_model(name).to_dict()
    mapped = getattr(transformers.CONFIG_MAPPING[name], "attribute_map", {})
    sizes = {key: size for key, size in _SIZES.items() if key in known or key in mapped}
    if known.get("num_key_value_heads") is None:
        sizes.pop("num_key_value_heads", None)
    if known.get("layer_types"):
        sizes["layer_types"] = (known["layer_types"] * _LAYERS)[:_LAYERS]
    special = {key: _SIZES[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return transformers.AutoConfig.for_model(name, **sizes | special | dict(FAMILIES[name]) | changes)


def save_family(name: str, folder: Path, **changes: Any) -> Path:
    """Write the plain Hugging Face folder of a tiny random model. changes: of its configuration."""
    torch.manual_seed(0)
    model = class_of(name).from_config(config_of(name, **changes)).eval()
    add_noise(model, 0.15)
    model.save_pretrained(folder)
    save_tokenizer(word_piece(), folder)
    edit_json(folder / "tokenizer_config.json", model_max_length=LONGEST)
    return folder


def class_of(name: str) -> Any:
    """Return the class of transformers that loads a family's encoder."""
    return transformers.AutoModelForTextEncoding if name in _ENCODER_ONLY else transformers.AutoModel


def vectors_alone(folder: Path, texts: list[str]) -> np.ndarray:
    """Compute the mean of the last states, each text alone and in a new model, with transformers."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    name = transformers.AutoConfig.from_pretrained(folder).model_type
    vectors, loaded = [], class_of(name).from_pretrained(folder).eval()
    loaded.config.return_dict = True  # with tuples OPT fails; the form of the output changes no vector
    for number, text in enumerate(texts, start=1):
        model = copy.deepcopy(loaded) if number < len(texts) else loaded
        encoder = model.get_encoder() if model.config.is_encoder_decoder else model
        ids = torch.tensor([tokenizer(text, truncation=True, max_length=LONGEST)["input_ids"]])
        with torch.no_grad():
            states = encoder(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
        vectors.append(states[0].mean(dim=0).float().numpy())
    return np.stack(vectors)


def texts_of(*words: int, seed: int = 0) -> list[str]:
    """Return a text for each number of words, which have 1.5 tokens each."""
    rng = np.random.default_rng(seed)
    vocabulary = [*LONG.split()[:16], "ladder", "window", "snow", "mill"]
    return [" ".join(rng.choice(vocabulary, count)) for count in words]

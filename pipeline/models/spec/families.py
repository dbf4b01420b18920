"""Families of the packed forward pass, and the architecture that config.json describes.

Missing keys have the defaults of transformers. Imports neither torch nor transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.models.spec.architecture import Architecture, Biases, LayerAttention

Config = Mapping[str, Any]

FULL, NEAR = "full_attention", "sliding_attention"
"""kinds of attention in `layer_types`: to all tokens, and to near tokens"""
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""name of an activation in `linear.ACTIVATIONS`, by its name in config.json"""


class OtherModel(Exception):
    """The packed forward pass does not compute this model; the padded one runs it."""


def require(condition: bool) -> None:
    """Raise OtherModel unless the condition is true."""
    if not condition:
        raise OtherModel


def size(config: Config, name: str) -> int:
    """Read a whole number above 0, which must be in config.json."""
    value = config.get(name)
    require(type(value) is int and value > 0)
    assert isinstance(value, int)
    return value


def number(config: Config, name: str, default: float) -> float:
    """Read a number. default: its value if the key is missing."""
    value = config.get(name, default)
    require(type(value) in (int, float))
    return float(value)


def flag(config: Config, name: str) -> bool:
    """Read a truth value, False if the key is missing or null."""
    value = config.get(name)
    require(value is None or isinstance(value, bool))
    return bool(value)


def activation(config: Config, name: str, default: str) -> str:
    """Read an activation, `default` if the key is missing; return its name in `linear.ACTIVATIONS`."""
    value = config.get(name, default)
    require(isinstance(value, str) and value in _ACTIVATIONS)
    return _ACTIVATIONS[value]


def sizes(config: Config) -> dict[str, Any]:
    """Read the sizes of a Transformer with rotary positions, by their names in `Architecture`."""
    width, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    has_fewer, has_own = (config.get(name) is not None for name in ("num_key_value_heads", "head_dim"))
    key_heads = size(config, "num_key_value_heads") if has_fewer else heads
    head_width = size(config, "head_dim") if has_own else width // heads
    require(heads % key_heads == head_width % 2 == 0)
    return {
        "width": width,
        "inner": size(config, "intermediate_size"),
        "heads": heads,
        "key_heads": key_heads,
        "head_width": head_width,
        "vocabulary": size(config, "vocab_size"),
    }


def kinds(config: Config, default: Sequence[str]) -> Sequence[str]:
    """Read the kind of attention of each layer. default: the kinds if `layer_types` is missing."""
    found = config.get("layer_types") or default
    require(isinstance(found, Sequence) and len(found) == len(default) and {*found} <= {FULL, NEAR})
    return found


def by_kind(found: Sequence[str], full: LayerAttention, near: LayerAttention) -> tuple[LayerAttention, ...]:
    """Return the attention of each layer for its kind."""
    return tuple(full if kind == FULL else near for kind in found)


def rotary_base(config: Config, default: float) -> float:
    """Read the base of the rotary positions of all layers. default: the base if config.json has none."""
    ropes = _rope_parameters(config)
    require(not {FULL, NEAR} & ropes.keys())
    return _base(ropes, config, "rope_theta", default)


def rotary_bases(config: Config, full: tuple[str, float], near: tuple[str, float]) -> tuple[float, float]:
    """Read the bases of the rotary positions of both kinds of attention.

    Args:
        config: config.json.
        full: key of the base in files from before transformers 5, and its default.
        near: the same for attention to near tokens.
    """
    ropes = _rope_parameters(config)
    require(ropes.keys() <= {FULL, NEAR})
    one, other = (
        _base(ropes.get(kind) or {}, config, *older) for kind, older in ((FULL, full), (NEAR, near))
    )
    return one, other


def _rope_parameters(config: Config) -> Mapping[str, Any]:
    ropes = config.get("rope_parameters") or {}
    require(isinstance(ropes, Mapping) and not config.get("rope_scaling"))
    require(config.get("partial_rotary_factor", 1.0) == 1.0)
    return ropes


def _base(rope: Any, config: Config, older: str, default: float) -> float:
    require(isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type", "default")) == "default")
    require(rope.get("partial_rotary_factor", 1.0) == 1.0)
    return number(rope, "rope_theta", number(config, older, default))


TABLE_FAMILIES = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "distilbert": "distilbert",
    "mpnet": "mpnet",
}
"""families with a table of positions, by model_type"""
ROTARY_FAMILIES = {
    "modernbert": "modernbert",
    "nomic_bert": "nomic_bert",
    "gte": "gte",
    "llama": "llama",
    "eurobert": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
"""families with rotary positions, by model_type"""
DECODER_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
PACKED_FAMILIES = TABLE_FAMILIES | ROTARY_FAMILIES

# keys that turn an encoder into a decoder
_OF_DECODERS = ("is_causal", "is_decoder", "is_encoder_decoder", "add_cross_attention")
_NO_BIASES = Biases(inputs=False, attention=False, inner=False, outer=False, norms=False)
_NOMIC_SIZES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
"""keys in the code of nomic_bert's authors, by the keys of transformers"""


def architecture_of(config: Config) -> Architecture | None:
    """Read the architecture from config.json; None if the packed forward pass does not compute it."""
    read = _READERS.get(str(config.get("model_type")))
    if read is None or config.get("quantization_config"):
        return None
    if config["model_type"] not in DECODER_FAMILIES and any(config.get(name) for name in _OF_DECODERS):
        return None
    try:
        return read(config)
    except OtherModel:
        return None


def packed_architecture(config: Config) -> Architecture:
    """Read the architecture from the config.json of a folder with a packed family."""
    architecture = architecture_of(config)
    assert architecture is not None, "the folder's family would be other"
    return architecture


def _table_family(config: Config) -> Architecture:
    """Read BERT, RoBERTa, DistilBERT and MPNet. DistilBERT has names of its own for the sizes."""
    family = TABLE_FAMILIES[config["model_type"]]
    activation_name = config.get("activation" if family == "distilbert" else "hidden_act") or "gelu"
    require(
        config.get("position_embedding_type", "absolute") == "absolute"
        and activation_name in ("gelu", "relu", "gelu_new")
    )

    def first(*names: str, default: float = 0) -> float:
        given = (name for name in names if config.get(name) is not None)
        return next((number(config, name, default) for name in given), default)

    width, heads = int(first("hidden_size", "dim")), int(first("num_attention_heads", "n_heads"))
    counts_from_pad = family in ("roberta", "mpnet")
    return Architecture(
        width=width,
        inner=int(first("intermediate_size", "hidden_dim")),
        heads=heads,
        key_heads=heads,
        head_width=width // max(1, heads),
        vocabulary=int(first("vocab_size")),
        attention=(LayerAttention(),) * int(first("num_hidden_layers", "n_layers")),
        positions=int(first("max_position_embeddings")),
        token_types=int(first("type_vocab_size", default=2)) if family in ("bert", "roberta") else 0,
        epsilon=first("layer_norm_eps", default=1e-12),
        activation=activation_name,
        counts_from_pad=counts_from_pad,
        pad_id=1 if family == "mpnet" else int(first("pad_token_id", default=1 if counts_from_pad else 0)),
    )


def _modernbert(config: Config) -> Architecture:
    """Read ModernBERT (Warner et al. 2024), which alternates full attention and near attention."""
    every = int(number(config, "global_attn_every_n_layers", 3))
    reach = int(number(config, "local_attention", 128)) // 2
    default = [NEAR if layer % every else FULL for layer in range(size(config, "num_hidden_layers"))]
    full, near = rotary_bases(config, ("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0))
    has_bias, has_inner = flag(config, "attention_bias"), flag(config, "mlp_bias")
    return Architecture(
        **sizes(config),
        epsilon=number(config, "norm_eps", 1e-5),
        activation=activation(config, "hidden_activation", "gelu"),
        attention=by_kind(
            kinds(config, default),
            LayerAttention(base=full),
            LayerAttention(reach, reach, near),
        ),
        biases=Biases(has_bias, has_bias, has_inner, has_inner, flag(config, "norm_bias")),
    )


def _nomic(config: Config) -> Architecture:
    """Read nomic_bert (Nussbaum et al. 2024), with the keys of transformers or of its authors' code."""
    given = {name: config[own] for name, own in _NOMIC_SIZES.items() if own in config} | dict(config)
    attention = LayerAttention(base=rotary_base(given, 1_000.0))
    return Architecture(
        **sizes(given),
        epsilon=number(given, "layer_norm_eps", 1e-12),
        activation=activation(given, "hidden_act", "silu"),
        attention=(attention,) * size(given, "num_hidden_layers"),
        token_types=int(number(given, "type_vocab_size", 2)),
        biases=_NO_BIASES._replace(norms=True),
    )


def _gte(config: Config) -> Architecture:
    """Read gte (Zhang et al. 2024)."""
    attention = LayerAttention(base=rotary_base(config, 160_000.0))
    return Architecture(
        **sizes(config),
        epsilon=number(config, "layer_norm_eps", 1e-12),
        activation=activation(config, "hidden_act", "gelu"),
        attention=(attention,) * size(config, "num_hidden_layers"),
        token_types=int(number(config, "type_vocab_size", 1)),
        biases=Biases(inner=False),
    )


def _llama(config: Config) -> Architecture:
    """Read Llama."""
    has_bias, has_inner = flag(config, "attention_bias"), flag(config, "mlp_bias")
    full, _ = _decoder_attention(config, window=None)
    layers = size(config, "num_hidden_layers")
    return _decoder(config, (full,) * layers, Biases(has_bias, has_bias, has_inner, has_inner, norms=False))


def _eurobert(config: Config) -> Architecture:
    """Read EuroBERT (Boizard et al. 2025): Llama with attention in both directions."""
    return _llama({"rms_norm_eps": 1e-5, **config, "is_causal": False})


def _mistral(config: Config) -> Architecture:
    """Read Mistral, which may have a window in all layers."""
    require("num_key_value_heads" in config)
    window = config.get("sliding_window", 4_096)
    _, near = _decoder_attention(config, window=None if window is None else size(config, "sliding_window"))
    return _decoder(config, (near,) * size(config, "num_hidden_layers"), _NO_BIASES)


def _qwen(config: Config) -> Architecture:
    """Read Qwen2 and Qwen3, which may have a window in some layers."""
    is_second = config["model_type"] == "qwen2"
    require("num_key_value_heads" in config and (is_second or "head_dim" in config))
    has_window = flag(config, "use_sliding_window") and config.get("sliding_window") is not None
    first = number(config, "max_window_layers", 28) if has_window else float("inf")
    default = [NEAR if layer >= first else FULL for layer in range(size(config, "num_hidden_layers"))]
    found = kinds(config, default)
    require(has_window or NEAR not in found)
    has_bias = is_second or flag(config, "attention_bias")
    biases = _NO_BIASES._replace(inputs=has_bias, attention=has_bias and not is_second)
    window = size(config, "sliding_window") if has_window else None
    return _decoder(config, by_kind(found, *_decoder_attention(config, window)), biases)


def _decoder_attention(config: Config, window: int | None) -> tuple[LayerAttention, LayerAttention]:
    """Return full attention, and attention within a window, of Llama and its descendants.

    Args:
        config: config.json.
        window: number of tokens that a token sees, itself included, if attention is causal; otherwise, as in
            transformers, number of tokens that it sees on either side. None: it sees all tokens.
    """
    is_causal, base = config.get("is_causal", True), rotary_base(config, 10_000.0)
    require(isinstance(is_causal, bool))
    full = LayerAttention(after=0 if is_causal else None, base=base)
    if window is None:
        return full, full
    return full, LayerAttention(window - 1, 0, base) if is_causal else LayerAttention(window, window, base)


def _decoder(config: Config, attention: tuple[LayerAttention, ...], biases: Biases) -> Architecture:
    return Architecture(
        **sizes(config),
        epsilon=number(config, "rms_norm_eps", 1e-6),
        activation=activation(config, "hidden_act", "silu"),
        attention=attention,
        norm="rms",
        biases=biases,
    )


def _gemma3(config: Config) -> Architecture:
    """Read Gemma 3 for text (Gemma team 2025) and EmbeddingGemma, whose attention is not causal."""
    require(config.get("attn_logit_softcapping") is None and config.get("is_causal", True) is True)
    require({"num_key_value_heads", "head_dim"} <= config.keys())
    every = int(number(config, "sliding_window_pattern", 6))
    default = [NEAR if (layer + 1) % every else FULL for layer in range(size(config, "num_hidden_layers"))]
    full, near = rotary_bases(config, ("rope_theta", 1e6), ("rope_local_base_freq", 1e4))
    window, has_bias = size(config, "sliding_window"), flag(config, "attention_bias")
    is_causal = not flag(config, "use_bidirectional_attention")
    before, after = (window - 1, 0) if is_causal else (window // 2, window // 2)
    return Architecture(
        **sizes(config),
        epsilon=number(config, "rms_norm_eps", 1e-6),
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        attention=by_kind(
            kinds(config, default),
            LayerAttention(after=0 if is_causal else None, base=full),
            LayerAttention(before, after, near),
        ),
        norm="rms_around_1",
        biases=_NO_BIASES._replace(inputs=has_bias, attention=has_bias),
        score_scale=number(config, "query_pre_attn_scalar", 256) ** -0.5,
        word_scale=size(config, "hidden_size") ** 0.5,
    )


_READERS: Mapping[str, Callable[[Config], Architecture]] = dict.fromkeys(TABLE_FAMILIES, _table_family) | {
    "modernbert": _modernbert,
    "nomic_bert": _nomic,
    "gte": _gte,
    "llama": _llama,
    "eurobert": _eurobert,
    "mistral": _mistral,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "gemma3_text": _gemma3,
}
"""function that reads config.json, by model_type"""

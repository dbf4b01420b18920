"""Refuse settings of config.json that change vectors, but that nobody reads, or obeys in every batch.

Imports neither torch nor transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.spec.families import DECODER_FAMILIES

_POSITIONS = "position_embedding_type"
"""key of many families; up to transformers 4 it could be relative_key or relative_key_query"""
_READ_POSITIONS = ("esm", "evolla", "granitemoehybrid")  # model types of which transformers reads that key
_NAMES_OF_ROTARY = ("rope", "rotary")
_COMPUTED: Mapping[str, Mapping[str, Any]] = {
    # keys of the code that models were published with
    "nomic_bert": {
        "activation_function": "swiglu",
        "causal": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "num_experts": 0,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_weights": True,
        "use_rms_norm": False,
    },
    "gte": {"layer_norm_type": "layer_norm", "logn_attention_scale": False},
    # keys that transformers obeys only in a batch without padding, or otherwise for each half of a batch
    "falcon": {"output_attentions": False},
    "gemma": {"use_bidirectional_attention": False},
    "gemma2": {"use_bidirectional_attention": False},
    "xlnet": {"bi_data": False},
}
"""keys by model_type, and their only values that transformers computes, and computes alike in every batch"""


def check_settings(file: Path, config: Mapping[str, Any]) -> None:
    """Check that no setting is silently ignored, and that vectors are not random.

    Args:
        file: path of config.json, for errors.
        config: its values.

    Raises:
        ModelError: a setting cannot be computed; the message names it.
    """
    model_type = str(config.get("model_type"))
    for name, value in _COMPUTED.get(model_type, {}).items():
        if (found := config.get(name)) not in (None, value):
            raise _refused(file, f"{name} {value!r}", found)
    positions = config.get(_POSITIONS)
    is_rotary = positions in _NAMES_OF_ROTARY and model_type not in ("bert", "roberta", "xlm-roberta")
    if positions not in (None, "absolute") and not is_rotary and model_type not in _READ_POSITIONS:
        raise _refused(file, f"{_POSITIONS} 'absolute'", positions)
    # transformers makes most encoders causal by this setting, but only if a batch has no padding
    is_decoder = config.get("is_decoder") or model_type in DECODER_FAMILIES or _is_language_model(config)
    if config.get("is_causal") and not is_decoder:
        raise _refused(file, "is_causal false", True)
    is_hashed = model_type == "reformer" and "lsh" in (config.get("attn_layers") or "lsh")
    if is_hashed and config.get("hash_seed") is None:
        raise ModelError(
            str(file),
            "a hash_seed, by which a text always gets the same vector",
            "random hashes (hash_seed null)",
            "write a number as hash_seed",
        )


def _is_language_model(config: Mapping[str, Any]) -> bool:
    return any(str(name).endswith("ForCausalLM") for name in config.get("architectures") or ())


def _refused(file: Path, expected: str, found: Any) -> ModelError:
    return ModelError(
        str(file),
        f"{expected}, the only value that is computed",
        repr(found)[:60],
        "use an encoder without this setting",
    )

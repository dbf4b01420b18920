"""Check a model folder's JSON files: types of values, sizes, and settings that would silently change vectors.

Settings of config.json are refused if no code reads them, or if transformers does not obey them in every
batch. Imports neither torch nor transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict  # before Python 3.12, pydantic requires this one

from pipeline.errors import ModelError
from pipeline.models.spec.families import DECODER_FAMILIES
from pipeline.text.tokens.value_rules import TOKENIZER_RULES, check_rules
from pipeline.text.tokens.value_rules import Rule as _Rule

_Count = Annotated[int, Field(ge=0)]
_SIZES = (  # keys of config.json
    *("hidden_size", "dim", "num_hidden_layers", "n_layers", "num_attention_heads", "n_heads"),
    *("intermediate_size", "hidden_dim", "vocab_size", "max_position_embeddings"),
)


class _TokenizerArguments(TypedDict, total=False):
    max_length: _Count | None


class _ProcessingArguments(TypedDict, total=False):
    """Arguments of a tokenizer's calls, by the kind of input."""

    text: _TokenizerArguments | None
    common: _TokenizerArguments | None


# some families have a list with a value per layer, others a single value
_RULES = (
    _Rule("config.json", ("model_type",), str, "a name"),
    _Rule("config.json", ("architectures",), list[str], "a list of names"),
    _Rule(
        "config.json",
        ("pooling_mode",),
        str | Annotated[list[str], Field(min_length=1)],
        "a name, or a list of names,",
    ),
    _Rule("config.json", ("is_encoder_decoder", "is_decoder"), bool, "true or false"),
    _Rule(
        "config.json",
        (
            *("hidden_size", "dim", "d_model", "n_embd", "embedding_size"),
            *("max_position_embeddings", "n_positions", "pad_token_id", "vocab_size"),
            *("max_encoder_position_embeddings", "max_decoder_position_embeddings"),
        ),
        int,
        "a whole number",
    ),
    _Rule(
        "config.json",
        (
            *("num_hidden_layers", "n_layers", "num_layers", "n_layer"),
            *("num_attention_heads", "n_heads", "num_heads", "n_head"),
            *("intermediate_size", "hidden_dim", "d_ff", "d_kv", "type_vocab_size"),
            "relative_attention_num_buckets",
        ),
        int | list[Any],
        "a whole number",
    ),
    _Rule(
        "config.json",
        (
            *("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rope_theta"),
            *("attention_probs_dropout_prob", "hidden_dropout_prob"),
        ),
        float | list[Any],
        "a number",
    ),
    _Rule("config.json", ("hidden_act", "activation", "position_embedding_type"), str | list[Any], "a name"),
    _Rule("sentence_*_config.json", ("transformer_task", "module_output_name"), str, "a name"),
    _Rule("sentence_*_config.json", ("modality_config",), dict[str, dict[str, Any]], "a mapping to mappings"),
    _Rule(
        "sentence_*_config.json",
        (
            *("config_kwargs", "config_args", "model_kwargs", "model_args"),
            *("processor_kwargs", "tokenizer_args"),
        ),
        dict[str, Any],
        "a mapping",
    ),
    _Rule("sentence_*_config.json", ("max_seq_length",), _Count, "a whole number, 0 or more,"),
    _Rule("sentence_*_config.json", ("do_lower_case",), bool, "true or false"),
    _Rule(
        "sentence_*_config.json",
        ("processing_kwargs",),
        _ProcessingArguments,
        "mappings with a whole number as max_length",
    ),
    _Rule(
        "config_sentence_transformers.json",
        ("prompts",),
        dict[str, str | None],
        "a mapping from names to texts",
    ),
    _Rule("config_sentence_transformers.json", ("default_prompt_name",), str, "a name"),
)


def check_values(file: Path, values: Mapping[str, Any]) -> None:
    """Check the types of the values that this project reads from a file. A value may be null or missing.

    Raises:
        ModelError: a value has another type; the message names file, key, expected and found.
    """
    check_rules((*_RULES, *TOKENIZER_RULES), file, values)


def check_numbers(file: Path, config: dict[str, Any]) -> None:
    """Check that the sizes of a model of a packed family are possible.

    Raises:
        ModelError: a size is not a positive number, or the padding token is not in the vocabulary.
    """
    for name in _SIZES:
        if name in config and (type(config[name]) is not int or not 1 <= config[name] < 2**31):
            raise ModelError(
                str(file), f"{name} as a whole number, 1 or more", repr(config[name]), "restore the file"
            )
    pad, words = config.get("pad_token_id"), config.get("vocab_size", 2**31)
    if pad is not None and (type(pad) is not int or not 0 <= pad < words):
        raise ModelError(
            str(file), f"pad_token_id as a number from 0 to {words - 1}", repr(pad), "restore the file"
        )


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
    # keys that transformers obeys only in a batch without padding, or differently in each half of a batch
    "falcon": {"output_attentions": False},
    "gemma": {"use_bidirectional_attention": False},
    "gemma2": {"use_bidirectional_attention": False},
    "xlnet": {"bi_data": False},
}
"""keys by model_type, with the only value that transformers computes alike in every batch"""


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
    window, local = config.get("sliding_window"), config.get("local_attention", 128)
    if (
        model_type == "modernbert"
        and window is not None
        and window != (isinstance(local, int) and local // 2)
    ):
        # transformers sets local_attention to its double, in some versions
        raise _refused(file, "no sliding_window other than half of local_attention", window)
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

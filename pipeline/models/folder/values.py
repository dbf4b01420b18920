"""Types of the values in a model folder's JSON files.

Imports neither torch nor transformers.
"""

import functools
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic refuses that of typing before Python 3.12

from pipeline.errors import ModelError

_Count = Annotated[int, Field(ge=0)]


class _Call(TypedDict, total=False):
    max_length: _Count | None


class _Calls(TypedDict, total=False):
    """Arguments of a tokenizer's calls, by the kind of input."""

    text: _Call | None
    common: _Call | None


# (files, keys, type, its name in an error); some families have a list of values, one per layer
_VALUES: tuple[tuple[str, tuple[str, ...], Any, str], ...] = (
    ("config.json", ("model_type",), str, "a name"),
    ("config.json", ("architectures",), list[str], "a list of names"),
    (
        "config.json",
        ("pooling_mode",),
        str | Annotated[list[str], Field(min_length=1)],
        "a name, or a list of names,",
    ),
    ("config.json", ("is_encoder_decoder", "is_decoder"), bool, "true or false"),
    (
        "config.json",
        (
            *("hidden_size", "dim", "d_model", "embedding_size", "max_position_embeddings", "n_positions"),
            *("max_encoder_position_embeddings", "max_decoder_position_embeddings"),
        ),
        int,
        "a whole number",
    ),
    (
        "config.json",
        (
            *("num_hidden_layers", "n_layers", "num_layers", "num_attention_heads", "n_heads", "num_heads"),
            *("intermediate_size", "hidden_dim", "d_ff", "d_kv", "vocab_size", "type_vocab_size"),
            *("pad_token_id", "relative_attention_num_buckets"),
        ),
        int | list[Any],
        "a whole number",
    ),
    (
        "config.json",
        (
            *("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rope_theta"),
            *("attention_probs_dropout_prob", "hidden_dropout_prob"),
        ),
        float | list[Any],
        "a number",
    ),
    ("config.json", ("hidden_act", "activation", "position_embedding_type"), str | list[Any], "a name"),
    ("sentence_*_config.json", ("transformer_task",), str, "a name"),
    ("sentence_*_config.json", ("max_seq_length",), _Count, "a whole number, 0 or more,"),
    ("sentence_*_config.json", ("do_lower_case",), bool, "true or false"),
    (
        "sentence_*_config.json",
        ("processing_kwargs",),
        _Calls,
        "mappings with a whole number as max_length",
    ),
    (
        "config_sentence_transformers.json",
        ("prompts",),
        dict[str, str | None],
        "a mapping from names to texts",
    ),
    ("config_sentence_transformers.json", ("default_prompt_name",), str, "a name"),
    # tokenizers without a limit write 1e30, as a whole number or not
    ("tokenizer_config.json", ("model_max_length",), Annotated[float, Field(ge=0)], "a number, 0 or more,"),
)


def check_values(file: Path, values: Mapping[str, Any]) -> None:
    """Check the types that every reader of a file relies on. null counts as a missing value.

    Raises:
        ModelError: names file, key, expected and found.
    """
    for number, (pattern, names, _, expected) in enumerate(_VALUES):
        for name in names if fnmatch(file.name, pattern) else ():
            try:
                _adapter(number).validate_python(values.get(name), strict=True)
            except ValidationError:
                raise ModelError(
                    str(file), f"{expected} as {name}", repr(values[name])[:60], "restore the file"
                ) from None


@functools.cache
def _adapter(number: int) -> TypeAdapter[Any]:
    """Validator of an entry of _VALUES, or of null."""
    return TypeAdapter(_VALUES[number][2] | None)

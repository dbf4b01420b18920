"""Types of the values that are read from a model folder's JSON files.

Imports neither torch nor transformers.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError

Fits = Callable[[Any], bool]


def check_values(file: Path, values: Mapping[str, Any]) -> None:
    """Refuse a value of another type than every reader of that file takes for granted. null is no value.

    Raises:
        ModelError: names file, key, expected and found.
    """
    for pattern, names, fits, expected in _VALUES:
        if fnmatch(file.name, pattern):
            for name in names:
                if (value := values.get(name)) is not None and not fits(value):
                    raise ModelError(str(file), f"{expected} as {name}", repr(value)[:60], "restore the file")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) is int


def _is_limit(value: Any) -> bool:
    """Tokenizers without a limit have 1e30, as a whole number or not."""
    return type(value) in (int, float) and value >= 0


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_modes(value: Any) -> bool:
    return _is_text(value) or (_are_texts(value) and bool(value))


def _are_prompts(value: Any) -> bool:
    return _is_mapping(value) and all(each is None or _is_text(each) for each in value.values())


def _are_calls(value: Any) -> bool:
    """Arguments of a tokenizer's calls, by the kind of input."""
    if not _is_mapping(value):
        return False
    calls = [value.get(kind) for kind in ("text", "common") if value.get(kind) is not None]
    limits = [call.get("max_length") for call in calls if _is_mapping(call)]
    return all(map(_is_mapping, calls)) and all(limit is None or _is_count(limit) for limit in limits)


_VALUES: tuple[tuple[str, tuple[str, ...], Fits, str], ...] = (
    ("config.json", ("model_type",), _is_text, "a name"),
    ("config.json", ("architectures",), _are_texts, "a list of names"),
    ("config.json", ("pooling_mode",), _are_modes, "a name, or a list of names,"),
    ("config.json", ("is_encoder_decoder", "is_decoder"), _is_flag, "true or false"),
    (
        "config.json",
        ("hidden_size", "dim", "d_model", "embedding_size", "max_position_embeddings", "n_positions"),
        _is_number,
        "a whole number",
    ),
    (
        "config.json",
        ("max_encoder_position_embeddings", "max_decoder_position_embeddings"),
        _is_number,
        "a whole number",
    ),
    ("sentence_*_config.json", ("transformer_task",), _is_text, "a name"),
    ("sentence_*_config.json", ("max_seq_length",), _is_count, "a whole number, 0 or more,"),
    ("sentence_*_config.json", ("do_lower_case",), _is_flag, "true or false"),
    (
        "sentence_*_config.json",
        ("processing_kwargs",),
        _are_calls,
        "mappings with a whole number as max_length",
    ),
    ("config_sentence_transformers.json", ("prompts",), _are_prompts, "a mapping from names to texts"),
    ("config_sentence_transformers.json", ("default_prompt_name",), _is_text, "a name"),
    ("tokenizer_config.json", ("model_max_length",), _is_limit, "a number, 0 or more,"),
)
"""(files, keys, the test of a value, what it should be)"""

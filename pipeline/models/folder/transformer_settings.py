"""Read the settings of a Transformer module of sentence-transformers, which decide how it reads texts.

Settings that change vectors, and that this project does not compute, are refused. Imports neither torch nor
transformers.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.identity import TRANSFORMER_CONFIGS
from pipeline.models.folder.modules import read_json

# limits of queries and documents of their own, and tokens that queries are filled up with (ColBERT)
_OF_QUERIES_AND_DOCUMENTS = ("query_length", "document_length", "query_expansion")
_PLAIN = {"method": ("forward",), "method_output_name": ("last_hidden_state", ["last_hidden_state"])}
"""values of modality_config for texts whose tokens' last hidden states are pooled"""
_CALL_WITHOUT_EFFECT = ("max_length", "padding", "padding_side", "pad_to_multiple_of", "return_tensors")
"""arguments of a tokenizer's call that change no vector, or that are read from the file"""
_TRUNCATES = (None, True, "longest_first", "only_first")
# arguments of `from_pretrained` that change no vector
_LOADING_WITHOUT_EFFECT = (
    *("attn_implementation", "code_revision", "dtype", "revision", "torch_dtype", "trust_remote_code"),
    *("padding_side", "use_cache", "use_fast"),
)
_LOADING_FILES = {
    "config_kwargs": "config.json",
    "config_args": "config.json",
    "processor_kwargs": "tokenizer_config.json",
    "tokenizer_args": "tokenizer_config.json",
}
"""settings with arguments of `from_pretrained`, and the file whose values these replace"""


def read_transformer_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a Transformer module, such as max_seq_length; {} without a file.

    Raises:
        ModelError: a setting changes vectors and is not supported; the message names it.
    """
    files = (folder / name for name in TRANSFORMER_CONFIGS)  # their file has had several names
    for file in files:
        if settings := read_json(file):
            for expected, found, remedy in _unsupported(folder, settings):
                raise ModelError(str(file), expected, found, remedy)
            return settings
    return {}


def _unsupported(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield expected value, found value and remedy of each setting that is not supported."""
    for name in _OF_QUERIES_AND_DOCUMENTS:
        if settings.get(name) is not None:
            yield f"no {name}", repr(settings[name]), "use an encoder that reads queries as documents"
    yield from _unsupported_modalities(settings)
    for kind, arguments in (settings.get("processing_kwargs") or {}).items():
        for name, value in (arguments or {}).items() if kind in ("text", "common") else ():
            has_effect = value not in _TRUNCATES if name == "truncation" else name not in _CALL_WITHOUT_EFFECT
            if has_effect:
                yield (
                    "no arguments in processing_kwargs but max_length and those of padding",
                    f"{name}: {value!r}",
                    "use an encoder without it",
                )
    for key, file in _LOADING_FILES.items():
        stored = read_json(folder / file) if settings.get(key) else {}
        for name, value in (settings.get(key) or {}).items():
            if name not in _LOADING_WITHOUT_EFFECT and (name not in stored or stored[name] != value):
                yield (f"no {name} in {key}", repr(value), f"write {name} into {file}, and remove it here")


def _unsupported_modalities(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the same for the kinds of input. A cross-encoder has outputs of its own."""
    modalities = settings.get("modality_config")
    if modalities is None or settings.get("transformer_task") == "sequence-classification":
        return
    if "message" in modalities:
        yield (
            "texts that are encoded as they are",
            "a modality_config with message, which puts a chat template around each text",
            "use an encoder without a chat template",
        )
    text = modalities.get("text") or {}
    wrong = [name for name, values in _PLAIN.items() if text.get(name) not in values]
    output = settings.get("module_output_name", "token_embeddings")
    if wrong or output != "token_embeddings":
        yield (
            "last_hidden_state of forward as token_embeddings, in modality_config for text",
            f"{text or None!r} as {output}",
            "use an encoder whose Pooling reads the last hidden states of its tokens",
        )

"""Read from an encoder folder how texts are read: settings of its first module, prompts, the truncated side.

Settings of a Transformer module of sentence-transformers are refused if they change vectors and this project
does not compute them. Imports neither torch nor transformers.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.identity import TRANSFORMER_CONFIGS
from pipeline.models.folder.modules import read_json
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.tokens import Side

# separate limits for queries and documents, and tokens that fill up queries (ColBERT)
_OF_QUERIES_AND_DOCUMENTS = ("query_length", "document_length", "query_expansion")
_PLAIN = {"method": ("forward",), "method_output_name": ("last_hidden_state", ["last_hidden_state"])}
"""values of modality_config of an encoder that pools the last hidden states of a text's tokens"""
_CALL_WITHOUT_EFFECT = ("max_length", "padding", "padding_side", "pad_to_multiple_of", "return_tensors")
"""arguments of a tokenizer's call that change no vector, or that this project obeys, too"""
_TRUNCATES = (None, True, "longest_first", "only_first")
# arguments of `from_pretrained` that change no vector
_LOADING_WITHOUT_EFFECT = (
    *("attn_implementation", "code_revision", "dtype", "revision", "torch_dtype", "trust_remote_code"),
    *("padding_side", "use_cache", "use_fast"),
    *("add_pooling_layer", "cache_dir", "device_map", "low_cpu_mem_usage", "use_safetensors"),
)
_LOADING_FILES = {
    "model_kwargs": "config.json",
    "model_args": "config.json",
    "config_kwargs": "config.json",
    "config_args": "config.json",
    "processor_kwargs": "tokenizer_config.json",
    "tokenizer_args": "tokenizer_config.json",
}
"""settings with arguments of `from_pretrained`, and the file whose values these replace"""
_OTHERS = (
    *("transformer_task", "modality_config", "module_output_name", "processing_kwargs"),
    *("max_seq_length", "do_lower_case", "tokenizer_name_or_path", "unpad_inputs", "backend"),
    "ensure_final_punctuation",  # this project's own Transformer module has it
)
"""further known settings"""
NO_LIMIT = 1_000_000  # tokens; files of tokenizers without a limit have 1e30
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # in the order of sentence-transformers
_TASK_PROMPTS = {"sts": "STS", "pairs": "PairClassification", "transfer": "Classification"}
"""names of prompts for tasks in mteb, by the kind of an evaluation's task"""
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")  # sentence-transformers' names
_TRUNCATION = re.compile(rb'"truncation":\s*(\{[^{}]*\})')
_HEAD_BYTES = 2_048  # beginning of tokenizer.json, in which `truncation` comes second


def prompts_of(settings: EncoderSettings, path: Path) -> tuple[str, str]:
    """Return the prompts of documents and of queries, as sentence-transformers chooses them.

    If the folder has a prompt for queries or for documents, each kind of text gets its own prompt, which may
    be empty; documents without one get the default prompt. Other folders have one prompt for all texts: the
    default, or none. A prompt in the settings replaces both prompts of the folder.
    """
    file = path / "config_sentence_transformers.json"
    config = read_json(file)
    kind = config.get("model_type")
    if kind == "SparseEncoder":
        raise ModelError(
            str(file), "model_type SentenceTransformer", repr(kind), "use an encoder with dense vectors"
        )
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(
            str(file),
            f"default_prompt_name among {', '.join(prompts) or 'no prompts'}",
            repr(default),
            "restore the file",
        )
    query_prompt = prompts.get("query") or ""
    of_documents = [prompts[name] for name in _DOCUMENT_PROMPTS if prompts.get(name) is not None]
    prompt = next(filter(None, of_documents), "")
    has_both_kinds = bool(prompt or query_prompt)
    if not (has_both_kinds and of_documents):
        prompt = prompts.get(default) or ""
    if not has_both_kinds:
        query_prompt = prompt
    if settings.prompt is not None:
        prompt = query_prompt = settings.prompt
    return prompt, query_prompt if settings.query_prompt is None else settings.query_prompt


def task_prompts_of(settings: EncoderSettings, path: Path) -> dict[str, str]:
    """Return the folder's prompts for kinds of evaluation tasks; {} if the settings replace its prompts."""
    prompts = read_json(path / "config_sentence_transformers.json").get("prompts") or {}
    if settings.prompt is not None:
        return {}
    return {kind: prompts[name] for kind, name in _TASK_PROMPTS.items() if prompts.get(name) is not None}


def similarity_of(path: Path) -> str:
    """Return the similarity by which the folder's vectors are to be compared, cosine if it names none."""
    file = path / "config_sentence_transformers.json"
    similarity = read_json(file).get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise ModelError(
            str(file),
            f"similarity_fn_name among {', '.join(_SIMILARITIES)}",
            repr(similarity),
            "restore the file",
        )
    return str(similarity)


def truncation_side(folder: Path) -> Side:
    """Return the side of texts that is truncated, from tokenizer_config.json or else tokenizer.json."""
    file = folder / "tokenizer_config.json"
    side = read_json(file).get("truncation_side")
    if side not in (None, "left", "right"):
        raise ModelError(str(file), "truncation_side left or right", repr(side), "restore the file")
    if side is None:
        side = str(truncation_of(folder).get("direction", "Right")).lower()
    return "start" if side == "left" else "end"


def truncation_of(folder: Path) -> dict[str, Any]:
    """Return the settings `truncation` of tokenizer.json; {} without any.

    Only the beginning of the file is read, as it can have many megabytes.
    """
    if not (folder / "tokenizer.json").is_file():
        return {}
    with (folder / "tokenizer.json").open("rb") as file:
        found = _TRUNCATION.search(file.read(_HEAD_BYTES))
    try:
        return dict(json.loads(found[1])) if found else {}
    except ValueError:
        return {}


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
    if tokenizer := settings.get("tokenizer_name_or_path"):
        yield (
            "no tokenizer_name_or_path",
            repr(tokenizer),
            "copy the files of that tokenizer into the encoder's folder, and remove the key",
        )
    for name in sorted(settings.keys() - {*_OF_QUERIES_AND_DOCUMENTS, *_LOADING_FILES, *_OTHERS}):
        if settings[name] is not None:
            yield "settings of a Transformer module", f"{name}: {settings[name]!r}", "remove it"
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
    """Yield the same for the settings of inputs and outputs; those of a cross-encoder are not checked."""
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

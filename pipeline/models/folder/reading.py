"""Read from an encoder folder how texts are read: prompts before them, and the side that is truncated.

Imports neither torch nor transformers.
"""

import json
import re
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.modules import read_json
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.tokens import Side

NO_LIMIT = 1_000_000  # tokens; files of tokenizers without a limit have 1e30
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # in the order of sentence-transformers
_TASK_PROMPTS = {"sts": "STS", "pairs": "PairClassification", "transfer": "Classification"}
"""names of prompts for tasks in mteb, by the kind of an evaluation's task"""
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")  # the names of sentence-transformers
_TRUNCATION = re.compile(rb'"truncation":\s*(\{[^{}]*\})')
_HEAD_BYTES = 2_048  # beginning of tokenizer.json, in which `truncation` comes second


def prompts_of(settings: EncoderSettings, path: Path) -> tuple[str, str]:
    """Return the prompts of documents and of queries, as sentence-transformers chooses them.

    If the folder has a prompt for queries or for documents, each kind of text gets its own one, which may be
    empty; documents for which the folder names none get the default prompt. Other folders have one prompt for
    all texts: the default, or none. A prompt in the settings replaces both prompts of the folder.
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
    """Return the side of texts that is truncated, by tokenizer_config.json, else by tokenizer.json."""
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

"""Open an encoder folder: its files, modules, pooling, prompts, limits and identity.

Imports neither torch nor transformers.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.models.folder.averaging import averages_of, refuse
from pipeline.models.folder.concatenated import open_joined
from pipeline.models.folder.encoder_folder import (
    ENDS_SENTENCES,
    JOINED,
    MASKED,
    PACKED_FAMILIES,
    EncoderFolder,
)
from pipeline.models.folder.identity import TRANSFORMER_CONFIGS, with_identity
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import (
    Denoising,
    check_numbers,
    modules_of,
    pooling_of,
    read_json,
    tail_of,
)
from pipeline.models.folder.pretrained import check_code
from pipeline.models.folder.weight_files import weights_of
from pipeline.models.folder.word_vectors import RECURRENT, WORDS
from pipeline.models.layers.pooling import POOLINGS
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.tokens import Side

_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # in the order of sentence-transformers
_LEFT_TRUNCATION = re.compile(rb'"truncation":\s*\{[^{}]*"direction":\s*"Left"')
_NO_LIMIT = 1_000_000  # tokenizers without a limit write 1e30
_DEFAULT_LENGTH = 512  # as models are trained whose files name no limit


def open_folder(settings: EncoderSettings) -> EncoderFolder:
    """Open the encoder of the settings.

    Raises:
        ModelError: it cannot be used; the message names file, expected and found.
    """
    path = locate(settings.path)
    if read_json(path / "config.json").get("model_type") == JOINED:
        return open_joined(path, settings, open_folder)
    modules = modules_of(path)
    transformer = modules[0][1] if modules else ""
    config = read_json(path / transformer / "config.json", required=True)
    check_code(path / transformer)
    if config.get("model_type") in PACKED_FAMILIES:
        check_numbers(path / transformer / "config.json", config)
    own = _transformer_settings(path / transformer)
    pooling, include_prompt = pooling_of(path, modules)
    prompt, query_prompt = _prompts(settings, path)
    folder = EncoderFolder(
        path=path,
        transformer=transformer,
        config=config,
        family=_family(config),
        tail=tuple(tail_of(path, modules, settings.normalize)),
        prompt=prompt,
        query_prompt=query_prompt,
        pooling=_checked_pooling(settings, pooling),
        include_prompt=include_prompt or settings.pooling is not None or settings.template is not None,
        max_length=_max_length(path / transformer, config, own, settings.max_length),
        lower=bool(own.get("do_lower_case")),
        cuts=_cuts(path / transformer),
        template=settings.template,
        ends_sentences=settings.ensure_final_punctuation or bool(own.get(ENDS_SENTENCES)),
        dim=0,
        weights=weights_of(path, transformer),
        files={},
    )
    _check_pooling(folder, settings)
    averages = averages_of(
        settings, path, str(config.get("model_type")), folder.pooling, words=folder.family == "words"
    )
    return with_identity(replace(folder, averages=averages), modules)


def positions_of(config: Mapping[str, Any]) -> int:
    """Number of tokens that a model has positions for."""
    positions = int(config.get("max_position_embeddings") or config.get("n_positions") or _NO_LIMIT)
    if PACKED_FAMILIES.get(str(config.get("model_type"))) in ("roberta", "mpnet"):
        positions -= int(config.get("pad_token_id", 1)) + 1  # their positions start behind the padding index
    return positions


def _transformer_settings(folder: Path) -> dict[str, Any]:
    """max_seq_length and do_lower_case, from a file with one of its historic names."""
    own = next((read for name in TRANSFORMER_CONFIGS if (read := read_json(folder / name))), {})
    if (task := own.get("transformer_task", "feature-extraction")) != "feature-extraction":
        raise ModelError(
            str(folder), "a Transformer module for feature-extraction", repr(task), "use an encoder of texts"
        )
    return own


def _checked_pooling(settings: EncoderSettings, own: tuple[str, ...]) -> tuple[str, ...]:
    """Poolings of the settings, such as mean, or mean+max; by default a template's mask, or the folder's."""
    if settings.pooling is None:
        return MASKED if settings.template is not None else own
    pooling = tuple(name.strip() for name in settings.pooling.split("+"))
    for name in pooling:
        if name not in POOLINGS:
            near = difflib.get_close_matches(name, POOLINGS, n=1)
            raise ModelError(
                "encoder.pooling",
                f"one of {', '.join(POOLINGS)}",
                repr(name),
                f"did you mean {near[0]!r}?" if near else "choose one; a + between two concatenates them",
            )
    return pooling


def _check_pooling(folder: EncoderFolder, settings: EncoderSettings) -> None:
    """Check that pooling, template and family go together."""
    pooling, recurrent = "+".join(folder.pooling), folder.family == "recurrent"
    refuse(
        (
            "mask" in folder.pooling and folder.pooling != MASKED,
            "encoder.pooling",
            "mask by itself",
            pooling,
            "choose mask, or poolings without it",
        ),
        (
            folder.template is not None and folder.whole_words,
            "encoder.template",
            "a model with a mask token",
            f"an encoder of words at {settings.path}",
            "set it to null",
        ),
        (
            folder.template is not None and settings.exclude,
            "encoder.exclude",
            "nothing beside encoder.template, whose tokens would be left out of texts too",
            ", ".join(settings.exclude),
            "use one of both",
        ),
        (
            folder.pooling != MASKED and any(isinstance(module, Denoising) for module in folder.tail),
            "encoder.pooling",
            "mask, whose vectors the folder's Denoise module is made for",
            pooling,
            "set it to null",
        ),
        (
            recurrent and not all(POOLINGS[name].recurrent for name in folder.pooling),
            "encoder.pooling",
            f"one of {', '.join(each.name for each in POOLINGS.values() if each.recurrent)} for a recurrent "
            "encoder",
            pooling,
            "choose one of these",
        ),
        (
            recurrent and folder.config.get("contexts") and folder.pooling != ("mean",),
            "encoder.pooling",
            "mean, the pooling of an encoder with attention weights",
            pooling,
            "set it to null",
        ),
        (
            "ends" in folder.pooling and folder.config.get("directions") != 2,
            "encoder.pooling",
            "an encoder of two directions for ends, the final state of each",
            pooling,
            "choose last, mean or max",
        ),
    )


def _prompts(settings: EncoderSettings, path: Path) -> tuple[str, str]:
    """Prompts of documents and of queries, as `encode_document` and `encode_query` of sentence-transformers.

    A folder with prompts for both gets both, otherwise documents get the default prompt or none. A prompt in
    the settings replaces both of the folder.
    """
    file = path / "config_sentence_transformers.json"
    config = read_json(file)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(
            str(file),
            f"default_prompt_name among {', '.join(prompts) or 'no prompts'}",
            repr(default),
            "restore the file",
        )
    own_query = prompts.get("query") if settings.prompt is None else None
    prompt = settings.prompt
    if prompt is None and own_query:
        prompt = next((prompts[name] for name in _DOCUMENT_PROMPTS if prompts.get(name)), None)
    if prompt is None:
        prompt = prompts.get(default, "")
    return prompt, settings.query_prompt if settings.query_prompt is not None else own_query or prompt


def _family(config: dict[str, Any]) -> str:
    """Family by config.json; `other` unless the packed forward pass computes exactly this model."""
    kind = str(config.get("model_type"))
    usual = (
        config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder")
        and config.get("activation", config.get("hidden_act", "gelu")) in ("gelu", "relu", "gelu_new")
        and not config.get("quantization_config")
    )
    if own := {WORDS: "words", RECURRENT: "recurrent"}.get(kind):
        return own
    return PACKED_FAMILIES.get(kind, "other") if usual else "other"


def _max_length(folder: Path, config: dict[str, Any], own: dict[str, Any], wanted: int | None) -> int:
    """Tokens of a text: the settings' limit, or sentence-transformers', or the tokenizer's.

    It is never above the number of positions.
    """
    positions = positions_of(config)
    if wanted is not None and wanted > positions:
        raise ModelError(
            "encoder.max_length", f"at most the {positions} positions of the model", str(wanted), "lower it"
        )
    if wanted is not None:
        return wanted
    calls = own.get("processing_kwargs") or {}  # arguments of the tokenizer's call, which precede the others
    called = (calls.get("text") or {}).get("max_length") or (calls.get("common") or {}).get("max_length")
    named = (
        called
        or own.get("max_seq_length")
        or read_json(folder / "tokenizer_config.json").get("model_max_length")
        or _NO_LIMIT
    )
    limit = min(int(min(named, _NO_LIMIT)), positions)
    return limit if limit < _NO_LIMIT else _DEFAULT_LENGTH


def _cuts(folder: Path) -> Side:
    """Side that is truncated, as in transformers: by tokenizer_config.json, or by tokenizer.json.

    Only the beginning of the latter is read, as it can have many megabytes.
    """
    file = folder / "tokenizer_config.json"
    named = read_json(file).get("truncation_side")
    if named not in (None, "left", "right"):
        raise ModelError(str(file), "truncation_side left or right", repr(named), "restore the file")
    if named is None and (folder / "tokenizer.json").is_file():
        with (folder / "tokenizer.json").open("rb") as head:
            named = "left" if _LEFT_TRUNCATION.search(head.read(2_048)) else "right"
    return "start" if named == "left" else "end"

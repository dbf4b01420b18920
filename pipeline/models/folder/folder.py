"""Open an encoder folder: read its files and modules, and apply the overrides of the settings.

Imports neither torch nor transformers.
"""

import multiprocessing
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError
from pipeline.log import announce
from pipeline.models.folder.averaging import resolve_averaging
from pipeline.models.folder.check_pooling import check_dim, check_pooling, check_template, choose_pooling
from pipeline.models.folder.concatenated import open_joined
from pipeline.models.folder.cross_encoder import is_cross_encoder
from pipeline.models.folder.encoder_folder import (
    ENDS_SENTENCES,
    JOINED,
    EncoderFolder,
)
from pipeline.models.folder.identity import with_identity
from pipeline.models.folder.json_checks import check_numbers, check_settings
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import (
    ModuleEntry,
    is_static,
    modules_of,
    pooling_of,
    read_json,
)
from pipeline.models.folder.post_modules import tail_of
from pipeline.models.folder.pretrained import check_code
from pipeline.models.folder.reading import (
    NO_LIMIT,
    prompts_of,
    read_transformer_settings,
    similarity_of,
    truncation_side,
)
from pipeline.models.folder.static_embedding import open_static, plain_model2vec
from pipeline.models.folder.weight_files import pooling_weights_of, weights_of
from pipeline.models.folder.word_vectors import CONVOLUTIONAL, DAN, PARAGRAPH, RECURRENT, WORDS
from pipeline.models.spec.families import (
    PACKED_FAMILIES,
    ROTARY_FAMILIES,
    TABLE_FAMILIES,
    architecture_of,
)
from pipeline.settings import EncoderSettings

_OWN_FAMILIES = {
    WORDS: "words",
    PARAGRAPH: "paragraph",
    RECURRENT: "recurrent",
    CONVOLUTIONAL: "convolutional",
    DAN: "dan",
}
_announced = set[tuple[str, str]]()  # space and warning, without the folder's path
_DEFAULT_LENGTH = 512  # tokens, if the files have no limit; the length that most models are trained with
# keys of config.json of models that compute positions (rotary ones, or distances as T5)
_COMPUTED_POSITIONS = ("rope_parameters", "rope_theta", "relative_attention_num_buckets")


def open_folder(settings: EncoderSettings, *, cross_encoder: bool = False) -> EncoderFolder:
    """Open the encoder of the settings.

    Args:
        settings: path of the encoder, and settings that override its files.
        cross_encoder: accept the folder of a cross-encoder, for example one that the objective
            `sequence_classification` trained on pairs, and give it the pooling cls_mlp. Only a training may
            start from such a folder.

    Raises:
        ModelError: it cannot be used; the message names file, expected and found.
    """
    path = locate(settings.path)
    if read_json(path / "config.json").get("model_type") == JOINED:
        return open_joined(path, settings, open_folder)
    modules = modules_of(path) or plain_model2vec(path)
    if is_static(modules):
        folder = open_static(path, settings, modules)
    else:
        folder = _open_layers(path, settings, modules, cross_encoder)
    check_template(folder, settings)
    check_pooling(folder)
    words, model_type = folder.family == "words", str(folder.config.get("model_type"))
    averaging = resolve_averaging(settings, path, model_type, folder.pooling, words=words)
    complete = with_identity(replace(folder, averaging=averaging), modules)
    check_dim(complete, settings)
    return complete


def announce_warnings(folder: EncoderFolder, path: str | None = None) -> None:
    """Announce the folder's warnings, each once per space and process.

    A child process announces none, because its parent does.

    Args:
        path: the folder's path to show; None: its own.
    """
    if multiprocessing.parent_process() is not None:
        return
    for warning in folder.warnings:
        text = warning.replace(str(folder.path), "")
        if (folder.space_id, text) not in _announced:
            _announced.add((folder.space_id, text))
            announce(f"warning: {warning.replace(str(folder.path), path or str(folder.path))}")


def _open_layers(
    path: Path, settings: EncoderSettings, modules: list[ModuleEntry], cross_encoder: bool
) -> EncoderFolder:
    """Open a folder whose config.json describes the encoder: a transformer, or a model of this project."""
    transformer = modules[0].folder if modules else ""
    transformer_path = path / transformer
    check_code(transformer_path)  # before config.json, which the folder of an adapter lacks
    config = read_json(transformer_path / "config.json", required=True)
    if config.get("model_type") in TABLE_FAMILIES:
        check_numbers(transformer_path / "config.json", config)
    check_settings(transformer_path / "config.json", config)
    st_config = read_transformer_settings(transformer_path)
    folder_pooling, include_prompt = pooling_of(path, modules, config)
    is_cross = is_cross_encoder(transformer_path, st_config, allowed=cross_encoder)
    pooling = choose_pooling(settings, ("cls_mlp",) if is_cross else folder_pooling)
    prompt, query_prompt = prompts_of(settings, path)
    return EncoderFolder(
        path=path,
        transformer=transformer,
        config=config,
        family=_family(config),
        tail=tuple(tail_of(path, modules, settings)),
        prompt=prompt,
        query_prompt=query_prompt,
        pooling=pooling,
        pooling_weights=pooling_weights_of(path, modules, pooling),
        include_prompt=include_prompt or settings.pooling is not None or settings.template is not None,
        max_length=_max_length(transformer_path, config, st_config, settings.max_length),
        lower=bool(st_config.get("do_lower_case")),
        truncation_side=truncation_side(transformer_path),
        template=settings.template,
        similarity=similarity_of(path),
        ends_sentences=settings.ensure_final_punctuation or bool(st_config.get(ENDS_SENTENCES)),
        dim=0,  # with_identity fills in dim and files
        weights=weights_of(path, transformer),
        files={},
    )


def positions_of(config: Mapping[str, Any]) -> int:
    """Return the number of tokens for which a model has positions."""
    rows = int(config.get("max_position_embeddings") or config.get("n_positions") or NO_LIMIT)
    return rows - first_position(config)


def first_position(config: Mapping[str, Any]) -> int:
    """Return the position id of the first token: the padding id plus 1 in RoBERTa and MPNet, else 0."""
    counts_from_pad = TABLE_FAMILIES.get(str(config.get("model_type"))) in ("roberta", "mpnet")
    if not counts_from_pad:
        return 0
    pad = config.get("pad_token_id")
    return 2 if pad is None else int(pad) + 1


def _family(config: dict[str, Any]) -> str:
    """Return the model's family: `other` for a transformer that the packed forward pass cannot compute."""
    model_type = str(config.get("model_type"))
    if model_type in _OWN_FAMILIES:
        return _OWN_FAMILIES[model_type]
    return PACKED_FAMILIES[model_type] if architecture_of(config) is not None else "other"


def _max_length(folder: Path, config: dict[str, Any], st_config: dict[str, Any], wanted: int | None) -> int:
    """Return the maximum number of tokens, from the settings, sentence-transformers' file or the tokenizer's.

    It is at most the number of positions. If the model has no table of positions, sentence-transformers' file
    may state more of them than config.json.
    """
    arguments = st_config.get("processing_kwargs") or {}  # arguments of a call of the tokenizer
    limits = (  # the first limit that is set
        (arguments.get("common") or {}).get("max_length"),
        (arguments.get("text") or {}).get("max_length"),
        st_config.get("max_seq_length"),
    )
    stated, positions = next(filter(None, limits), None), positions_of(config)
    if stated is not None and not _has_position_table(config):
        positions = max(positions, stated)
    if wanted is not None:
        if wanted > positions:
            raise ModelError(
                "encoder.max_length",
                f"at most the {positions} positions of the model",
                str(wanted),
                "lower it",
            )
        return wanted
    of_tokenizer = read_json(folder / "tokenizer_config.json").get("model_max_length")
    limit = int(min(stated or of_tokenizer or NO_LIMIT, positions, NO_LIMIT))
    return limit if limit < NO_LIMIT else _DEFAULT_LENGTH


def _has_position_table(config: Mapping[str, Any]) -> bool:
    """Return whether a model has a vector for each position, not rotary or relative positions."""
    model_type = str(config.get("model_type"))
    is_computed = model_type in ROTARY_FAMILIES or any(name in config for name in _COMPUTED_POSITIONS)
    return model_type in TABLE_FAMILIES or not is_computed

"""Open and load sequence-to-sequence models: their folders, languages, tokenizers and weights.

torch and transformers are imported only where a model or a tokenizer is loaded.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from pipeline.errors import ConfigError, ModelError, did_you_mean
from pipeline.models.folder.folder import positions_of
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import read_json
from pipeline.models.folder.pretrained import check_code, load_complete, load_pretrained_tokenizer, one_line
from pipeline.models.folder.weight_files import weights_of
from pipeline.settings.augment import TranslatorSettings
from pipeline.store.files.cache import digest_of_file

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "target_vocab.json",
    "vocab.txt",
    "merges.txt",
    "source.spm",
    "target.spm",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)
_MULTILINGUAL = ("m2m_100", "mbart", "nllb-moe")  # model types whose tokenizers have language codes
_OTHER_TASKS = re.compile(r"Classification|QuestionAnswering|EncoderModel|ForCausalLM")
_LANGUAGE_TOKEN = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")  # M2M100; NLLB, mBART
_OUTPUT_BIAS = "final_logits_bias"  # a buffer of Marian, BART and mBART, which Marian's training changes
_NO_LIMIT = 100_000  # tokens; files of tokenizers without a limit have 1e30
_DEFAULT_LIMIT = 512  # tokens, for a model without a limit, such as T5 with its relative positions


@dataclass(frozen=True)
class TranslatorFolder:
    """Resolved folder of a translation model."""

    path: Path
    config: Mapping[str, Any] = field(repr=False)
    longest: int
    """maximum tokens of a source text"""
    positions: int
    """maximum tokens of a translation"""
    weights: tuple[str, ...]

    def digests(self) -> dict[str, JsonValue]:
        """Hash the files that the model's translations depend on: sha256 by file name."""
        names = sorted(("config.json", "generation_config.json", *_TOKENIZER_FILES, *self.weights))
        return {name: digest_of_file(self.path / name) for name in names if (self.path / name).is_file()}


def open_translator(settings: TranslatorSettings) -> TranslatorFolder:
    """Find the model of `settings` and read its configuration.

    Raises:
        ModelError: there is no model at the path, or it is not a sequence-to-sequence model.
        ConfigError: max_length is above the model's positions.
    """
    path = _locate_folder(settings.path)
    config = read_json(path / "config.json", required=True)
    check_code(path, "AutoModelForSeq2SeqLM")
    architectures = [str(name) for name in config.get("architectures") or ()]
    other_task = bool(architectures) and all(_OTHER_TASKS.search(name) for name in architectures)
    if other_task or not config.get("is_encoder_decoder"):
        raise ModelError(
            str(path / "config.json"),
            "a sequence-to-sequence model such as MarianMTModel",
            ", ".join(architectures) or str(config.get("model_type", "no model_type")),
            "give a translation model",
        )
    source_positions = _positions(config, "encoder")
    if settings.max_length is not None and settings.max_length > source_positions:
        raise ConfigError(
            f"max_length of {settings.path}",
            f"at most the {source_positions:,} positions of the model",
            f"{settings.max_length:,}",
            "lower it",
        )
    return TranslatorFolder(
        path=path,
        config=config,
        longest=settings.max_length or _source_limit(path, source_positions),
        positions=_positions(config, "decoder"),
        weights=weights_of(path, ""),
    )


def check_languages(folder: TranslatorFolder, settings: TranslatorSettings) -> None:
    """Check the languages of the settings.

    Loads the tokenizer (and transformers) only if the settings name a language or the model is multilingual.

    Raises:
        ConfigError: a language is unknown or missing; see `open_tokenizer`.
    """
    names_language = settings.source or settings.target or settings.prefix.startswith(">>")
    if names_language or folder.config.get("model_type") in _MULTILINGUAL:
        open_tokenizer(folder, settings)


def check_weights(folder: TranslatorFolder) -> None:
    """Read the headers of the safetensors files, but no tensor.

    Raises:
        ModelError: a file is truncated or its header is corrupt.
    """
    from safetensors import SafetensorError, safe_open

    for file in (folder.path / name for name in folder.weights if name.endswith(".safetensors")):
        try:
            with safe_open(str(file), framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(
                str(file), "a complete safetensors file", one_line(error), "fetch the file again"
            ) from None


@dataclass(frozen=True)
class TranslationTokenizer:
    """Tokenizer of a translation model, set to its source and target language."""

    tokenizer: Any
    prefix: str
    first: int | None
    """token of the target language, if it is the first token of every translation"""
    start: int | None
    """token of the target language, if it is the decoder start token (mBART-25)"""

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, special tokens included, not truncated."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(
            [self.prefix + text for text in texts],
            truncation=False,
            padding=False,
            return_attention_mask=False,
            verbose=False,
        )["input_ids"]
        return ids

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Decode the tokens of each translation to text, without special tokens."""
        rows = [list(ids) for ids in tokens]
        if self.first is not None:
            rows = [ids[1:] if ids[:1] == [self.first] else ids for ids in rows]
        return [text.strip() for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]


def open_tokenizer(folder: TranslatorFolder, settings: TranslatorSettings) -> TranslationTokenizer:
    """Load the tokenizer and set it to the languages of `settings`.

    Raises:
        ConfigError: a language is unknown or missing, or is set for a model without languages.
        ModelError: transformers cannot load the tokenizer.
    """
    try:
        tokenizer = load_pretrained_tokenizer(folder.path)
    except ImportError as error:
        raise ModelError(
            str(folder.path),
            "the packages of its tokenizer",
            one_line(error),
            'pip install "manta-embeddings[augment]", which has sentencepiece',
        ) from None
    codes = _language_codes(tokenizer)
    for role in ("source", "target"):
        _check_language(role, settings, codes)
    _check_prefix(settings, tokenizer)
    if settings.source is not None:
        tokenizer.src_lang = settings.source
    target = codes.get(settings.target) if settings.target is not None else None
    # mBART-25 takes the language as decoder start token, other models as first token of the translation
    is_start = type(tokenizer).__name__.startswith("MBartTokenizer")
    first, start = (None, target) if is_start else (target, None)
    return TranslationTokenizer(tokenizer, settings.prefix, first, start)


def load_model(folder: TranslatorFolder, dtype: Any) -> Any:
    """Load the transformers model for inference.

    Raises:
        ModelError: the weights are corrupt, incomplete or do not match config.json.
    """
    from transformers import AutoModelForSeq2SeqLM

    from pipeline.models.layers.weights import open_files

    model = load_complete(
        AutoModelForSeq2SeqLM, folder.path, "a model that AutoModelForSeq2SeqLM loads", dtype=dtype
    ).eval()
    if _OUTPUT_BIAS in model.state_dict():  # transformers sets it to zero without a warning if it is missing
        files = [folder.path / name for name in folder.weights if not name.endswith(".index.json")]
        open_files(str(folder.path), files).check_present([_OUTPUT_BIAS])
    return model


def _locate_folder(path: str) -> Path:
    """Return the local folder of a model, with errors that speak of translation models."""
    if "://" not in path and Path(os.path.expanduser(path)).is_file():
        raise ModelError(
            path, "the folder of a translation model", "a file", "give the folder that contains it"
        )
    try:
        return locate(path)
    except ModelError as error:  # the message of the cause is about encoders
        raise ModelError(
            path,
            "a translation model: a folder, the URI of a folder or a hub id",
            error.found,
            "check the path; a model of the hub needs the network once",
        ) from None


def _positions(config: Mapping[str, Any], side: str) -> int:
    """Return the number of positions of the encoder or decoder; EncoderDecoderModel nests their configs."""
    nested = config.get(side)
    positions = config.get(f"max_{side}_position_embeddings")
    return int(positions or positions_of(nested if isinstance(nested, dict) else config))


def _source_limit(path: Path, positions: int) -> int:
    """Return the limit of source tokens: the tokenizer's limit or the number of positions, whichever is
    smaller.
    """
    tokenizer_limit = read_json(path / "tokenizer_config.json").get("model_max_length")
    limits = [int(limit) for limit in (tokenizer_limit, positions) if limit and limit < _NO_LIMIT]
    return min(limits, default=_DEFAULT_LIMIT)


def _language_codes(tokenizer: Any) -> dict[str, int]:
    """Return the token id of each language code of the tokenizer; empty for a model of one language pair."""
    if not hasattr(tokenizer, "src_lang"):
        return {}
    if ids := getattr(tokenizer, "lang_code_to_id", None):
        return {str(code): int(token_id) for code, token_id in ids.items()}
    special = [str(token) for token in (*tokenizer.all_special_tokens, *tokenizer.get_added_vocab())]
    return {
        token: int(tokenizer.convert_tokens_to_ids(token))
        for token in dict.fromkeys(special)
        if _LANGUAGE_TOKEN.fullmatch(token)
    }


def _check_language(role: str, settings: TranslatorSettings, codes: Mapping[str, int]) -> None:
    """Raise ConfigError unless the setting `role`, source or target, fits the model's language codes."""
    value, where = getattr(settings, role), f"{role} of {settings.path}"
    if value is None and codes:
        raise ConfigError(
            where,
            "a language code, as the model has several languages",
            "none",
            f"set {role}, for instance {_list_codes(codes)}",
        )
    if value is not None and not codes:
        raise ConfigError(
            where,
            "null, as the model's tokenizer has no languages",
            repr(value),
            "leave it out; some models take the language from prefix instead",
        )
    if value is not None and value not in codes:
        raise ConfigError(where, "a language code of the model", repr(value), _suggest(value, codes))


def _check_prefix(settings: TranslatorSettings, tokenizer: Any) -> None:
    """Refuse an unknown >>code<<, which a Marian model would read as unknown words."""
    known = getattr(tokenizer, "supported_language_codes", None) or []
    code = settings.prefix.partition("<<")[0] + "<<"
    if settings.prefix.startswith(">>") and code not in known:
        raise ConfigError(
            f"prefix of {settings.path}",
            "the code of a target language of the model",
            repr(settings.prefix),
            _suggest(code, known),
        )


def _suggest(value: str, codes: Mapping[str, int] | Sequence[str]) -> str:
    """Suggest codes that are similar to `value`, or begin like it; without any, list the known codes."""
    alike = [code for code in codes if code.startswith(value[:2])][:3]
    otherwise = f"did you mean {' or '.join(map(repr, alike))}?" if alike else f"known: {_list_codes(codes)}"
    return did_you_mean(value, codes, otherwise, most=3)


def _list_codes(codes: Mapping[str, int] | Sequence[str]) -> str:
    """List the first eight codes and the number of all; "none" if there are none."""
    names = sorted(codes)
    return ", ".join(names[:8]) + (f" ... ({len(names)} in all)" if len(names) > 8 else "") or "none"

"""Sequence-to-sequence models: their folders, languages, tokenizers and weights.

torch and transformers are imported only where a model or a tokenizer is loaded.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.folder import positions_of
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import read_json
from pipeline.models.folder.pretrained import check_code, load_pretrained_tokenizer, load_whole, one_line
from pipeline.models.folder.weight_files import weights_of
from pipeline.settings.augment import TranslatorSettings
from pipeline.store.cache import digest_of_file

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
_MULTILINGUAL = ("m2m_100", "mbart", "nllb-moe")  # their tokenizers have a code for every language
_OTHER_TASKS = re.compile(r"Classification|QuestionAnswering|EncoderModel|ForCausalLM")
_CODE = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")  # of M2M100; of NLLB and mBART
_OUTPUT_BIAS = "final_logits_bias"  # a buffer of Marian, BART and mBART, which Marian's training changes
_NO_LIMIT = 100_000  # tokenizers without a limit write 1e30
_PLAIN_LIMIT = 512  # of a model without a limit of its own, such as T5 with relative positions


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
        names = ("config.json", "generation_config.json", *_TOKENIZER_FILES, *self.weights)
        files = {name: self.path / name for name in sorted(names)}
        return {name: digest_of_file(file) for name, file in files.items() if file.is_file()}


def open_translator(settings: TranslatorSettings) -> TranslatorFolder:
    """Find the model of `settings` and read its configuration.

    Raises:
        ModelError: there is no model at the path, or it is not a sequence-to-sequence model.
        ConfigError: max_length is above the model's positions.
    """
    path = _located(settings.path)
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
    source, target = _positions(config, "encoder"), _positions(config, "decoder")
    if settings.max_length is not None and settings.max_length > source:
        raise ConfigError(
            f"max_length of {settings.path}",
            f"at most the {source:,} positions of the model",
            f"{settings.max_length:,}",
            "lower it",
        )
    return TranslatorFolder(
        path, config, settings.max_length or _read_at_most(path, source), target, weights_of(path, "")
    )


def check_languages(folder: TranslatorFolder, settings: TranslatorSettings) -> None:
    """Refuse unknown and missing languages.

    Loads the tokenizer (and transformers) only if the settings name a language or the model is multilingual.

    Raises:
        ConfigError: see `load_wording`.
    """
    named = settings.source or settings.target or settings.prefix.startswith(">>")
    if named or folder.config.get("model_type") in _MULTILINGUAL:
        load_wording(folder, settings)


def check_weights(folder: TranslatorFolder) -> None:
    """Read the headers of the safetensors files, but no tensor.

    Raises:
        ModelError: a file is truncated or its header is corrupt.
    """
    from safetensors import SafetensorError, safe_open

    for name in folder.weights:
        if name.endswith(".safetensors"):
            try:
                with safe_open(str(folder.path / name), framework="np"):
                    pass
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    str(folder.path / name),
                    "a whole safetensors file",
                    " ".join(str(error).split()),
                    "fetch the file again",
                ) from None


@dataclass(frozen=True)
class Wording:
    """Tokenizer of a translation model, set to its source and target language."""

    tokenizer: Any
    prefix: str
    first: int | None
    """token of the target language, if every translation begins with it"""
    start: int | None
    """token of the target language, if it is the decoder start token (mBART-25)"""

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, special tokens included, not truncated."""
        if not texts:
            return []
        found: list[list[int]] = self.tokenizer(
            [self.prefix + text for text in texts],
            truncation=False,
            padding=False,
            return_attention_mask=False,
            verbose=False,
        )["input_ids"]
        return found

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each translation, given its tokens; special tokens are skipped."""
        rows = [list(ids) for ids in tokens]
        if self.first is not None:
            rows = [ids[1:] if ids[:1] == [self.first] else ids for ids in rows]
        return [text.strip() for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]


def load_wording(folder: TranslatorFolder, settings: TranslatorSettings) -> Wording:
    """Load the tokenizer and set it to the languages of `settings`.

    Raises:
        ConfigError: a language is unknown (with similar codes), is missing, or the model has no languages.
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
    codes = _codes(tokenizer)
    for role in ("source", "target"):
        _check_code(role, settings, codes)
    _check_prefix(settings, tokenizer)
    if settings.source is not None:
        tokenizer.src_lang = settings.source
    target = codes.get(settings.target) if settings.target is not None else None
    # mBART-25 has the language as decoder start token, all others as first token of the translation
    starts = type(tokenizer).__name__.startswith("MBartTokenizer")
    return Wording(tokenizer, settings.prefix, None if starts else target, target if starts else None)


def load_model(folder: TranslatorFolder, dtype: Any) -> Any:
    """Load the transformers model for inference.

    Raises:
        ModelError: the weights are corrupt, incomplete or do not match config.json.
    """
    from transformers import AutoModelForSeq2SeqLM

    from pipeline.models.layers.weights import open_files

    wanted = "a model that AutoModelForSeq2SeqLM loads"
    model = load_whole(AutoModelForSeq2SeqLM, folder.path, wanted, dtype=dtype).eval()
    if _OUTPUT_BIAS in model.state_dict():  # transformers sets it to zero without a warning if it is missing
        files = [folder.path / name for name in folder.weights if not name.endswith(".index.json")]
        open_files(str(folder.path), files).check_present([_OUTPUT_BIAS])
    return model


def _located(path: str) -> Path:
    if "://" not in path and Path(path).expanduser().is_file():
        raise ModelError(
            path, "the folder of a translation model", "a file", "give the folder that contains it"
        )
    try:
        return locate(path)
    except ModelError as error:  # its message is about encoders
        raise ModelError(
            path,
            "a translation model: a folder, the URI of a folder or a hub id",
            error.found,
            "check the path; a model of the hub needs the network once",
        ) from None


def _positions(config: Mapping[str, Any], side: str) -> int:
    """Return the positions of one side: LED has a key per side, an encoder-decoder pair nested values."""
    own = config.get(side)
    named = config.get(f"max_{side}_position_embeddings")
    return int(named or positions_of(own if isinstance(own, dict) else config))


def _read_at_most(path: Path, positions: int) -> int:
    named = read_json(path / "tokenizer_config.json").get("model_max_length")
    known = [int(limit) for limit in (named, positions) if limit and limit < _NO_LIMIT]
    return min(known, default=_PLAIN_LIMIT)


def _codes(tokenizer: Any) -> dict[str, int]:
    """Return the token id of each language code of the tokenizer; empty for a model of one language pair."""
    if not hasattr(tokenizer, "src_lang"):
        return {}
    if named := getattr(tokenizer, "lang_code_to_id", None):
        return {str(code): int(number) for code, number in named.items()}
    special = [str(token) for token in (*tokenizer.all_special_tokens, *tokenizer.get_added_vocab())]
    return {
        token: int(tokenizer.convert_tokens_to_ids(token))
        for token in dict.fromkeys(special)
        if _CODE.fullmatch(token)
    }


def _check_code(role: str, settings: TranslatorSettings, codes: Mapping[str, int]) -> None:
    value = getattr(settings, role)
    where = f"{role} of {settings.path}"
    if value is None and codes:
        raise ConfigError(
            where,
            "a language code, as the model has several languages",
            "none",
            f"set {role}, for instance {_some(codes)}",
        )
    if value is not None and not codes:
        raise ConfigError(
            where,
            "null, as the model's tokenizer has no languages",
            repr(value),
            "leave it out; some models take the language from prefix instead",
        )
    if value is not None and value not in codes:
        raise ConfigError(where, "a language code of the model", repr(value), _near(value, codes))


def _check_prefix(settings: TranslatorSettings, tokenizer: Any) -> None:
    """Refuse an unknown >>code<<, which a Marian model would read as unknown words."""
    known = getattr(tokenizer, "supported_language_codes", None) or []
    code = settings.prefix.partition("<<")[0] + "<<"
    if settings.prefix.startswith(">>") and code not in known:
        raise ConfigError(
            f"prefix of {settings.path}",
            "the code of a target language of the model",
            repr(settings.prefix),
            _near(code, known),
        )


def _near(value: str, codes: Mapping[str, int] | Sequence[str]) -> str:
    """Suggest codes similar to `value`; all codes if none is."""
    near = difflib.get_close_matches(value, list(codes), n=3, cutoff=0.5)
    near = near or [code for code in codes if code.startswith(value[:2])][:3]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {_some(codes)}"


def _some(codes: Mapping[str, int] | Sequence[str]) -> str:
    """List the first eight codes and the number of all; "none" if there are none."""
    names = sorted(codes)
    return ", ".join(names[:8]) + (f" ... ({len(names)} in all)" if len(names) > 8 else "") or "none"

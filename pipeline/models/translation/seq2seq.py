"""Sequence-to-sequence models: what a folder holds, its languages, texts to tokens and back. Imports torch and transformers where a model or a tokenizer is loaded."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.folder import positions_of, weights_of
from pipeline.models.folder.locate import locate
from pipeline.models.folder.modules import read_config, read_json
from pipeline.models.folder.pretrained import check_code, load_pretrained_tokenizer, load_whole, said
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
_OUTPUT_BIAS = (
    "final_logits_bias"  # of Marian, BART and mBART: a buffer, and part of what Marian was trained to say
)
_NO_LIMIT = 100_000  # tokenizers without a limit write 1e30
_PLAIN_LIMIT = 512  # of a model that names none, such as T5's with relative positions


@dataclass(frozen=True)
class TranslatorFolder:
    """A resolved model."""

    path: Path
    config: Mapping[str, Any] = field(repr=False)
    longest: int
    """tokens of a source text at most"""
    positions: int
    """tokens of a translation at most"""
    weights: tuple[str, ...]

    def digests(self) -> dict[str, JsonValue]:
        """sha256 of each file that decides what the model writes, by its name."""
        names = ("config.json", "generation_config.json", *_TOKENIZER_FILES, *self.weights)
        return {
            name: digest_of_file(self.path / name) for name in sorted(names) if (self.path / name).is_file()
        }


def open_translator(settings: TranslatorSettings) -> TranslatorFolder:
    """The model that `settings` mean. ModelError where there is none, or one that does not turn texts into texts; ConfigError for a limit above its positions."""
    path = _located(settings.path)
    config = read_config(path)
    check_code(path, "AutoModelForSeq2SeqLM")
    architectures = [str(name) for name in config.get("architectures") or ()]
    if not config.get("is_encoder_decoder") or (
        architectures and all(_OTHER_TASKS.search(name) for name in architectures)
    ):
        found = f"{', '.join(architectures) or config.get('model_type', 'no model_type')}"
        raise ModelError(
            str(path / "config.json"),
            "a sequence-to-sequence model such as MarianMTModel",
            found,
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


def anywhere(settings: TranslatorSettings) -> TranslatorSettings:
    """The same model for a worker, whose working directory may be another: a relative path in full."""
    place = Path(settings.path).expanduser()
    return (
        settings
        if "://" in settings.path or not place.exists()
        else settings.model_copy(update={"path": str(place.resolve())})
    )


def check_languages(folder: TranslatorFolder, settings: TranslatorSettings) -> None:
    """ConfigError as `load_wording` gives; a model that has no languages, of which none is asked for, costs no import."""
    if (
        settings.source
        or settings.target
        or settings.prefix.startswith(">>")
        or folder.config.get("model_type") in _MULTILINGUAL
    ):
        load_wording(folder, settings)


def check_weights(folder: TranslatorFolder) -> None:
    """ModelError for a safetensors file that is cut off or otherwise damaged where its contents are listed; reads no tensor."""
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
    """Texts to source tokens, and written tokens to texts."""

    tokenizer: Any
    prefix: str
    first: int | None
    """the token that every translation begins with: the target language's"""
    start: int | None
    """the token that stands before a translation, where the tokenizer's language says it (mBART-25)"""

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, special tokens included; nothing is cut."""
        if not texts:
            return []
        texts = [self.prefix + text for text in texts]
        found: list[list[int]] = self.tokenizer(
            texts, truncation=False, padding=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        return found

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """What ids say, without special tokens."""
        own = [ids[1:] if self.first is not None and ids and ids[0] == self.first else ids for ids in tokens]
        return [
            text.strip()
            for text in self.tokenizer.batch_decode([list(ids) for ids in own], skip_special_tokens=True)
        ]


def load_wording(folder: TranslatorFolder, settings: TranslatorSettings) -> Wording:
    """The tokenizer, set to the languages of `settings`. ConfigError for a language that it does not know (with codes like it), that is missing, or that it cannot be
    told; ModelError where transformers cannot load it.
    """
    tokenizer = _load_tokenizer(folder.path)
    codes = _codes(tokenizer)
    for role in ("source", "target"):
        _check_code(role, settings, codes)
    _check_prefix(settings, tokenizer)
    if settings.source is not None:
        tokenizer.src_lang = settings.source
    target = codes.get(settings.target) if settings.target is not None else None
    starts = type(tokenizer).__name__.startswith(
        "MBartTokenizer"
    )  # mBART-25 puts the language before the translation, all others begin it with that
    return Wording(tokenizer, settings.prefix, None if starts else target, target if starts else None)


def load_model(folder: TranslatorFolder, dtype: Any) -> Any:
    """Load the transformers model, for inference. ModelError if its weights are damaged, incomplete or other than config.json says."""
    from transformers import AutoModelForSeq2SeqLM

    from pipeline.models.layers.weights import open_files

    wanted = "a model that AutoModelForSeq2SeqLM loads"
    model = load_whole(AutoModelForSeq2SeqLM, folder.path, wanted, dtype=dtype).eval()
    if _OUTPUT_BIAS in model.state_dict():  # transformers makes it zero where it is missing, and says nothing
        files = [folder.path / name for name in folder.weights if not name.endswith(".index.json")]
        open_files(str(folder.path), files).check_present([_OUTPUT_BIAS])
    return model


def _located(path: str) -> Path:
    if "://" not in path and Path(path).expanduser().is_file():
        raise ModelError(
            path, "the folder of a translation model", "a file", "give the folder that it lies in"
        )
    try:
        return locate(path)
    except ModelError as error:  # which speaks of encoders
        expected = "a translation model: a folder, a URI of one or a hub id"
        raise ModelError(
            path, expected, error.found, "check the path; a model of the hub needs the network once"
        ) from None


def _positions(config: Mapping[str, Any], side: str) -> int:
    """LED names them for each side; two models in one folder have a configuration each."""
    named = config.get(f"max_{side}_position_embeddings")
    own = config.get(side)
    return int(named or positions_of(own if isinstance(own, dict) else config))


def _read_at_most(path: Path, positions: int) -> int:
    named = read_json(path / "tokenizer_config.json").get("model_max_length")
    known = [int(limit) for limit in (named, positions) if limit and limit < _NO_LIMIT]
    return min(known, default=_PLAIN_LIMIT)


def _load_tokenizer(path: Path) -> Any:
    try:
        return load_pretrained_tokenizer(path)
    except ImportError as error:
        found, remedy = said(error), 'pip install "manta-embeddings[augment]", which has sentencepiece'
        raise ModelError(str(path), "the packages of its tokenizer", found, remedy) from None


def _codes(tokenizer: Any) -> dict[str, int]:
    """Id of the token of each language by the name that the tokenizer's src_lang takes; none for a model of one pair."""
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
            "a language code: the model has several languages",
            "none",
            f"set {role}, for instance {_some(codes)}",
        )
    if value is not None and not codes:
        raise ConfigError(
            where,
            "null: the model's tokenizer has no languages",
            repr(value),
            "leave it out; a prefix is what some models go by",
        )
    if value is not None and value not in codes:
        raise ConfigError(where, "a language code of the model", repr(value), _near(value, codes))


def _check_prefix(settings: TranslatorSettings, tokenizer: Any) -> None:
    """A Marian model reads an unknown >>code<< as unknown words."""
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
    near = (
        difflib.get_close_matches(value, list(codes), n=3, cutoff=0.5)
        or [code for code in codes if code.startswith(value[:2])][:3]
    )
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {_some(codes)}"


def _some(codes: Mapping[str, int] | Sequence[str]) -> str:
    names = sorted(codes)
    return ", ".join(names[:8]) + (f" ... ({len(names)} in all)" if len(names) > 8 else "") or "none"

"""Load the tokenizer of a model folder: its fast tokenizer if it has one, else the one that transformers
builds from its files.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ModelError
from pipeline.text.tokens.tokens import Side, Tokenizer

if TYPE_CHECKING:
    import tokenizers

# after plain ASCII, because no combining mark or joined character reaches across it
_SPACE = re.compile(r"(?<=[0-9A-Za-z]) ")
_SPACE_OR_CHINESE = re.compile(r"(?<=[0-9A-Za-z]) |(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])")
_SPLITS_AT_SPACE = {"BertPreTokenizer", "WhitespaceSplit", "Whitespace"}
_LOCAL_NORMALIZERS = {
    "BertNormalizer",
    "Lowercase",
    "StripAccents",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Strip",
    "Nmt",
    "Precompiled",
    "Prepend",
}


def load_tokenizer(
    folder: Path, max_length: int, *, prompt: str = "", lower: bool = False, cuts: Side = "end"
) -> Tokenizer:
    """Load the tokenizer of a model folder: from its tokenizer.json or, if it has none, from its vocabulary
    by transformers.

    Args:
        folder: the model folder.
        max_length: tokens of a text at most, special tokens included.
        prompt: put before every text.
        lower: convert texts to lower case first, even if the tokenizer's own files do not.
        cuts: side from which tokens that do not fit are removed.

    Raises:
        ModelError: the files are missing or damaged, or max_length leaves no room for a text.
    """
    return replace(_load(folder, max_length, prompt=prompt, lower=lower), cuts=cuts)


def read_mapping(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file of a model folder; {} if there is no such file. ModelError if it is
    damaged.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ModelError(
            str(file), "readable JSON", " ".join(str(error).split())[:200], "restore the file"
        ) from None
    if not isinstance(value, dict):
        raise ModelError(str(file), "a JSON object", type(value).__name__, "restore the file")
    return value


def added_tokens(folder: Path) -> dict[str, str]:
    """Tokens that tokenizer_config.json adds at the beginning (bos_token) and at the end (eos_token) of every
    text, by these names.
    """
    file = folder / "tokenizer_config.json"
    config = read_mapping(file)
    wanted = {
        name: config.get(name) for name in ("bos_token", "eos_token") if config.get(f"add_{name}") is True
    }
    return {
        name: str(token["content"] if isinstance(token, dict) else token)
        for name, token in wanted.items()
        if token is not None
    }


def _load(folder: Path, max_length: int, *, prompt: str, lower: bool) -> Tokenizer:
    import tokenizers

    file = folder / "tokenizer.json"
    if not file.is_file():
        return _from_transformers(folder, max_length, prompt=prompt, lower=lower)
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        if (
            type(error) is not Exception
        ):  # the library raises the bare class for every file that it cannot read
            raise
        raise ModelError(
            str(file),
            "a tokenizer that the tokenizers library reads",
            " ".join(str(error).split())[:200],
            "restore the file",
        ) from None
    return _from_backend(backend, folder, max_length, prompt=prompt, lower=lower)


def _from_backend(
    backend: "tokenizers.Tokenizer", folder: Path, max_length: int, *, prompt: str, lower: bool
) -> Tokenizer:
    from tokenizers import normalizers

    backend.no_padding()
    backend.no_truncation()
    if lower and "Lowercase" not in backend.to_str() and '"lowercase":true' not in backend.to_str():
        own = backend.normalizer
        backend.normalizer = normalizers.Sequence(
            [normalizers.Lowercase(), own] if own is not None else [normalizers.Lowercase()]
        )
    prefix, suffix = _special_tokens(backend, folder)
    description = json.loads(backend.to_str())
    if max_length <= len(prefix) + len(suffix):
        raise ModelError(
            "encoder.max_length",
            "room for at least one token of the text",
            f"{max_length}, of which {len(prefix) + len(suffix)} are special tokens",
            "raise it",
        )

    def source(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    pad_id, unknown = _pad_id(backend, folder), _unknown_ids(description["model"], backend)
    return Tokenizer(
        source,
        prefix,
        suffix,
        max_length,
        pad_id,
        prompt,
        _seam_pattern(description),
        vocabulary=backend.get_vocab,
        unknown=unknown,
    )


def _unknown_ids(model: dict[str, Any], backend: "tokenizers.Tokenizer") -> tuple[int, ...]:
    """Ids of the tokens with which this model replaces text outside its vocabulary."""
    named = model.get("unk_token")
    unknown = model.get("unk_id") if named is None else backend.token_to_id(named)
    return (
        *(() if unknown is None else (int(unknown),)),
        *(byte_ids(backend.get_vocab()) if model.get("byte_fallback") else ()),
    )


def byte_ids(vocabulary: Mapping[str, int]) -> tuple[int, ...]:
    """Ids of the tokens <0x00> to <0xFF> that spell a character outside the vocabulary.

    White space is left out, because in such vocabularies a line break has no other token.
    """
    return tuple(
        vocabulary[name]
        for byte in range(256)
        if byte not in b"\t\n\r" and (name := f"<0x{byte:02X}>") in vocabulary
    )


def _special_tokens(backend: "tokenizers.Tokenizer", folder: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids before every text, ids after it): added by the post-processor, and by tokenizer_config.json.

    Models that pool the last token rely on the latter (e5-mistral); transformers 5 ignores them if the folder
    has a tokenizer.json, version 4 did not.
    """
    before, behind = _post_processor_tokens(backend, folder)
    added = {name: backend.token_to_id(token) for name, token in added_tokens(folder).items()}
    if (start := added.get("bos_token")) is not None and before[:1] != (start,):
        before = (start, *before)
    if (end := added.get("eos_token")) is not None and behind[-1:] != (end,):
        behind = (*behind, end)
    return before, behind


def _post_processor_tokens(
    backend: "tokenizers.Tokenizer", folder: Path
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids before every text, ids after it) that the post-processor adds."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if bare and full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise ModelError(
        str(folder / "tokenizer.json"),
        "special tokens only before and after the text",
        f"{bare} became {full}",
        "use another encoder",
    )


def _pad_id(backend: "tokenizers.Tokenizer", folder: Path) -> int:
    named = read_mapping(folder / "config.json").get("pad_token_id")
    return int(named if named is not None else backend.token_to_id("[PAD]") or 0)


def _from_transformers(folder: Path, max_length: int, *, prompt: str, lower: bool) -> Tokenizer:
    """Load the tokenizer of a folder that has a vocabulary but no tokenizer.json."""
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(
            str(folder),
            "tokenizer.json or a vocabulary",
            f"none that transformers can load ({' '.join(str(error).split())[:200]})",
            "add the tokenizer's files to the folder",
        ) from None
    if getattr(loaded, "backend_tokenizer", None) is not None:
        return _from_backend(loaded.backend_tokenizer, folder, max_length, prompt=prompt, lower=lower)
    probe = loaded("a", add_special_tokens=False)["input_ids"]
    full = loaded("a")["input_ids"]
    start = next(first for first in range(len(full)) if full[first : first + len(probe)] == probe)

    def source(texts: list[str]) -> list[list[int]]:
        cased = [text.lower() for text in texts] if lower else texts
        return [
            list(ids)
            for ids in loaded(cased, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        ]

    pad_id = loaded.pad_token_id if loaded.pad_token_id is not None else 0
    unknown = (
        *(() if loaded.unk_token_id is None else (int(loaded.unk_token_id),)),
        *byte_ids(loaded.get_vocab()),
    )
    prefix, suffix = tuple(full[:start]), tuple(full[start + len(probe) :])
    return Tokenizer(
        source, prefix, suffix, max_length, pad_id, prompt, vocabulary=loaded.get_vocab, unknown=unknown
    )


def _seam_pattern(description: dict[str, Any]) -> re.Pattern[str] | None:
    """Pattern of positions at which this tokenizer, by its own description, splits a text into independent
    parts; None if there are none.

    Before a single space, if every normalizer works character by character, a pre-tokenizer splits at white
    space, and no added token contains white space; between Chinese characters too, if BERT's normalizer puts
    spaces around them.
    """
    normalizers = _steps(description.get("normalizer"), "normalizers")
    if any(
        any(character.isspace() for character in token["content"])
        for token in description.get("added_tokens", ())
    ):
        return None
    if not all(_is_local(step) for step in normalizers):
        return None
    if not any(_splits_at_space(step) for step in _steps(description.get("pre_tokenizer"), "pretokenizers")):
        return None
    return _SPACE_OR_CHINESE if any(step.get("handle_chinese_chars") for step in normalizers) else _SPACE


def _steps(step: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return list(step[inner]) if step["type"] == "Sequence" else [step]


def _is_local(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        return step.get("pattern") in ({"Regex": " {2,}"}, {"String": " "})
    return step["type"] in _LOCAL_NORMALIZERS


def _splits_at_space(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return bool(step.get("use_regex", True))
    if step["type"] == "Metaspace":
        return bool(step.get("split", True))
    return step["type"] in _SPLITS_AT_SPACE

"""Load the tokenizer of a model folder: tokenizer.json, or else a tokenizer that transformers builds."""

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
    *("BertNormalizer", "Lowercase", "StripAccents", "Strip", "Nmt", "Precompiled", "Prepend"),
    *("NFC", "NFD", "NFKC", "NFKD"),
}


def load_tokenizer(
    folder: Path, max_length: int, *, prompt: str = "", lower: bool = False, cuts: Side = "end"
) -> Tokenizer:
    """Load the tokenizer of a model folder.

    Args:
        folder: the model folder.
        max_length: tokens of a text at most, special tokens included.
        prompt: put before every text.
        lower: convert texts to lower case first, even if the tokenizer's own files do not.
        cuts: side from which tokens that do not fit are removed.

    Raises:
        ModelError: the files are missing or damaged, or max_length leaves no room for a text.
    """
    import tokenizers

    found = read_tokenizer(folder)
    make = _from_backend if isinstance(found, tokenizers.Tokenizer) else _from_slow
    return replace(make(found, folder, max_length, prompt=prompt, lower=lower), cuts=cuts)


def read_tokenizer(folder: Path) -> Any:
    """Read the folder's tokenizer.json or, if it has none, its vocabulary by transformers.

    Returns:
        A tokenizer of the tokenizers library; that of transformers if it is written in Python.

    Raises:
        ModelError: the files are missing or damaged.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return _build_tokenizer(folder)
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        if type(error) is not Exception:  # the library raises the bare class for every unreadable file
            raise
        raise ModelError(
            str(file),
            "a tokenizer that the tokenizers library reads",
            " ".join(str(error).split())[:200],
            "restore the file",
        ) from None


def _build_tokenizer(folder: Path) -> Any:
    """Build a tokenizer from the folder's vocabulary, by transformers."""
    from transformers import AutoTokenizer

    try:
        built: Any = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(
            str(folder),
            "tokenizer.json or a vocabulary",
            f"none that transformers can load ({' '.join(str(error).split())[:200]})",
            "add the tokenizer's files to the folder",
        ) from None
    return getattr(built, "backend_tokenizer", None) or built


def read_mapping(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file of a model folder; {} if there is no such file.

    Raises:
        ModelError: the file is damaged.
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
    """Tokens that tokenizer_config.json adds at the beginning and at the end of every text.

    Returns:
        The tokens by their names there, bos_token and eos_token.
    """
    config = read_mapping(folder / "tokenizer_config.json")
    wanted = (name for name in ("bos_token", "eos_token") if config.get(f"add_{name}") is True)
    return {name: token_text(config[name]) for name in wanted if config.get(name) is not None}


def token_text(token: Any) -> str:
    """The text of a token as tokenizer files write it: a string, or an object with its content."""
    return str(token.get("content", "") if isinstance(token, dict) else token)


def _from_backend(
    backend: "tokenizers.Tokenizer", folder: Path, max_length: int, *, prompt: str, lower: bool
) -> Tokenizer:
    from tokenizers import normalizers

    backend.no_padding()
    backend.no_truncation()
    if lower and "Lowercase" not in backend.to_str() and '"lowercase":true' not in backend.to_str():
        own = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
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

    named = read_mapping(folder / "config.json").get("pad_token_id")
    return Tokenizer(
        source,
        prefix,
        suffix,
        max_length,
        int(named if named is not None else backend.token_to_id("[PAD]") or 0),
        prompt,
        _seam_pattern(description),
        vocabulary=backend.get_vocab,
        unknown=_unknown_ids(description["model"], backend),
    )


def _unknown_ids(model: dict[str, Any], backend: "tokenizers.Tokenizer") -> tuple[int, ...]:
    """Ids of the tokens with which this model replaces text outside its vocabulary."""
    named = model.get("unk_token")
    unknown = model.get("unk_id") if named is None else backend.token_to_id(named)
    own = () if unknown is None else (int(unknown),)
    return (*own, *byte_ids(backend.get_vocab())) if model.get("byte_fallback") else own


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
    bare, full = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    before, behind = _around(bare, full, folder)
    added = {name: backend.token_to_id(token) for name, token in added_tokens(folder).items()}
    if (start := added.get("bos_token")) is not None and before[:1] != (start,):
        before = (start, *before)
    if (end := added.get("eos_token")) is not None and behind[-1:] != (end,):
        behind = (*behind, end)
    return before, behind


def _around(bare: list[int], full: list[int], folder: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids before the text, ids after it) among the ids `full` of a text with the ids `bare`."""
    for start in range(len(full) - len(bare) + 1):
        if bare and full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise ModelError(
        str(folder / "tokenizer.json"),
        "special tokens only before and after the text",
        f"{bare} became {full}",
        "use another encoder",
    )


def _from_slow(loaded: Any, folder: Path, max_length: int, *, prompt: str, lower: bool) -> Tokenizer:
    """Use a tokenizer of transformers that is written in Python."""
    bare, full = (loaded("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    prefix, suffix = _around(bare, full, folder)

    def source(texts: list[str]) -> list[list[int]]:
        cased = [text.lower() for text in texts] if lower else texts
        ids = loaded(cased, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return list(map(list, ids))

    vocabulary = loaded.get_vocab
    unknown = () if loaded.unk_token_id is None else (int(loaded.unk_token_id),)
    return Tokenizer(
        source,
        prefix,
        suffix,
        max_length,
        loaded.pad_token_id or 0,
        prompt,
        vocabulary=vocabulary,
        unknown=(*unknown, *byte_ids(vocabulary())),
    )


def _seam_pattern(description: dict[str, Any]) -> re.Pattern[str] | None:
    """Pattern of positions at which this tokenizer splits a text into independent parts; None if unknown.

    Before a single space, if every normalizer works character by character, a pre-tokenizer splits at white
    space, and no added token contains white space; between Chinese characters too, if BERT's normalizer puts
    spaces around them.
    """
    normalizers = _steps(description.get("normalizer"), "normalizers")
    splitters = _steps(description.get("pre_tokenizer"), "pretokenizers")
    added = "".join(token["content"] for token in description.get("added_tokens", ()))
    if (
        any(map(str.isspace, added))
        or not all(map(_is_local, normalizers))
        or not any(map(_splits_at_space, splitters))
    ):
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

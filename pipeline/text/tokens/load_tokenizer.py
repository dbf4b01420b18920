"""Load the tokenizer of a model folder: tokenizer.json, or else a tokenizer that transformers builds."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import MODEL_FAILURES, ModelError
from pipeline.text.tokens.listed_tokens import listed_tokens
from pipeline.text.tokens.tokenizer_errors import tokenizer_errors
from pipeline.text.tokens.tokenizer_files import (
    added_tokens,
    check_passes_types,
    check_splits,
    passes_token_types,
    read_mapping,
    replaced_options,
    splits_special_tokens,
)
from pipeline.text.tokens.tokens import Side, Tokenizer, TokenTypes

if TYPE_CHECKING:
    import tokenizers

# Positions must follow an ASCII letter or digit, with which a following character is never combined.
_SPACE = re.compile(r"(?<=[0-9A-Za-z]) ")
_SPACE_OR_CHINESE = re.compile(r"(?<=[0-9A-Za-z]) |(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])")
_MAX_IDS = 1 << 24  # no vocabulary has more ids; arrays by id are as long as the largest id
_SPACES = ("\u0120", "\u2581")  # tokens of a space: byte-level BPE, SentencePiece
_BUILDING_ERRORS = (OSError, ImportError, *MODEL_FAILURES)
_SPLITS_AT_SPACE = {"BertPreTokenizer", "WhitespaceSplit", "Whitespace"}
_LOCAL_NORMALIZERS = {
    *("BertNormalizer", "Lowercase", "StripAccents", "Strip", "Nmt", "Precompiled", "Prepend"),
    *("NFC", "NFD", "NFKC", "NFKD"),
}


def load_tokenizer(
    folder: Path, max_length: int, *, prompt: str = "", lower: bool = False, truncation_side: Side = "end"
) -> Tokenizer:
    """Load the tokenizer of a model folder.

    Args:
        folder: the model folder.
        max_length: largest number of tokens of a text, special tokens included.
        prompt: put before every text.
        lower: convert texts to lower case first, even if the tokenizer's own files do not.
        truncation_side: side from which tokens that do not fit are removed.

    Raises:
        ModelError: the files are missing or damaged, or max_length leaves no room for a text.
    """
    import tokenizers

    loaded = read_tokenizer(folder)
    make = from_backend if isinstance(loaded, tokenizers.Tokenizer) else _from_slow
    tokenizer = make(loaded, folder, max_length, prompt=prompt, lower=lower)
    if tokenizer.max_text_tokens < 1:
        raise ModelError(
            "encoder.max_length",
            "room for at least one token of the text",
            f"{max_length}, of which {max_length - tokenizer.max_text_tokens} are special tokens",
            "raise it",
        )
    return replace(tokenizer, truncation_side=truncation_side)


def read_tokenizer(folder: Path, *, alone: bool = False) -> Any:
    """Read the folder's tokenizer.json or, if there is none, let transformers build a tokenizer.

    Args:
        folder: the model folder.
        alone: ignore options and tokens that the files beside tokenizer.json name.

    Returns:
        A tokenizer of the tokenizers library, or of transformers if it exists only there, in Python.

    Raises:
        ModelError: the files are missing or damaged.
    """
    file = folder / "tokenizer.json"
    check_splits(folder)
    if not file.is_file():
        return _build_tokenizer(folder)
    import tokenizers

    with tokenizer_errors(file, "a tokenizer that the tokenizers library reads"):
        backend = tokenizers.Tokenizer.from_file(str(file))
        if not alone:
            _replace_options(backend, replaced_options(folder))
            backend.add_tokens([tokenizers.AddedToken(**token._asdict()) for token in listed_tokens(folder)])
            backend.encode_special_tokens = splits_special_tokens(folder)
    return backend


def _replace_options(backend: "tokenizers.Tokenizer", options: Mapping[str, Any]) -> None:
    """Replace options of the normalizer or the pre-tokenizer; see `replaced_options`."""
    for option, value in options.items():
        has_option = backend.pre_tokenizer if option == "add_prefix_space" else backend.normalizer
        setattr(has_option, option, value)


def _build_tokenizer(folder: Path) -> Any:
    """Build a tokenizer from the folder's vocabulary, by transformers.

    Without any vocabulary, transformers would make a tokenizer that knows special tokens only.
    """
    from transformers import AutoTokenizer

    try:
        with tokenizer_errors(folder, "a vocabulary that the tokenizers library reads"):
            built: Any = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        if not set(built.get_vocab()).difference(built.all_special_tokens, _SPACES):
            raise ValueError("no file of a vocabulary")
    except _BUILDING_ERRORS as error:
        raise ModelError(
            str(folder),
            "tokenizer.json or a vocabulary",
            f"none that transformers can load ({' '.join(str(error).split())[:200]})",
            "add the tokenizer's files to the folder",
        ) from None
    return getattr(built, "backend_tokenizer", None) or built


def from_backend(
    backend: "tokenizers.Tokenizer", folder: Path, max_length: int, *, prompt: str, lower: bool
) -> Tokenizer:
    """Use a tokenizer of the tokenizers library, without its own padding and truncation."""
    from tokenizers import normalizers

    backend.no_padding()
    backend.no_truncation()
    if lower and not _lowers(backend.normalizer):
        others = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
    prefix, suffix, types = _special_tokens(backend, folder)
    description = json.loads(backend.to_str())
    _check_unknown(description, folder)
    largest_id = _check_ids(description, folder)

    def to_ids(texts: list[str]) -> list[list[int]]:
        with tokenizer_errors(_file_of(folder), "a tokenizer that reads any text"):
            return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    pad_id = read_mapping(folder / "config.json").get("pad_token_id")
    return Tokenizer(
        to_ids,
        prefix,
        suffix,
        max_length,
        pad_id=int(pad_id if pad_id is not None else backend.token_to_id("[PAD]") or 0),
        prompt=prompt,
        split_pattern=_split_pattern(description),
        vocabulary=backend.get_vocab,
        largest_id=largest_id,
        unknown=_unknown_ids(description["model"], backend),
        types=types,
    )


def _file_of(folder: Path) -> Path:
    """Return the path to name in errors: tokenizer.json, or the folder if it has other files."""
    file = folder / "tokenizer.json"
    return file if file.is_file() else folder


def _lowers(normalizer: Any) -> bool:
    """Return whether a normalizer of the tokenizers library, or None, converts texts to lower case."""
    steps = _steps(None if normalizer is None else json.loads(normalizer.__getstate__()), "normalizers")
    return any(step["type"] == "Lowercase" or step.get("lowercase") for step in steps)


def _unknown_ids(model: dict[str, Any], backend: "tokenizers.Tokenizer") -> tuple[int, ...]:
    """Ids of the tokens with which this model replaces text outside its vocabulary."""
    name = model.get("unk_token")
    unknown = model.get("unk_id") if name is None else backend.token_to_id(name)
    bytes_ = byte_ids(backend.get_vocab()) if model.get("byte_fallback") else ()
    return bytes_ if unknown is None else (int(unknown), *bytes_)


def _check_unknown(description: Mapping[str, Any], folder: Path) -> None:
    """Check that characters outside the vocabulary can be tokenized, since any text may have some.

    Raises:
        ModelError: the tokenizers library would raise for such a text.
    """
    model, vocabulary = description["model"], description["model"]["vocab"]
    name = model.get("unk_id" if model["type"] == "Unigram" else "unk_token")
    if model["type"] == "BPE":
        # without an unknown token, the library leaves such characters out
        is_complete = name is None or name in vocabulary or _spells_bytes(description)
    else:
        is_complete = name is not None and (model["type"] == "Unigram" or name in vocabulary)
    if not is_complete:
        raise ModelError(
            str(folder / "tokenizer.json"),
            f"the unknown token {'(unk_id)' if name is None else repr(name)} in the vocabulary",
            f"{len(vocabulary)} tokens without it",
            "add it, or restore the file",
        )


def _check_ids(description: Mapping[str, Any], folder: Path) -> int:
    """Check that a text always has the same tokens, and that these have ids of a usual size.

    Returns:
        The largest id; -1 without tokens.

    Raises:
        ModelError: the model drops out merges at random, or an id is so large that arrays by id would not
            fit the memory.
    """
    file = str(folder / "tokenizer.json")
    vocabulary = description["model"]["vocab"]
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    largest = max(chain(ids, (token["id"] for token in description["added_tokens"])), default=-1)
    if largest >= _MAX_IDS:
        raise ModelError(file, f"ids of tokens below {_MAX_IDS:,}", f"{largest:,}", "restore the file")
    if dropout := description["model"].get("dropout"):
        expected = "a model without dropout, which draws tokens at random"
        raise ModelError(file, expected, f"dropout {dropout}", "set it to null")
    return largest


def _spells_bytes(description: Mapping[str, Any]) -> bool:
    """Return whether the vocabulary has a token for every byte, so that no character is unknown to it."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = description["model"]["vocab"]
    if description["model"].get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    steps = (
        *_steps(description.get("normalizer"), "normalizers"),
        *_steps(description.get("pre_tokenizer"), "pretokenizers"),
    )
    is_byte_level = any(step["type"] == "ByteLevel" for step in steps)
    return is_byte_level and all(letter in vocabulary for letter in ByteLevel.alphabet())


def byte_ids(vocabulary: Mapping[str, int]) -> tuple[int, ...]:
    """Ids of the tokens <0x00> to <0xFF> that spell a character outside the vocabulary.

    White space is left out, because in such vocabularies a line break has no other token.
    """
    return tuple(
        vocabulary[name]
        for byte in range(256)
        if byte not in b"\t\n\r" and (name := f"<0x{byte:02X}>") in vocabulary
    )


def _special_tokens(
    backend: "tokenizers.Tokenizer", folder: Path
) -> tuple[tuple[int, ...], tuple[int, ...], TokenTypes | None]:
    """Return (ids before every text, ids after it, token types), by the post-processor and
    tokenizer_config.json.

    Models that pool the last token, such as e5-mistral, need the tokens of tokenizer_config.json.
    transformers 4 added them; version 5 ignores them if the folder has a tokenizer.json.
    """
    with tokenizer_errors(_file_of(folder), "a vocabulary with which a text is tokenized"):
        bare, full = (backend.encode("a", add_special_tokens=special) for special in (False, True))
    before, after = _split_special_tokens(bare.ids, full.ids, folder)
    types = _token_types(full.type_ids, len(before), len(after), folder)
    added = {name: backend.token_to_id(token) for name, token in added_tokens(folder).items()}
    if (start := added.get("bos_token")) is not None and before[:1] != (start,):
        before = (start, *before)
        types = types and types._replace(prefix=(0, *types.prefix))
    if (end := added.get("eos_token")) is not None and after[-1:] != (end,):
        after = (*after, end)
        types = types and types._replace(suffix=(*types.suffix, 0))
    return before, after, types


def _token_types(types: list[int], before: int, after: int, folder: Path) -> TokenTypes | None:
    """Return the types of a text's tokens, of which `before` and `after` are special.

    None if all are 0, or if model_input_names leaves them out, so that no library passes them to a model.
    """
    if not any(types) or not passes_token_types(folder):
        return None
    check_passes_types(folder)
    end = len(types) - after
    return TokenTypes(tuple(types[:before]), types[before], tuple(types[end:]))


def _split_special_tokens(
    bare: list[int], full: list[int], folder: Path
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens before a text and after it; only `full` has them."""
    if full == bare:
        return (), ()
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
    bare, full = (loaded("a", add_special_tokens=special) for special in (False, True))
    prefix, suffix = _split_special_tokens(bare["input_ids"], full["input_ids"], folder)
    types = list(full.get("token_type_ids", ()))

    def to_ids(texts: list[str]) -> list[list[int]]:
        cased = [text.lower() for text in texts] if lower else texts
        ids = loaded(cased, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return list(map(list, ids))

    vocabulary = loaded.get_vocab
    unknown = () if loaded.unk_token_id is None else (int(loaded.unk_token_id),)
    return Tokenizer(
        to_ids,
        prefix,
        suffix,
        max_length,
        pad_id=loaded.pad_token_id or 0,
        prompt=prompt,
        vocabulary=vocabulary,
        unknown=(*unknown, *byte_ids(vocabulary())),
        types=_token_types(types, len(prefix), len(suffix), folder),
    )


def _split_pattern(description: dict[str, Any]) -> re.Pattern[str] | None:
    """Return the pattern of positions at which this tokenizer splits a text into independent parts; None if
    unknown.

    The positions are known if every normalizer works character by character, a pre-tokenizer splits at white
    space, and no added token contains white space. Then the positions are single spaces, and positions
    between Chinese characters if BERT's normalizer puts spaces around these.
    """
    normalizers = _steps(description.get("normalizer"), "normalizers")
    splitters = _steps(description.get("pre_tokenizer"), "pretokenizers")
    added_texts = "".join(token["content"] for token in description.get("added_tokens", ()))
    if (
        any(map(str.isspace, added_texts))
        or not all(map(_is_local, normalizers))
        or not any(map(_splits_at_space, splitters))
    ):
        return None
    return _SPACE_OR_CHINESE if any(step.get("handle_chinese_chars") for step in normalizers) else _SPACE


def _steps(step: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """Steps of a normalizer or pre-tokenizer: itself, or those in its field `inner` if it is a sequence."""
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

"""Read the files beside tokenizer.json: options of tokenizer.json that they replace, and tokens
with a role.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import ModelError
from pipeline.text.tokens.value_rules import TOKENIZER_RULES, check_rules

_HEAD_CHARACTERS = 1 << 20  # read from tokenizer.json, whose vocabulary comes last
_HEAD_KEYS = frozenset(("added_tokens", "normalizer", "pre_tokenizer", "post_processor"))
_KEY = re.compile(r'(?<![\s,])[\s,]*"(\w+)"\s*:\s*')


class _ClassOptions(NamedTuple):
    """Options that a tokenizer's class in transformers sets, whatever tokenizer.json says."""

    part: str
    """the part of tokenizer.json that has them"""
    type: str
    """type of that part; other types keep their options"""
    keys: Mapping[str, tuple[str, bool | None]]
    """option -> (its key in tokenizer_config.json, its value if that file lacks the key)"""
    tokens: tuple[str, ...]
    """tokens with a role that are used if no file names any"""


_BERT = _ClassOptions(
    "normalizer",
    "BertNormalizer",
    {
        "lowercase": ("do_lower_case", True),
        "strip_accents": ("strip_accents", None),
        "handle_chinese_chars": ("tokenize_chinese_chars", True),
    },
    ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"),
)
_MPNET = _BERT._replace(tokens=("<s>", "</s>", "[UNK]", "<pad>", "<mask>"))
_ROBERTA = _ClassOptions(
    "pre_tokenizer",
    "ByteLevel",
    {"add_prefix_space": ("add_prefix_space", False)},
    ("<s>", "</s>", "<unk>", "<pad>", "<mask>"),
)
_BYTES = _ROBERTA._replace(tokens=())
_OF_BERT = ("Bert", "ConvBert", "DPRContextEncoder", "DPRQuestionEncoder", "DistilBert", "Electra")
_OPTIONS = {
    **{f"{name}Tokenizer": _BERT for name in (*_OF_BERT, "LayoutLM", "Lxmert", "MobileBert", "SqueezeBert")},
    "MPNetTokenizer": _MPNET,
    **{f"{name}Tokenizer": _ROBERTA for name in ("Bart", "LED", "Longformer", "Mvp", "Roberta")},
    **{f"{name}Tokenizer": _BYTES for name in ("Cohere", "Deberta", "GPT2", "Qwen2")},
}
"""by name of the class, without Fast"""
_CLASSES = {
    **dict.fromkeys(("bert", "convbert", "distilbert", "dpr", "electra"), "BertTokenizer"),
    **dict.fromkeys(("layoutlm", "lxmert", "mobilebert", "squeezebert"), "BertTokenizer"),
    **dict.fromkeys(("bart", "led", "longformer", "mvp", "roberta"), "RobertaTokenizer"),
    "deberta": "DebertaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "mpnet": "MPNetTokenizer",
    "roformer": "RoFormerTokenizer",
}
"""class by model_type, if no file names one"""
_GENERAL_CLASSES = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")  # for any family


def read_mapping(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model folder; {} if the file does not exist.

    Raises:
        ModelError: the file is damaged, or a value has a wrong type.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ModelError(
            str(file), "readable JSON", " ".join(str(error).split())[:200], "restore the file"
        ) from None
    if not isinstance(value, dict):
        raise ModelError(str(file), "a JSON object", type(value).__name__, "restore the file")
    check_rules(TOKENIZER_RULES, file, value)
    return value


def read_head(folder: Path) -> dict[str, Any]:
    """Read tokenizer.json, most often without its vocabulary of many megabytes; {} if there is no such file.

    Raises:
        ModelError: as `read_mapping`.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return {}
    decoder, head = json.JSONDecoder(), dict[str, Any]()
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_HEAD_CHARACTERS)
        end = text.find("{") + 1
        while (key := _KEY.match(text, end)) and key[1] != "model":
            head[key[1]], end = decoder.raw_decode(text, key.end())
    except (ValueError, RecursionError):  # damaged, or not all of a value was read
        return read_mapping(file)
    if not head.keys() >= _HEAD_KEYS:
        return read_mapping(file)
    check_rules(TOKENIZER_RULES, file, head)
    return head


def token_settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json, with the tokens of special_tokens_map.json as transformers merges them.

    Tokens in added_tokens_decoder make transformers ignore the tokens of the other files.
    """
    config = read_mapping(folder / "tokenizer_config.json")
    if config.get("added_tokens_decoder") is not None:
        return config
    return config | read_mapping(folder / "special_tokens_map.json")


def added_tokens(folder: Path) -> dict[str, str]:
    """Tokens that tokenizer_config.json adds at the beginning and at the end of every text.

    Returns:
        bos_token or eos_token -> the token's text, for those that the file adds.
    """
    config = token_settings(folder)
    wanted = (name for name in ("bos_token", "eos_token") if config.get(f"add_{name}") is True)
    return {name: token_text(config[name]) for name in wanted if config.get(name) is not None}


def splits_special_tokens(folder: Path) -> bool:
    """Return whether special tokens in a text are split like other words."""
    return bool(read_mapping(folder / "tokenizer_config.json").get("split_special_tokens"))


def passes_token_types(folder: Path) -> bool:
    """Return whether the token types of a tokenizer reach the model; they do if no file says otherwise."""
    names = read_mapping(folder / "tokenizer_config.json").get("model_input_names")
    return names is None or "token_type_ids" in names


def check_passes_types(folder: Path) -> None:
    """Refuse a tokenizer with token types whose files do not say whether they reach the model.

    Without model_input_names, the tokenizer's class decides. For general classes, transformers 4 passes the
    types, and transformers 5 does not.
    """
    file = folder / "tokenizer_config.json"
    config = read_mapping(file)
    name = config.get("tokenizer_class") or read_mapping(folder / "config.json").get("tokenizer_class")
    if config.get("model_input_names") is None and name in _GENERAL_CLASSES:
        raise ModelError(
            str(file),
            "model_input_names beside a template with other token types than 0",
            f"none, and the class {name}, which does not say either",
            "write model_input_names, with or without token_type_ids",
        )


def has_token_types(folder: Path) -> bool:
    """Return whether a tokenizer gives a text or its special tokens another token type than 0.

    Without tokenizer.json, transformers builds tokenizers with such types for XLNet and Funnel.
    """
    if not passes_token_types(folder):
        return False
    if not (folder / "tokenizer.json").is_file():
        return read_mapping(folder / "config.json").get("model_type") in ("funnel", "xlnet")
    processor = read_head(folder).get("post_processor") or {}
    steps = processor["processors"] if processor.get("type") == "Sequence" else [processor]
    pieces = [piece for step in steps for piece in step.get("single") or ()]
    return any(part.get("type_id") for piece in pieces for part in piece.values())


def token_text(token: Any) -> str:
    """The text of a token as tokenizer files write it: a string, or an object with its content."""
    return str(token.get("content", "") if isinstance(token, dict) else token)


def replaced_options(folder: Path) -> dict[str, bool | None]:
    """Return the options of tokenizer.json that tokenizer_config.json replaces by other values.

    transformers does so for tokenizers of some classes when it loads them. In most folders both files agree.

    Returns:
        {}, or names of options of the normalizer or the pre-tokenizer -> their values.

    Raises:
        ModelError: a file is damaged.
    """
    options = _class_options(folder)
    if options is None:
        return {}
    part = read_head(folder).get(options.part)
    if not isinstance(part, dict) or part.get("type") != options.type:
        return {}
    config = read_mapping(folder / "tokenizer_config.json")
    wanted = {option: config.get(key, default) for option, (key, default) in options.keys.items()}
    return {option: value for option, value in wanted.items() if part.get(option) != value}


def class_tokens(folder: Path) -> tuple[str, ...]:
    """Return the tokens with a role that the class of a folder's tokenizer uses if no file names others."""
    options = _class_options(folder)
    return () if options is None else options.tokens


def _class_options(folder: Path) -> _ClassOptions | None:
    """Return the options that a folder's class of tokenizers sets; None for most classes."""
    return _OPTIONS.get(_class_name(folder))


def _class_name(folder: Path) -> str:
    """Return the name of the class of a folder's tokenizer, without Fast; "None" if it is unknown."""
    config, model = read_mapping(folder / "tokenizer_config.json"), read_mapping(folder / "config.json")
    named = config.get("tokenizer_class") or model.get("tokenizer_class")
    return str(named or _CLASSES.get(str(model.get("model_type")))).removesuffix("Fast")


def check_splits(folder: Path) -> None:
    """Raise ModelError if a class splits texts by a dictionary that no file of the folder has."""
    if (name := _class_name(folder)) == "RoFormerTokenizer":
        raise ModelError(
            str(folder / "tokenizer_config.json"),
            "a tokenizer whose files say how texts are split",
            f"{name}, which splits them into the words of rjieba",
            "use another encoder; if this one's words need no rjieba, name the class PreTrainedTokenizerFast",
        )

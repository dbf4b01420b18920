"""A text inside a template, such as This sentence : "[X]" means [MASK]. : cut to its own limit first and wrapped then, so that no mask token is ever cut off.

PromptBERT (Jiang et al. 2022).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import ModelError
from pipeline.text.tokens.load_tokenizer import read_mapping
from pipeline.text.tokens.tokens import Side, Tokenizer, Tokens, framed

if TYPE_CHECKING:
    import tokenizers

TEXT, MASK = "[X]", "[MASK]"
_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_USUAL = ("[MASK]", "<mask>")
_AS_IT_IS = "PreTrainedTokenizerFast"  # BertTokenizer and its like put their own special tokens around a text, whatever the file says


@dataclass(frozen=True)
class Frame:
    """The tokens around every text."""

    prefix: tuple[int, ...]
    """those before it, [CLS] or its like first"""
    suffix: tuple[int, ...]
    mask: int
    """place of the mask token, from a row's first token or, below 0, from its end"""

    def __len__(self) -> int:
        return len(self.prefix) + len(self.suffix)

    @property
    def mask_place(self) -> int:
        """Of the mask token among the frame's own tokens."""
        return self.mask % len(self)

    def around(self, tokens: Tokens, specials: tuple[int, int], *, limit: int, cuts: Side = "end") -> Tokens:
        """The texts of `tokens`, cut to `limit` tokens, in this frame instead of theirs: a template's, else so many special tokens before and behind."""
        old = framed(tokens.offsets, *specials, 0)[1] if tokens.around is None else tokens.around
        owners, inner = np.repeat(np.arange(len(tokens)), tokens.lengths)[~old], tokens.ids[~old]
        found = np.bincount(owners, minlength=len(tokens))
        place = np.arange(len(inner)) - np.repeat(np.cumsum(found) - found, found)
        inner = inner[place < limit if cuts == "end" else found[owners] - place <= limit]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.minimum(found, limit) + len(self))])
        kept, around = framed(offsets, len(self.prefix), len(self.suffix), self.mask)
        ids = np.empty(offsets[-1], np.int32)
        ids[around], ids[~around] = (
            np.tile(np.array([*self.prefix, *self.suffix], np.int32), len(tokens)),
            inner,
        )
        return Tokens(ids, offsets, tokens.truncated | (found > limit), kept, around)


def frame_of(tokenizer: Tokenizer) -> Frame:
    """What the tokenizer, which has a mask, puts around texts."""
    assert tokenizer.mask is not None
    return Frame(tokenizer.prefix, tokenizer.suffix, tokenizer.mask)


def in_template(tokenizer: Tokenizer, folder: Path, template: str | None, *, masked: bool) -> Tokenizer:
    """The tokenizer with a template around its texts; None: that which the folder's own tokenizer has. masked: the state of the mask token is to be the vector.

    Both parts of a template are tokenized by themselves. ModelError where the tokenizer has no mask token, the template none or several, or a text no room beside it.
    """
    where = "encoder.template" if template is not None else str(folder / "tokenizer.json")
    name = mask_token(folder, tokenizer.vocabulary())
    if name is None:
        raise ModelError(
            str(folder),
            "a tokenizer with a mask token",
            "none",
            "use an encoder of the masked kind, such as BERT",
        )
    mask = tokenizer.vocabulary()[name]
    if template is not None:
        if mask in (*tokenizer.prefix, *tokenizer.suffix):
            raise ModelError(
                where,
                "an encoder without a template of its own",
                f"one in {folder / 'tokenizer.json'}",
                "set encoder.template to null",
            )
        if template.count(TEXT) != 1:
            raise ModelError(
                where, f"a template with {TEXT} once", repr(template), f"write {TEXT} where the text stands"
            )
        before, behind = tokenizer.source(template.replace(MASK, name).split(TEXT))
        tokenizer = replace(
            tokenizer, prefix=(*tokenizer.prefix, *before), suffix=(*behind, *tokenizer.suffix)
        )
    around = (*tokenizer.prefix, *tokenizer.suffix)
    if around.count(mask) != 1:
        remedy = (
            "give encoder.template, or choose another pooling"
            if template is None
            else f"write {MASK} once, apart from letters"
        )
        raise ModelError(where, f"one {name} around a text", f"{around.count(mask)}", remedy)
    if tokenizer.room < 1:
        found = f"{tokenizer.max_length}, of which {len(around)} belong to the template"
        raise ModelError("encoder.max_length", "room for at least one token of the text", found, "raise it")
    return replace(tokenizer, mask=_place(tokenizer, mask) if masked else None)


def wrap_tokenizer(folder: Path, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> None:
    """Let the folder's tokenizer.json, made of the vocabulary where there is none, put these tokens around every text, whoever reads it: it cuts to what they leave."""
    file = folder / "tokenizer.json"
    backend = tokenizer_of(folder)
    parts = [
        {"SpecialToken": {"id": "before", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "behind", "type_id": 0}},
    ]
    tokens = {"before": prefix, "behind": suffix}
    described = json.loads(backend.to_str())
    described["post_processor"] = {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [*parts[:2], {"Sequence": {"id": "B", "type_id": 0}}, parts[2]],
        "special_tokens": {
            name: {"id": name, "ids": list(ids), "tokens": [backend.id_to_token(number) for number in ids]}
            for name, ids in tokens.items()
        },
    }
    file.write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
    config = folder / "tokenizer_config.json"
    named = read_mapping(config)
    config.write_text(
        json.dumps(named | {"tokenizer_class": _AS_IT_IS}, indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


def add_tokens(folder: Path, count: int) -> list[int]:
    """Add so many special tokens, for a template's free vectors, to the folder's tokenizer.json; their ids. ModelError where ids are taken."""
    from tokenizers import AddedToken

    backend = tokenizer_of(folder)
    known = set(backend.get_vocab().values())
    names = [f"[template {number}]" for number in range(count)]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    ids = [backend.get_vocab()[name] for name in names]
    if known & set(ids) or len(set(ids)) < count:
        raise ModelError(
            str(folder / "tokenizer.json"),
            f"room for {count} more tokens behind the others",
            f"the id {ids[0]} taken",
            "use another encoder",
        )
    backend.save(str(folder / "tokenizer.json"))
    return ids


def tokenizer_of(folder: Path) -> "tokenizers.Tokenizer":
    """The folder's tokenizer, as the tokenizers library has it."""
    import tokenizers
    from transformers import AutoTokenizer

    if (folder / "tokenizer.json").is_file():
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    ).backend_tokenizer


def mask_token(folder: Path, vocabulary: Mapping[str, int]) -> str | None:
    """The mask token's name, as the tokenizer's files tell it, else a usual one; None where there is none in the vocabulary."""
    named = [
        _content(read_mapping(folder / file).get("mask_token"))
        for file in _FILES
        if (folder / file).is_file()
    ]
    return next((name for name in (*named, *_USUAL) if name in vocabulary), None)


def _content(token: Any) -> str:
    return str(token.get("content", "") if isinstance(token, dict) else token)


def _place(tokenizer: Tokenizer, mask: int) -> int:
    """A text that spells the mask token out changes nothing: the template's stands at a known distance from the end, or from the beginning."""
    return (
        tokenizer.prefix.index(mask)
        if mask in tokenizer.prefix
        else tokenizer.suffix.index(mask) - len(tokenizer.suffix)
    )

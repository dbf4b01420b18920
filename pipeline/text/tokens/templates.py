"""Put texts into a template, such as: This sentence : "[X]" means [MASK] .

The text is truncated before it is put into the template, so that the mask token is never removed (PromptBERT,
Jiang et al. 2022).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.errors import ModelError
from pipeline.text.tokens.load_tokenizer import read_tokenizer
from pipeline.text.tokens.positions import surroundings, tokens_at
from pipeline.text.tokens.tokenizer_files import read_mapping, token_text
from pipeline.text.tokens.tokens import Side, Tokenizer, Tokens

TEXT, MASK = "[X]", "[MASK]"
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_COMMON_MASK_TOKENS = ("[MASK]", "<mask>")
# A class that applies the post-processor in tokenizer.json; others, such as BertTokenizer, ignore it.
_PLAIN_CLASS = "PreTrainedTokenizerFast"


@dataclass(frozen=True)
class TemplateFrame:
    """The tokens around every text."""

    prefix: tuple[int, ...]
    """tokens before the text, [CLS] or the like first"""
    suffix: tuple[int, ...]
    """tokens after the text"""
    mask: int
    """position of the mask token among the tokens of a framed text, negative if counted from its end"""

    def __len__(self) -> int:
        return len(self.prefix) + len(self.suffix)

    @property
    def mask_index(self) -> int:
        """Index of the mask token among the tokens of the frame."""
        return self.mask % len(self)

    def apply(
        self, tokens: Tokens, specials: tuple[int, int], *, limit: int, truncation_side: Side = "end"
    ) -> Tokens:
        """Replace the frame of tokenized texts by this one.

        Args:
            tokens: texts within a template, or within special tokens.
            specials: number of special tokens (before, after) each text; used if the texts have no template.
            limit: largest number of tokens of the text itself.
            truncation_side: side from which tokens over the limit are removed.
        """
        in_frame = tokens.outside_text(specials)
        owners, inner = tokens.owners[~in_frame], tokens.ids[~in_frame]
        lengths = np.bincount(owners, minlength=len(tokens))
        positions = np.arange(len(inner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # in the text
        inner = inner[positions < limit if truncation_side == "end" else lengths[owners] - positions <= limit]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.minimum(lengths, limit) + len(self))])
        around = surroundings(offsets, len(self.prefix), len(self.suffix))
        ids = np.empty(offsets[-1], np.int32)
        ids[around] = np.tile(np.array([*self.prefix, *self.suffix], np.int32), len(tokens))
        ids[~around] = inner
        return Tokens(
            ids, offsets, tokens.truncated | (lengths > limit), tokens_at(offsets, self.mask), around
        )


def template_frame(tokenizer: Tokenizer) -> TemplateFrame:
    """Return the frame that the tokenizer of an encoder with mask pooling puts around texts."""
    assert tokenizer.mask is not None
    return TemplateFrame(tokenizer.prefix, tokenizer.suffix, tokenizer.mask)


def apply_template(tokenizer: Tokenizer, folder: Path, template: str | None, *, masked: bool) -> Tokenizer:
    """Return the tokenizer with a template around its texts.

    The two parts of a template, before and after the text, are tokenized separately.

    Args:
        tokenizer: the folder's tokenizer.
        folder: the model folder.
        template: contains [X] and [MASK] once; None uses the template that the folder's tokenizer already
            has.
        masked: whether the hidden state of the mask token represents the text.

    Raises:
        ModelError: the tokenizer has no mask token, the template has none or several, or it leaves no room
            for a text.
    """
    if tokenizer.types is not None:
        raise ModelError(
            str(folder),
            "a tokenizer whose tokens all have token type 0, for a template or the pooling mask",
            f"types {tokenizer.types}",
            "use another encoder, or another pooling",
        )
    name = mask_token(folder, tokenizer.vocabulary())
    if name is None:
        raise ModelError(
            str(folder),
            "a tokenizer with a mask token",
            "none",
            "use an encoder trained with masked tokens, such as BERT",
        )
    mask = tokenizer.vocabulary()[name]
    if template is not None:
        tokenizer = _with_template(tokenizer, template, name, folder)
    around = (*tokenizer.prefix, *tokenizer.suffix)
    if around.count(mask) != 1:
        raise ModelError(
            str(folder / "tokenizer.json") if template is None else "encoder.template",
            f"one {name} around a text",
            f"{around.count(mask)}",
            "give encoder.template, or choose another pooling"
            if template is None
            else f"write {MASK} once, separated from letters",
        )
    if tokenizer.max_text_tokens < 1:
        raise ModelError(
            "encoder.max_length",
            "room for at least one token of the text",
            f"{tokenizer.max_length}, of which {len(around)} belong to the template",
            "raise it",
        )
    # Counted from the nearer end, because the text in between has any length and may contain the mask token,
    # too.
    index = around.index(mask)
    position = index if mask in tokenizer.prefix else index - len(around)
    return replace(tokenizer, mask=position if masked else None)


def _with_template(tokenizer: Tokenizer, template: str, mask_name: str, folder: Path) -> Tokenizer:
    """Return the tokenizer with the tokens of the template inside its special tokens."""
    if tokenizer.vocabulary()[mask_name] in (*tokenizer.prefix, *tokenizer.suffix):
        raise ModelError(
            "encoder.template",
            "an encoder without a template of its own",
            f"one in {folder / 'tokenizer.json'}",
            "set encoder.template to null",
        )
    if template.count(TEXT) != 1:
        raise ModelError(
            "encoder.template",
            f"a template with {TEXT} once",
            repr(template),
            f"write {TEXT} where the text belongs",
        )
    before, after = tokenizer.to_ids(template.replace(MASK, mask_name).split(TEXT))
    return replace(tokenizer, prefix=(*tokenizer.prefix, *before), suffix=(*after, *tokenizer.suffix))


def wrap_tokenizer(folder: Path, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> None:
    """Rewrite the folder's tokenizer.json so that libraries which read it put these tokens around a text.

    The libraries truncate the text to the remaining length. If the folder has no tokenizer.json, it is built
    from the vocabulary. The tokenizer's class in tokenizer_config.json is replaced too (`_PLAIN_CLASS`).
    """
    backend = read_tokenizer(folder)
    parts = [
        {"SpecialToken": {"id": "before", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "behind", "type_id": 0}},
    ]
    content = json.loads(backend.to_str())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [*parts[:2], {"Sequence": {"id": "B", "type_id": 0}}, parts[2]],
        "special_tokens": {
            name: {"id": name, "ids": list(ids), "tokens": [backend.id_to_token(number) for number in ids]}
            for name, ids in (("before", prefix), ("behind", suffix))
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    config_path = folder / "tokenizer_config.json"
    config = read_mapping(config_path) | {"tokenizer_class": _PLAIN_CLASS}
    config_path.write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


def add_tokens(folder: Path, count: int) -> list[int]:
    """Add `count` special tokens, one for each learned vector of a template, to the folder's tokenizer.json.

    Returns:
        The ids of the new tokens.

    Raises:
        ModelError: an id is already taken.
    """
    from tokenizers import AddedToken

    backend = read_tokenizer(folder)
    known_ids = set(backend.get_vocab().values())
    names = [f"[template {number}]" for number in range(count)]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    ids = [backend.get_vocab()[name] for name in names]
    if taken := known_ids.intersection(ids):
        raise ModelError(
            str(folder / "tokenizer.json"),
            f"a vocabulary with room for {count} more tokens at its end",
            f"the id {min(taken)} already taken",
            "use another encoder",
        )
    backend.save(str(folder / "tokenizer.json"))
    return ids


def mask_token(folder: Path, vocabulary: Mapping[str, int]) -> str | None:
    """Name of the mask token, from the tokenizer's files or a list of common ones; None if there is none."""
    named = (read_mapping(folder / file).get("mask_token") for file in _TOKENIZER_FILES)
    names = [*(token_text(token) for token in named if token is not None), *_COMMON_MASK_TOKENS]
    return next((name for name in names if name in vocabulary), None)

"""Small random encoders whose tokenizers have a template for pairs of texts."""

from pathlib import Path

import tokenizers
from tokenizers import processors

from tests.models.folders import edit_json, save_folder

_WITH_TOKEN_TYPES = ("bert", "electra")  # whose templates give the second text token type 1
_TYPED = "[CLS] $A [SEP] $B:1 [SEP]:1"
_UNTYPED = "[CLS] $A [SEP] [SEP] $B [SEP]"  # of RoBERTa and MPNet


def pair_folder(path: Path, family: str = "bert", seed: int = 0) -> Path:
    """Write a folder whose tokenizer.json has the pair template of its family."""
    save_folder(path, family, seed)
    tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    has_types = family in _WITH_TOKEN_TYPES
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=_TYPED if has_types else _UNTYPED, special_tokens=ends
    )
    tokenizer.enable_padding(length=32)  # as in some published folders
    tokenizer.enable_truncation(16)
    tokenizer.save(str(path / "tokenizer.json"))
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if has_types else [])]
    edit_json(path / "tokenizer_config.json", model_input_names=inputs)
    return path

"""Change every key of the files of other kinds of folders, and compare with sentence-transformers.

    python -m tests.models.folder.folder_kinds [KIND ...]

prints lines of folder_kinds.md. The keys of a folder with a WordPiece tokenizer are in `folder_keys`.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import models, normalizers, pre_tokenizers

from pipeline.errors import ModelError
from tests.models.folder.static_folders import model2vec_vectors, random_table, save_model2vec, save_static
from tests.models.folders import (
    LONG,
    TEXTS,
    byte_level,
    encoder_at,
    save_folder,
    save_tokenizer,
    word_piece,
)

TABLE = Path(__file__).with_suffix(".md")
COMPUTED, REFUSED, WITHOUT_EFFECT, OTHER = "computed", "refused", "without effect", "other vectors"
VERDICTS = (COMPUTED, REFUSED, WITHOUT_EFFECT)
_SAMPLE = [
    *filter(None, TEXTS),
    LONG[:300],
    "catdog runsx cato",
    " dogs [MASK] dogs og, ÉCOLE  Two 日本 ",
    "a ☃ [SEP] x </s> y",
]
_MODEL2VEC, _ST_CONFIG = "model2vec", "config_sentence_transformers.json"
_TOKEN = {"content": "og", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_LIMIT = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
_PADDING = {
    **{"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": 8},
    **{"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
}
_ADDED: Mapping[str, Mapping[str, Any]] = {
    "tokenizer.json": {
        "version": "1.0",
        "truncation": _LIMIT,
        "padding": _PADDING,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "added_tokens": [],
        "model.unk_token": "[none]",
        "model.unk_id": 5,
        "model.byte_fallback": True,
        "model.dropout": 0.5,
        "model.fuse_unk": True,
        "model.ignore_merges": True,
        "model.continuing_subword_prefix": "@@",
        "model.end_of_word_suffix": "</w>",
        "model.max_input_chars_per_word": 3,
        "pre_tokenizer.add_prefix_space": True,
        "pre_tokenizer.use_regex": False,
        "pre_tokenizer.replacement": "_",
        "pre_tokenizer.prepend_scheme": "never",
        "pre_tokenizer.split": False,
    },
    "tokenizer_config.json": {
        **dict.fromkeys(("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "pad_token"), "og"),
        "mask_token": "og",
        "added_tokens_decoder": {"290": {**_TOKEN, "special": False}},
        "extra_special_tokens": ["og"],
        "add_prefix_space": True,
        "add_bos_token": True,
        "add_eos_token": True,
        "clean_up_tokenization_spaces": True,
        "do_lower_case": True,
        "keep_accents": False,
        "legacy": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 9,
        "padding_side": "left",
        "remove_space": False,
        "sp_model_kwargs": {"enable_sampling": True},
        "split_special_tokens": True,
        "strip_accents": True,
        "tokenize_chinese_chars": False,
        "trim_offsets": False,
        "truncation_side": "left",
    },
    "special_tokens_map.json": {"mask_token": "og", "additional_special_tokens": ["og"]},
    "added_tokens.json": {"og": 299},
    _ST_CONFIG: {
        "model_type": "SparseEncoder",
        "prompts": {"document": "two "},
        "default_prompt_name": "none",
        "similarity_fn_name": "dot",
        "truncate_dim": 5,
    },
    "config.json": {"normalize": True, "max_length": 5, "hidden_dim": 5, "apply_pca": 5, "apply_zipf": True},
}
"""other values of keys, by file; keys inside of values are separated by dots"""


def _transformer(folder: Path, source: Path) -> None:
    modules = [Transformer(str(source)), Pooling(48, pooling_mode="mean")]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))


def _byte_level(folder: Path) -> None:
    _transformer(folder, save_folder(folder / "source", "roberta"))


def _unigram(folder: Path) -> None:
    """A tokenizer.json as of T5 and XLM-R: Unigram, with blanks as marks."""
    save_folder(folder / "source", "bert")
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    words = sorted({f"▁{word}" for text in (*TEXTS, LONG) for word in text.split()})[:120]
    letters = sorted({letter for text in TEXTS for letter in text if not letter.isspace()} | {"▁"})
    scores = [(name, 0.0) for name in names] + [(each, -float(len(each))) for each in words]
    scores += [(letter, -9.0) for letter in letters if letter not in words]
    tokenizer = tokenizers.Tokenizer(models.Unigram(scores, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = word_piece().post_processor
    tokenizer.add_special_tokens(names)
    save_tokenizer(tokenizer, folder / "source")
    _transformer(folder, folder / "source")


def _vocabulary(folder: Path) -> None:
    """A folder of BERT with vocab.txt and without tokenizer.json."""
    source = save_folder(folder / "source", "bert")
    ids = word_piece().get_vocab()
    (source / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.__getitem__)) + "\n")
    _without_tokenizer_json(folder, "BertTokenizer", "vocab.txt")


def _sentencepiece(folder: Path) -> None:
    """A folder of XLM-R with a SentencePiece model alone."""
    source = save_folder(folder / "source", "bert")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*filter(None, TEXTS), LONG]),
        model_prefix=str(source / "sentencepiece.bpe"),
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    _without_tokenizer_json(folder, "XLMRobertaTokenizer", "sentencepiece.bpe.model")


def _without_tokenizer_json(folder: Path, tokenizer_class: str, name: str) -> None:
    source = folder / "source"
    _transformer(folder, source)
    for file in ("tokenizer.json", "special_tokens_map.json"):
        (folder / file).unlink(missing_ok=True)
    shutil.copyfile(source / name, folder / name)
    config = {"tokenizer_class": tokenizer_class, "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _static(folder: Path) -> None:
    save_static(folder, word_piece())


def _static_bytes(folder: Path) -> None:
    save_static(folder, byte_level())


def _model2vec(folder: Path) -> None:
    save_model2vec(folder / "m", word_piece(), {"embeddings": random_table(word_piece())}, normalize=False)
    shutil.copytree(folder / "m", folder, dirs_exist_ok=True)


KINDS: Mapping[str, Callable[[Path], None]] = {
    "byte-level BPE": _byte_level,
    "Unigram": _unigram,
    "vocab.txt": _vocabulary,
    "SentencePiece": _sentencepiece,
    "StaticEmbedding": _static,
    "StaticEmbedding of byte-level BPE": _static_bytes,
    _MODEL2VEC: _model2vec,
}


def changes_of(folder: Path, kind: str) -> Iterator[tuple[str, str, Any]]:
    """Yield (file, key, other value) for each change of a folder of a kind."""
    unread = _ST_CONFIG if kind == _MODEL2VEC else "config.json"  # by the library that wrote the folder
    for file, values in _ADDED.items():
        known = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        if file == unread or (file == "tokenizer.json" and not known):
            continue
        for key, value in values.items():
            outer, _, inner = key.rpartition(".")
            part = known.get(outer) or {} if outer else known
            if outer and inner not in part:
                continue
            if part.get(inner, ...) != value:
                yield file, key, value
            elif isinstance(value, bool):
                yield file, key, not value


def apply(folder: Path, file: str, key: str, value: Any) -> None:
    """Write a changed value into its file."""
    values = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    outer, _, inner = key.rpartition(".")
    (values[outer] if outer else values)[inner] = value
    (folder / file).write_text(json.dumps(values))


def _peer(folder: Path, kind: str) -> np.ndarray:
    """Encode the texts as the library that wrote the folder."""
    if kind == _MODEL2VEC:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        limit = json.loads((folder / "config.json").read_text()).get("max_length", 512)
        return model2vec_vectors(tokenizer, {"embeddings": random_table(word_piece())}, _SAMPLE, limit)
    return np.asarray(SentenceTransformer(str(folder), device="cpu").encode_document(_SAMPLE, batch_size=1))


def verdict_of(folder: Path, kind: str, base: np.ndarray) -> str:
    """Say what an encoder does with a changed folder."""
    try:
        found = encoder_at(folder).encode(_SAMPLE)
    except ModelError:
        return REFUSED
    expected = _peer(folder, kind)
    if found.shape != expected.shape or np.abs(found - expected).max() > 2e-5:
        return OTHER
    is_changed = found.shape != base.shape or np.abs(found - base).max() > 1e-6
    return COMPUTED if is_changed else WITHOUT_EFFECT


def line_of(kind: str) -> str:
    """Return the line of a kind in the table."""
    found: dict[str, list[str]] = {verdict: [] for verdict in (*VERDICTS, OTHER)}
    with tempfile.TemporaryDirectory() as top:
        torch.manual_seed(0)
        folder = Path(top) / "base"
        folder.mkdir()
        KINDS[kind](folder)
        base = encoder_at(folder).encode(_SAMPLE)
        for number, (file, key, value) in enumerate(changes_of(folder, kind)):
            changed = Path(shutil.copytree(folder, Path(top) / str(number)))
            apply(changed, file, key, value)
            found[verdict_of(changed, kind, base)].append(f"{file}: {key}")
            shutil.rmtree(changed)
    cells = [", ".join(f"`{label}`" for label in sorted(found[verdict])) for verdict in VERDICTS]
    if found[OTHER]:
        cells[0] += f" **OTHER: {', '.join(found[OTHER])}**"
    return f"| {kind} | {' | '.join(cells)} |"


def table() -> dict[str, str]:
    """Read the lines of the table by kind."""
    rows = TABLE.read_text().partition("|---|---|---|---|\n")[2].splitlines()
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows}


if __name__ == "__main__":
    for each in sys.argv[1:] or KINDS:
        print(line_of(each), flush=True)

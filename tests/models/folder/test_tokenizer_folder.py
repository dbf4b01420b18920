"""Token ids, prompts and truncation follow the files of a pretrained encoder's folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.models.folder.pretrained import reference
from tests.models.folders import TEXTS, edit_json, encoder_at


def tokenizer_folder(folder: Path, kind: str, adds_ends: bool, **config: Any) -> Path:
    """Write the files of a tokenizer; if `adds_ends`, its tokenizer.json puts a text between <s> and </s>."""
    pieces = {
        "metaspace": pre_tokenizers.Metaspace(),
        "byte_level": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "words": pre_tokenizers.BertPreTokenizer(),
    }
    tokenizer = Tokenizer(models.Unigram() if kind == "unigram" else models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pieces["metaspace" if kind == "unigram" else kind]
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    trainer = (
        trainers.UnigramTrainer(unk_token="<unk>", special_tokens=special)
        if kind == "unigram"
        else trainers.BpeTrainer(special_tokens=special)
    )
    tokenizer.train_from_iterator([*TEXTS, "the quick brown fox's 12 dogs"], trainer)
    if adds_ends:
        ends = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names | config))
    return folder


@pytest.mark.parametrize("max_length", [9, 64])
@pytest.mark.parametrize(
    "added",
    [
        {},
        {"add_eos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False, "add_eos_token": False},
    ],
)
@pytest.mark.parametrize("adds_ends", [False, True])
@pytest.mark.parametrize("kind", ["metaspace", "byte_level", "words", "unigram"])
def test_token_ids_are_those_of_the_folders_own_tokenizer(
    tmp_path: Path, kind: str, adds_ends: bool, added: dict[str, bool], max_length: int
):
    folder = tokenizer_folder(tmp_path / "tokenizer", kind, adds_ends, **added)
    reference_tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    if not adds_ends:  # transformers 5 ignores these keys of tokenizer_config.json, so set them again
        reference_tokenizer.add_bos_token = added.get("add_bos_token", False)
        reference_tokenizer.add_eos_token = added.get("add_eos_token", False)
        reference_tokenizer.update_post_processor()
    tokens = load_tokenizer(folder, max_length)(TEXTS)
    ids = [
        tokens.ids[start:end].tolist()
        for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)
    ]
    assert ids == [
        reference_tokenizer(text, truncation=True, max_length=max_length)["input_ids"] for text in TEXTS
    ]


def test_queries_and_documents_get_their_prompts(folders, tmp_path: Path):
    model = reference(folders["bert"], prompts={"query": "two dogs: ", "document": "the text: "})
    model.save_pretrained(str(tmp_path))
    encoder, texts = encoder_at(tmp_path), list(TEXTS)
    np.testing.assert_allclose(encoder.encode(texts), model.encode_document(texts), atol=1e-5)
    np.testing.assert_allclose(encoder.encode(texts, query=True), model.encode_query(texts), atol=1e-5)


def test_vectors_are_cut_to_truncate_dim(folders, tmp_path: Path):
    model = reference(folders["bert"])
    model.save_pretrained(str(tmp_path))
    whole = open_folder(EncoderSettings(path=str(tmp_path)))
    edit_json(tmp_path / "config_sentence_transformers.json", truncate_dim=16)
    encoder = encoder_at(tmp_path)
    assert encoder.dim == 16
    assert encoder.space_id != whole.space_id
    np.testing.assert_allclose(
        encoder.encode(TEXTS), SentenceTransformer(str(tmp_path), device="cpu").encode(list(TEXTS)), atol=1e-5
    )
    np.testing.assert_allclose(
        np.linalg.norm(encoder_at(tmp_path, normalize=True).encode(TEXTS[:2]), axis=1), 1, atol=1e-6
    )
    trainable = load_trainable(open_folder(EncoderSettings(path=str(tmp_path)))).eval()
    with torch.no_grad():
        np.testing.assert_allclose(
            trainable(trainable.folder.tokenizer()(TEXTS)).numpy(), encoder.encode(TEXTS), atol=1e-5
        )
    edit_json(tmp_path / "config_sentence_transformers.json", truncate_dim="all")
    with pytest.raises(ModelError, match="truncate_dim as a whole number, 1 or more, found 'all'"):
        encoder_at(tmp_path)


def test_texts_are_truncated_as_in_processing_kwargs(folders, tmp_path: Path):
    model = reference(folders["bert"])
    model.save_pretrained(str(tmp_path))
    edit_json(
        tmp_path / "sentence_bert_config.json",
        processing_kwargs={"text": {"max_length": 12}},
        max_seq_length=50,
    )
    texts = [text * 3 for text in TEXTS]
    encoder = encoder_at(tmp_path)
    assert encoder.max_length == 12
    np.testing.assert_allclose(
        encoder.encode(texts), SentenceTransformer(str(tmp_path), device="cpu").encode(texts), atol=1e-5
    )

"""Token ids, prompts and truncation follow the files of a pretrained encoder's folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.models.folder.pretrained import reference
from tests.models.folders import TEXTS, edit_json, encoder_at, folder_at


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


@pytest.mark.parametrize("query", ["two dogs: ", ""])
@pytest.mark.parametrize("document", ["the text: ", ""])
@pytest.mark.parametrize("default", [None, "query", "document"])
def test_queries_and_documents_get_their_prompts(
    folders, tmp_path: Path, query: str, document: str, default: str | None
):
    prompts = {"query": query, "document": document}
    model = reference(folders["bert"], prompts=prompts, default_prompt_name=default)
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


def test_texts_are_lowercased_whatever_words_the_vocabulary_has(bert: Path):
    (bert / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    content = json.loads((bert / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["Lowercase"] = vocabulary.pop("window")
    (bert / "tokenizer.json").write_text(json.dumps(content))
    upper, lower = encoder_at(bert).encode(["TWO Dogs RUN.", "two dogs run."])
    np.testing.assert_array_equal(upper, lower)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "mpnet", "electra"])
def test_a_folder_without_a_vocabulary_is_refused(folders, tmp_path: Path, family: str):
    """transformers 5 makes a tokenizer for which every word is unknown."""
    folder = Path(shutil.copytree(folders[family], tmp_path / family))
    (folder / "tokenizer.json").unlink()
    edit_json(folder / "tokenizer_config.json", tokenizer_class=...)
    with pytest.raises(ModelError, match=r"expected tokenizer\.json or a vocabulary, found none"):
        encoder_at(folder)


@pytest.mark.parametrize(
    ("family", "files"),
    [("bert", {"vocab.txt": "x\ny"}), ("roberta", {"vocab.json": "{", "merges.txt": "a b"})],
)
def test_a_damaged_vocabulary_is_refused(folders, tmp_path: Path, family: str, files: dict[str, str]):
    folder = Path(shutil.copytree(folders[family], tmp_path / family))
    (folder / "tokenizer.json").unlink()
    edit_json(folder / "tokenizer_config.json", tokenizer_class=...)
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(ModelError, match=r"expected .*a vocabulary"):
        encoder_at(folder)


@pytest.mark.parametrize(
    "name", ["BertTokenizer", "DistilBertTokenizerFast", "MPNetTokenizer", "MobileBertTokenizer", None]
)
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"do_lower_case": True}, {"do_lower_case": False, "strip_accents": True}, {"strip_accents": False}],
)
def test_options_of_a_class_are_those_of_tokenizer_config(
    bert: Path, name: str | None, lowercase: bool, options: dict[str, bool]
):
    backend = Tokenizer.from_file(str(bert / "tokenizer.json"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.save(str(bert / "tokenizer.json"))
    edit_json(bert / "tokenizer_config.json", tokenizer_class=name or ..., **options)
    peer, texts = transformers.AutoTokenizer.from_pretrained(str(bert)), [*TEXTS, "Déjà VU", "ABC"]
    tokens = load_tokenizer(bert, 64)(texts)
    assert tokens.ids.tolist() == [number for text in texts for number in peer(text)["input_ids"]]


@pytest.mark.parametrize("name", ["RobertaTokenizer", "LongformerTokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("options", [{}, {"add_prefix_space": True}])
def test_a_space_before_a_text_is_added_if_tokenizer_config_says_so(
    folders, tmp_path: Path, name: str, spaced: bool, options: dict[str, bool]
):
    folder = Path(shutil.copytree(folders["roberta"], tmp_path / "roberta"))
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.save(str(folder / "tokenizer.json"))
    plain = folder_at(folder).space_id
    edit_json(folder / "tokenizer_config.json", tokenizer_class=name, **options)
    assert (folder_at(folder).space_id == plain) == (spaced == bool(options)), (
        "the space changes with the ids"
    )
    peer = transformers.AutoTokenizer.from_pretrained(str(folder))
    tokens = load_tokenizer(folder, 64)(TEXTS)
    assert tokens.ids.tolist() == [number for text in TEXTS for number in peer(text)["input_ids"]]


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("bert", "RoFormerTokenizerFast"), ("roformer", "RoFormerTokenizer"), ("roformer", None)],
)
def test_a_tokenizer_that_splits_texts_by_a_dictionary_of_its_own_is_refused(
    bert: Path, model_type: str, name: str | None
):
    edit_json(bert / "config.json", model_type=model_type)
    edit_json(bert / "tokenizer_config.json", tokenizer_class=name or ...)
    with pytest.raises(ModelError, match="RoFormerTokenizer, which splits them into the words of rjieba"):
        load_tokenizer(bert, 64)


@pytest.mark.parametrize("pad_id", [-1, -2])
def test_a_padding_token_without_a_row_changes_no_vector(folders, tmp_path: Path, pad_id: int):
    folder = Path(shutil.copytree(folders["electra"], tmp_path / "electra"))
    expected = encoder_at(folder).encode(TEXTS)
    edit_json(folder / "config.json", pad_token_id=pad_id)
    np.testing.assert_array_equal(encoder_at(folder).encode(TEXTS), expected)


@pytest.mark.parametrize("name", ["spm.model", "sentencepiece.model", "bpe.codes"])
def test_a_vocabulary_of_a_single_family_is_copied_and_part_of_the_space(folders, tmp_path: Path, name: str):
    folder = Path(shutil.copytree(folders["electra"], tmp_path / "electra"))
    (folder / name).write_text("a")
    with_both = folder_at(folder)
    assert name not in with_both.files, "tokenizer.json is enough"
    (folder / "tokenizer.json").unlink()
    first = folder_at(folder)
    (folder / name).write_text("b")
    assert name in first.files
    assert folder_at(folder).space_id != first.space_id


@pytest.mark.parametrize(
    ("model_type", "tokenizer_class", "is_warned"),
    [
        *((name, None, True) for name in ("albert", "gemma3_text", "llama", "mixtral", "big_bird", "fnet")),
        *((name, None, False) for name in ("xlm-roberta", "t5", "bert-generation")),
        ("qwen2", "LlamaTokenizerFast", True),
        ("m2m_100", "NllbTokenizer", True),
        ("mt5", "T5Tokenizer", False),
        ("roberta", "XLMRobertaTokenizerFast", False),
    ],
)
def test_a_sentencepiece_model_that_transformers_5_reads_otherwise_is_a_warning(
    bert: Path, model_type: str, tokenizer_class: str | None, is_warned: bool
):
    edit_json(bert / "config.json", model_type=model_type)
    edit_json(bert / "tokenizer_config.json", tokenizer_class=tokenizer_class)
    (bert / "spiece.model").write_text("a")
    assert folder_at(bert).warnings == ()
    (bert / "tokenizer.json").unlink()
    found = folder_at(bert).warnings
    assert len(found) == is_warned
    assert all("transformers 5 builds another tokenizer" in sentence for sentence in found)
    (bert / "spiece.model").unlink()
    assert folder_at(bert).warnings == ()

"""Tokens in files beside tokenizer.json are added as transformers adds them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers

from pipeline.errors import ModelError
from pipeline.text.tokens.listed_tokens import listed_tokens
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.models.folders import byte_level, edit_json, folder_at, save_folder, save_tokenizer, word_piece

TEXTS = ["a dog <x> runs", "a<x>b [MASK] zz", "the  <y>  dog<y>", "[MASK]s is it", "", "Two <x><y>[SEP] dogs"]
CONFIG, MAP, IDS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_PLAIN = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False}
FILES: Mapping[str, dict[str, dict[str, Any]]] = {
    "by id": {CONFIG: {"added_tokens_decoder": {"300": {"content": "<x>", **_PLAIN, "rstrip": True}}}},
    "other options": {
        CONFIG: {"added_tokens_decoder": {"4": {**_PLAIN, "content": "[MASK]", "single_word": True}}}
    },
    "as part of a word": {
        CONFIG: {"added_tokens_decoder": {"300": {"content": "<x>", **_PLAIN, "single_word": True}}}
    },
    "older ids": {IDS: {"<y>": 301, "<x>": 300}},
    "older roles": {
        MAP: {"additional_special_tokens": ["<x>", "<y>"], "bos_token": {"content": "a", **_PLAIN}}
    },
    "older options": {MAP: {"mask_token": {"content": "dog", **_PLAIN, "lstrip": True}}},
    "roles": {CONFIG: {"extra_special_tokens": ["<y>"], "eos_token": "<x>"}},
    "names": {CONFIG: {"extra_special_tokens": {"image_token": "<y>"}, "video_token": "<x>"}},
    "objects": {
        CONFIG: {"additional_special_tokens": ["<y>", {"__type": "AddedToken", "content": "<x>", **_PLAIN}]}
    },
    "older files beside ids": {
        CONFIG: {"added_tokens_decoder": {}},
        IDS: {"<x>": 300},
        MAP: {"bos_token": "<y>"},
    },
    "split": {CONFIG: {"split_special_tokens": True}},
}


def tokenizer_folder(folder: Path, kind: str) -> Path:
    folder.mkdir()
    save_tokenizer(byte_level() if kind == "bytes" else word_piece(), folder)
    edit_json(folder / CONFIG, added_tokens_decoder=...)
    return folder


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return save_folder(tmp_path / "bert", "bert")


def ids_of(folder: Path) -> list[list[int]]:
    tokens = load_tokenizer(folder, 64)(TEXTS)
    return [
        row.tolist()
        for row in (tokens.ids[a:b] for a, b in zip(tokens.offsets, tokens.offsets[1:], strict=False))
    ]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_tokens_are_those_of_transformers_whichever_file_lists_them(tmp_path: Path, kind: str, name: str):
    folder = tokenizer_folder(tmp_path / "tokenizer", kind)
    before = ids_of(folder)
    for file, values in FILES[name].items():
        edit_json(folder / file, **values)
    peer = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert ids_of(folder) == [peer(text)["input_ids"] for text in TEXTS]
    assert (ids_of(folder) == before) == (name == "older files beside ids")


@pytest.mark.parametrize("name", FILES)
def test_the_space_changes_with_the_tokens(bert: Path, name: str):
    edit_json(bert / CONFIG, added_tokens_decoder=...)
    before = folder_at(bert).space_id
    for file, values in FILES[name].items():
        edit_json(bert / file, **values)
    assert (folder_at(bert).space_id == before) == (name == "older files beside ids")


def test_files_that_repeat_the_tokens_of_tokenizer_json_change_nothing(bert: Path):
    before = folder_at(bert).space_id
    own = json.loads((bert / "tokenizer.json").read_text())["added_tokens"]
    edit_json(bert / CONFIG, added_tokens_decoder={str(token.pop("id")): token for token in own})
    edit_json(bert / MAP, mask_token="[MASK]")
    edit_json(bert / IDS, **{"[MASK]": 4})
    assert listed_tokens(bert) == []
    assert folder_at(bert).space_id == before


@pytest.mark.parametrize("name", ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"])
def test_tokens_of_a_class_are_whole_if_no_file_lists_them(tmp_path: Path, name: str):
    folder = tokenizer_folder(tmp_path / "tokenizer", "words")
    (folder / CONFIG).write_text(json.dumps({"tokenizer_class": name, "do_lower_case": False}))
    edit_json(folder / "tokenizer.json", added_tokens=[])
    peer = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert ids_of(folder) == [peer(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        (
            CONFIG,
            {"added_tokens_decoder": {"x": {"content": "a"}}},
            "tokens by their ids as added_tokens_decoder",
        ),
        (CONFIG, {"added_tokens_decoder": {"7": "a"}}, "tokens by their ids as added_tokens_decoder"),
        (CONFIG, {"added_tokens_decoder": {"7": {}}}, "tokens by their ids as added_tokens_decoder"),
        (CONFIG, {"mask_token": 3}, "a token or an object with its content as mask_token"),
        (MAP, {"mask_token": ["a"]}, "a token or an object with its content as mask_token"),
        (MAP, {"additional_special_tokens": [3]}, "a list of tokens as additional_special_tokens"),
        (IDS, {"a": "x"}, "an id of 'a'"),
        (CONFIG, {"split_special_tokens": "no"}, "true or false as split_special_tokens"),
        ("tokenizer.json", {"added_tokens": [{"id": 3}]}, "a list of tokens as added_tokens"),
    ],
)
def test_a_listed_token_of_another_type_is_refused(
    bert: Path, file: str, values: dict[str, Any], message: str
):
    edit_json(bert / CONFIG, added_tokens_decoder=...)
    edit_json(bert / file, **values)
    with pytest.raises(ModelError, match=message):
        folder_at(bert)


@pytest.mark.parametrize("order", ["sorted", "model first", "long"])
def test_the_order_and_the_length_of_tokenizer_json_do_not_matter(bert: Path, order: str):
    edit_json(bert / CONFIG, added_tokens_decoder={"300": {"content": "<x>", **_PLAIN}})
    expected = listed_tokens(bert)
    description = json.loads((bert / "tokenizer.json").read_text())
    if order == "long":  # the added tokens alone have more than a megabyte
        tokens = [{"id": 400 + number, "content": f"<t{number}>", **_PLAIN} for number in range(10_000)]
        description["added_tokens"] += tokens
    model = {"model": description.pop("model")}
    description = {**model, **description} if order == "model first" else {**description, **model}
    (bert / "tokenizer.json").write_text(json.dumps(description, sort_keys=order == "sorted"))
    assert listed_tokens(bert) == expected != []

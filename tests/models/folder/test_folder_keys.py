"""Each key of an encoder folder is computed as sentence-transformers does, refused, or without effect."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

from pipeline.errors import ModelError
from tests.models.folder.folder_keys import CHANGES, Change
from tests.models.folders import LONG, TEXTS, edit_json, encoder_at, save_folder

SAMPLE = [
    *filter(None, TEXTS),
    LONG,
    "catdog runsx cato",
    "dogs [MASK] dogs, ÉCOLE Two 日本",
    "a ☃ [SEP] x",
]
_FAST = tuple(range(0, len(CHANGES), 4))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sentence-transformers with a Transformer, a Pooling, a Dense and a Normalize module."""
    top = tmp_path_factory.mktemp("keys")
    transformer = Transformer(str(save_folder(top / "bert", "bert")))
    torch.manual_seed(0)
    dense = Dense(48, 16, activation_function=torch.nn.Tanh())
    modules = [transformer, Pooling(48, pooling_mode="mean"), dense, Normalize()]
    prompts = {"query": "two dogs: ", "document": ""}
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save_pretrained(str(top / "st"))
    return top / "st"


@pytest.fixture(scope="module")
def unchanged(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | None], np.ndarray]:
    """Vectors of the unchanged folder, with a class of tokenizers."""
    known: dict[str | None, np.ndarray] = {}

    def vectors(tokenizer_class: str | None) -> np.ndarray:
        if tokenizer_class not in known:
            folder = copy_of(base, tmp_path_factory.mktemp("plain") / "st", tokenizer_class)
            known[tokenizer_class] = encoder_at(folder).encode(SAMPLE)
        return known[tokenizer_class]

    return vectors


def copy_of(base: Path, folder: Path, tokenizer_class: str | None) -> Path:
    shutil.copytree(base, folder)
    if tokenizer_class is not None:
        edit_json(folder / "tokenizer_config.json", tokenizer_class=tokenizer_class, do_lower_case=False)
    return folder


def apply(change: Change, folder: Path) -> None:
    """Write the changed value into its file."""
    file = folder / change.file
    values = json.loads(file.read_text()) if file.exists() else {}
    part, (*outer, last) = values, change.key.split(".")
    for key in outer:
        part = part[int(key) if isinstance(part, list) else key]
    part[last] = change.value
    file.write_text(json.dumps(values))


def check(change: Change, base: Path, folder: Path, before: np.ndarray) -> None:
    apply(change, copy_of(base, folder, change.tokenizer_class))
    if change.outcome == "refused":
        place = change.file.rpartition("/")[0] or change.file
        with pytest.raises(ModelError, match=f"{re.escape(place)}|{change.key}"):
            encoder_at(folder).encode(SAMPLE)
        return
    vectors = encoder_at(folder).encode(SAMPLE)
    # one by one, since padding on the left changes the positions of shorter texts
    peer = SentenceTransformer(str(folder), device="cpu").encode_document(SAMPLE, batch_size=1)
    np.testing.assert_allclose(vectors, peer, atol=2e-5)
    is_equal = vectors.shape == before.shape and np.allclose(vectors, before, atol=1e-6)
    assert is_equal == (change.outcome == "without effect")


def named(number: int) -> str:
    return f"{number}-{CHANGES[number].file}-{CHANGES[number].key}"


@pytest.mark.parametrize("number", _FAST, ids=named)
def test_a_changed_key_has_the_outcome_of_the_table(base: Path, tmp_path: Path, unchanged, number: int):
    check(CHANGES[number], base, tmp_path / "st", unchanged(CHANGES[number].tokenizer_class))


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted(set(range(len(CHANGES))) - set(_FAST)), ids=named)
def test_any_changed_key_has_the_outcome_of_the_table(base: Path, tmp_path: Path, unchanged, number: int):
    check(CHANGES[number], base, tmp_path / "st", unchanged(CHANGES[number].tokenizer_class))


def test_the_table_has_every_key_that_sentence_transformers_writes(base: Path):
    known = {(change.file, change.key.partition(".")[0]) for change in CHANGES}
    known |= {("modules.json", change.key.rpartition(".")[2]) for change in CHANGES}
    for file in base.rglob("*.json"):
        name, values = file.relative_to(base).as_posix(), json.loads(file.read_text())
        if name == "config.json":
            continue
        keys = {key for entry in values for key in entry} if isinstance(values, list) else set(values)
        missing = {key for key in keys if (name, key) not in known}
        assert not missing - {"tokenizer_class"}, name  # keys of every entry with a class in the table

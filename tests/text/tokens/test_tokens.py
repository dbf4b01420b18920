"""Ids equal the output of the tokenizers library; long texts cost little; truncated tokens are counted."""

import random
import shutil
import time
import tracemalloc

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ModelError
from pipeline.models.folder.locate import locate
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.tokens import Tokenizer

MINILM = locate("all-MiniLM-L6-v2")
UNUSUAL = (
    "",
    " ",
    "\x00\x07",
    "a\u0301 e\u0301",
    "日本語のテキスト",
    "🙂🙂 👨‍👩‍👧",
    "İstanbul ǅ ﬁ",
    "x" * 500,
    "[MASK] [SEP] in the text",
    "tab\there\nand  two   spaces ",
    "\u200bzero\u200dwidth",
    "don't well-known e.g. U.S.A.",
    "\ufffd",
    "\u0600 prepended",
)


def reference(text: str, max_length: int) -> list[int]:
    """Ids by the library's own truncation."""
    backend = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    backend.no_padding()
    backend.enable_truncation(max_length)
    return backend.encode(text).ids


def rows(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    tokens = tokenizer(texts)
    assert (tokens.ids.dtype, tokens.offsets.dtype) == (np.int32, np.int64)
    return [
        tokens.ids[start:end].tolist()
        for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)
    ]


@pytest.mark.parametrize("max_length", [8, 256])
def test_ids_equal_the_tokenizers_library(max_length):
    texts = [*UNUSUAL, "one two three four five six seven eight nine ten " * 60]
    assert rows(load_tokenizer(MINILM, max_length), texts) == [reference(text, max_length) for text in texts]


@given(
    st.lists(
        st.text(alphabet=st.sampled_from("ab é.,'日本 \t\n🙂1[]") | st.characters(exclude_categories=["Cs"])),
        min_size=1,
        max_size=5,
    ),
    st.integers(60, 90),
)
def test_tokenizing_only_the_start_of_a_text_changes_no_token(pieces, repeats):
    random.seed(repeats)
    text = random.choice(["", " "]).join(random.choice(pieces) for _ in range(repeats))
    assert rows(load_tokenizer(MINILM, 8), [text]) == [reference(text, 8)]


@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
def test_byte_level_and_metaspace_tokenizers_read_only_the_start_of_a_long_text(kind, tmp_path):
    from tokenizers import models, pre_tokenizers, trainers

    words = "the quick brown fox's 12 dogs, jumps; over! lazy "
    backend = tokenizers.Tokenizer(models.BPE() if kind == "byte_level" else models.Unigram())
    backend.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if kind == "byte_level"
        else pre_tokenizers.Metaspace()
    )
    trainer = (
        trainers.BpeTrainer(vocab_size=60, show_progress=False)
        if kind == "byte_level"
        else trainers.UnigramTrainer(
            vocab_size=60, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"]
        )
    )
    backend.train_from_iterator([words] * 3, trainer)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, 16)
    assert tokenizer.split_pattern is not None
    text = words * 100
    assert rows(tokenizer, [text]) == [backend.encode(text).ids[:16]]


def test_truncated_is_exact_at_max_length():
    tokenizer = load_tokenizer(MINILM, 8)
    tokens = tokenizer(["one two three four five six", "one two three four five six seven", ""])
    assert tokens.truncated.tolist() == [False, True, False]
    assert tokens.lengths.tolist() == [8, 8, 2]


@pytest.mark.parametrize(
    "unit", ["a word and another one, ", "日本語", "🙂", "x", "ab\u00a0", "\n", "a." * 50 + "\t"], ids=repr
)
def test_a_text_of_a_million_characters_costs_little(unit):
    tokenizer = load_tokenizer(MINILM, 256)
    text = unit * (1_000_000 // len(unit))
    tracemalloc.start()
    start_s = time.process_time()
    tokens = tokenizer([text])
    seconds, (_, peak) = time.process_time() - start_s, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tokens.lengths[0] <= 256
    assert seconds < 10  # about 1 s if the whole text must be read, while memory is traced
    assert peak < 200e6


def test_prompt_is_put_before_every_text_and_its_tokens_are_counted():
    tokenizer = load_tokenizer(MINILM, 16, prompt="query: ")
    assert rows(tokenizer, ["two dogs"]) == [reference("query: two dogs", 16)]
    assert tokenizer.prompt_tokens == 3  # [CLS] query :
    assert load_tokenizer(MINILM, 16).prompt_tokens == 0


def test_lower_adds_lower_casing_that_the_tokenizer_lacks(tmp_path):
    from tokenizers import models, pre_tokenizers

    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "dogs": 1, "Dogs": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    assert rows(load_tokenizer(tmp_path, 8), ["Dogs dogs"]) == [[2, 1]]
    assert rows(load_tokenizer(tmp_path, 8, lower=True), ["Dogs dogs"]) == [[1, 1]]


def test_padding_and_truncation_in_the_file_are_ignored(tmp_path):
    backend = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    backend.enable_padding(length=128)
    backend.enable_truncation(5)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert rows(load_tokenizer(tmp_path, 12), ["one two three four five six seven"]) == [
        reference("one two three four five six seven", 12)
    ]


def test_folder_without_tokenizer_json_is_loaded_by_transformers(tmp_path):
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        shutil.copy(MINILM / name, tmp_path)
    texts = ["Two Dogs run, déjà vu!", "x " * 100]
    assert rows(load_tokenizer(tmp_path, 32), texts) == [reference(text, 32) for text in texts]


def test_missing_or_broken_tokenizer_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.json or a vocabulary"):
        load_tokenizer(tmp_path, 32)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(
        ModelError, match=r"tokenizer\.json: expected a tokenizer that the tokenizers library reads"
    ):
        load_tokenizer(tmp_path, 32)


def test_max_length_without_room_for_a_text_is_refused():
    with pytest.raises(ModelError, match=r"encoder\.max_length.*found 2, of which 2 are special tokens"):
        load_tokenizer(MINILM, 2)


def test_max_length_without_room_is_refused_for_a_tokenizer_in_python(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert load_tokenizer(tmp_path, 3)(["abc"]).lengths.tolist() == [3]
    with pytest.raises(ModelError, match=r"encoder\.max_length.*found 1, of which 1 are special tokens"):
        load_tokenizer(tmp_path, 1)


def test_no_texts_give_no_tokens():
    tokens = load_tokenizer(MINILM, 8)([])
    assert (len(tokens), tokens.ids.shape, tokens.offsets.tolist()) == (0, (0,), [0])

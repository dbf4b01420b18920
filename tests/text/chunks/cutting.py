"""Tokenizers whose tokens are easily counted, and random texts to cut."""

import re
from dataclasses import replace

from hypothesis import strategies as st

from pipeline.text.tokens.tokens import Tokenizer

words = st.sampled_from(
    ["a", "two", "Three.", "four!", "e.g.", "Five", "six?", "x" * 90, "日本。", "é\u0301"]
)
spaces = st.sampled_from([" ", " ", " ", "\n", "\n\n", "\t", "\u3000", ""])
lines = st.sampled_from(
    ["\n# Title\n", "\n## Part two\n", "\n```\n# no heading\n```\n", "\n~~~ py\n", "\n#no\n"]
)
texts = st.lists(
    st.one_of(
        st.tuples(words, spaces), st.tuples(words, spaces), st.tuples(lines), st.tuples(st.text(max_size=9))
    ),
    max_size=150,
).map(lambda parts: "".join("".join(part) for part in parts).strip())


def count_words(text: str) -> int:
    return len(text.split())


def count_more_together(text: str) -> int:
    """Count a text as more tokens than its words have one by one."""
    return len(re.findall(r"\S{1,5}", text)) + len(text.split()) // 3


def counting(count, max_length: int = 40) -> Tokenizer:
    """Return a tokenizer with two special tokens, for which `count` is the number of tokens of a text."""
    return Tokenizer(lambda given: [[7] * count(text) for text in given], (1,), (2,), max_length, pad_id=0)


def with_prompt(tokenizer: Tokenizer) -> Tokenizer:
    return replace(tokenizer, prompt="passage: ", ends_sentences=True)

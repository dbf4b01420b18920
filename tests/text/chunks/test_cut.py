"""Chunks cover a text, fit the encoder, overlap as set, and follow sentences and headings."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.models.folder.locate import locate
from pipeline.settings import ChunkSettings
from pipeline.text.chunks.cut import Pieces, TextCutter
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from tests.models.folders import byte_level, save_folder, save_tokenizer
from tests.text.chunks.cutting import count_more_together, count_words, counting, texts, with_prompt

KINDS = ("tokens", "sentences", "headings")
rules = st.builds(
    ChunkSettings,
    by=st.sampled_from(KINDS),
    max_tokens=st.sampled_from([None, 40, 57]),
    max_characters=st.sampled_from([None, None, 16, 40, 400]),
    overlap=st.sampled_from([0, 0, 3, 15]),
)


@pytest.fixture(scope="module", params=["words", "together", "wordpiece", "bytes", "prompt"])
def tokenizer(request, tmp_path_factory):
    if request.param == "words":
        return counting(count_words, 60)
    if request.param == "together":
        return counting(count_more_together, 60)
    if request.param == "bytes":
        return load_tokenizer(save_folder(tmp_path_factory.mktemp("bytes"), "roberta"), 60)
    loaded = load_tokenizer(locate("all-MiniLM-L6-v2"), 60)
    return loaded if request.param == "wordpiece" else with_prompt(loaded)


def cut(tokenizer, text, **chosen):
    """Return the chunks of a text as strings."""
    (spans,) = TextCutter(ChunkSettings(**chosen), tokenizer)([text])
    return [text[start:end] for start, end in spans.tolist()]


@settings(max_examples=settings.default.max_examples * 3)
@given(texts, rules)
def test_chunks_cover_the_text_and_fit_the_encoder(tokenizer, text, chosen):
    (spans,) = TextCutter(chosen, tokenizer)([text])
    covered = 0
    for (start, end), (_, end_before) in zip(spans, [(0, 0), *spans], strict=False):
        assert covered <= end_before < end
        assert start < end_before or not text[end_before:start].strip()
        assert text[start:end] == text[start:end].strip()
        assert end - start <= (chosen.max_characters or len(text))
        covered = end
        if start < end_before:
            # the overlap is counted word by word; together they may have more tokens
            assert len(tokenizer.text_ids([text[start:end_before]])[0]) <= 1.4 * chosen.overlap + 2
            assert chosen.overlap
    assert covered == len(text)
    if text:
        tokens = tokenizer([text[start:end] for start, end in spans])
        assert not tokens.truncated.any()
        assert tokens.lengths.max() <= (chosen.max_tokens or 60)


@given(st.lists(texts, max_size=5), rules)
def test_a_text_is_cut_in_the_same_way_beside_any_others(tokenizer, given_texts, chosen):
    together = TextCutter(chosen, tokenizer)(given_texts)
    alone = [TextCutter(chosen, tokenizer)([text])[0] for text in given_texts]
    assert [spans.tolist() for spans in together] == [spans.tolist() for spans in alone]


@pytest.mark.parametrize(("size", "overlap"), [(32, 0), (32, 7), (38, 16), (33, 1)])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 100, 333])
def test_words_of_one_token_are_windows_with_the_overlap(size, overlap, length):
    words = [f"w{number}" for number in range(length)]
    windows = [words[start : start + size] for start in range(0, max(length - overlap, 1), size - overlap)]
    found = cut(counting(count_words), " \n".join(words), by="tokens", max_tokens=size + 2, overlap=overlap)
    assert [chunk.split() for chunk in found] == windows


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.sampled_from([0, 10, 16]))
def test_sentences_are_packed_whole_and_repeated_whole(lengths, overlap):
    """The oracle packs sentences one by one, and repeats as many at the end as have `overlap` words."""
    sentences = [f"S{'w ' * (length - 1)}w{number}." for number, length in enumerate(lengths)]
    chunks: list[list[int]] = []
    first = stop = 0
    while stop < len(lengths):
        while stop < len(lengths) and sum(lengths[first : stop + 1]) <= 38:
            stop += 1
        chunks.append(list(range(first, stop)))
        starts = [
            start
            for start in range(first + 1, stop)
            if sum(lengths[start:stop]) <= overlap and sum(lengths[start : stop + 1]) <= 38
        ]
        first = starts[0] if overlap and starts else stop
    found = cut(counting(count_words), " ".join(sentences), by="sentences", overlap=overlap)
    assert found == [" ".join(sentences[number] for number in chunk) for chunk in chunks]


def test_a_long_sentence_is_cut_between_words_and_a_long_word_within():
    text = f"Short one. Long {'long ' * 50}end. {'x' * 500}"
    found = cut(counting(count_more_together), text, by="sentences")
    assert found[0] == "Short one."
    assert set(found[1].lower().split()) == {"long"}
    assert "".join(found).replace(" ", "") == text.replace(" ", "")


def test_a_heading_begins_a_chunk_unless_it_is_code():
    text = (
        "Before.\n# One\ntext\n```sh\n# a comment\n```\nmore\n   ## Two\n#none\n####### none\n    # code\n"
        "~~~\n# code\n```\n# still code\n~~~\n#\nEmpty heading\n``` inline ``` code\n# Last"
    )
    found = cut(counting(count_words, 500), text, by="headings")
    assert [chunk.split("\n")[0] for chunk in found] == ["Before.", "# One", "## Two", "#", "# Last"]
    long_section = f"# Long\n{'A sentence of six words here. ' * 20}\n# Next\nend"
    found = cut(counting(count_words), long_section, by="headings")
    assert [count_words(chunk) for chunk in found] == [38, 36, 36, 12, 3]
    assert found[-1] == "# Next\nend"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("He met J. R. Smith. They left.", ["He met J. R. Smith.", "They left."]),
        ("Costs rose, e.g. in Rome. Why?", ["Costs rose, e.g. in Rome.", "Why?"]),
        ('"Stop!" she said. (Really.) Yes', ['"Stop!" she said.', "(Really.)", "Yes"]),
        ("今日は。明日も！終わり", ["今日は。", "明日も！", "終わり"]),
        ("a list\n\nwithout stops \n \nends", ["a list", "without stops", "ends"]),
    ],
)
def test_ends_of_sentences(text, sentences):
    pieces, start, found = Pieces.of(text), 0, []
    for stop in pieces.ends[pieces.ends_sentence].tolist():
        found.append(text[start:stop].strip())
        start = stop
    assert found == sentences


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"by": "tokens"}, "20: of 34 tokens, 14 are of the prompt or special"),
        ({"by": "tokens", "max_tokens": 40, "overlap": 20}, "26: of 40 tokens"),
    ],
)
def test_a_prompt_that_leaves_no_room_is_refused(chosen, found):
    tokenizer = replace(counting(count_words, 34), prompt="p " * 12)
    with pytest.raises(ConfigError, match=found):
        TextCutter(ChunkSettings(**chosen), tokenizer)


def test_the_tokens_of_a_long_word_are_counted_a_few_times_only():
    """A text without spaces must not take a time that is quadratic in its length."""
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text)

    text = " ".join(["x" * 700] * 100)
    assert "".join(cut(counting(count), text, by="tokens")) == text.replace(" ", "")
    assert counted < 10 * len(text)


def test_a_large_text_without_white_space_is_cut(tmp_path: Path):
    save_tokenizer(byte_level(), tmp_path)
    text = "q7Zx" * 50_000
    found = cut(load_tokenizer(tmp_path, 64), text, by="sentences")
    assert "".join(found) == text

"""Hidden states equal those of transformers for every family; special tokens and punctuation are no words."""

from pathlib import Path

import numpy as np
import pytest
import transformers

from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.stats.contextuality import gather_states
from pipeline.stats.occurrences import choose_occurrences
from tests.models.folders import FAMILIES, LONG, TEXTS, hidden_states


@pytest.mark.parametrize("family", FAMILIES)
def test_states_of_every_layer_equal_those_of_transformers(family: str, folders: dict[str, Path]):
    encoder = load_encoder(EncoderSettings(path=str(folders[family])), EncodeSettings(max_tokens=64), "cpu")
    inside, texts = encoder.hidden_states(), [text for text in (*TEXTS, LONG) if text]
    tokens = inside.tokens(texts)
    assert (inside.layers, inside.width) == (3, 48)
    seen = []
    for batch in inside.states(tokens):
        ends = np.cumsum(tokens.lengths[batch.rows])
        for row, start, end in zip(batch.rows, ends - tokens.lengths[batch.rows], ends, strict=True):
            seen.append(row)
            for ours, theirs in zip(batch.layers, hidden_states(folders[family], texts[row]), strict=True):
                np.testing.assert_allclose(ours[start:end], theirs.numpy(), atol=1e-5)
    assert sorted(seen) == list(range(len(texts)))


def test_the_mean_of_the_last_layer_is_mean_pooling(folders: dict[str, Path]):
    encoder = load_encoder(
        EncoderSettings(path=str(folders["bert"]), normalize=False), EncodeSettings(), "cpu"
    )
    inside, texts = encoder.hidden_states(), [text for text in TEXTS if text]
    tokens = inside.tokens(texts)
    words = inside.words(tokens)
    layers = gather_states(
        inside.states(tokens), words, choose_occurrences(words, min_texts=2, pairs=50, limit=1_000, seed=0)
    )
    np.testing.assert_allclose(layers[-1].means, encoder.encode(texts), atol=1e-5)


@pytest.mark.parametrize(("family", "marks"), [("bert", 3), ("roberta", 3)])
def test_special_tokens_prompts_and_punctuation_are_not_words(
    family: str, marks: int, folders: dict[str, Path]
):
    texts = ["Two dogs run.", "A girl, a book!"]
    plain = load_encoder(EncoderSettings(path=str(folders[family])), EncodeSettings(), "cpu").hidden_states()
    prompted = load_encoder(
        EncoderSettings(path=str(folders[family]), prompt="query: "), EncodeSettings(), "cpu"
    ).hidden_states()
    bare, long = plain.words(plain.tokens(texts)), prompted.words(prompted.tokens(texts))
    ends = np.concatenate([bare.offsets[:-1], bare.offsets[1:] - 1])
    assert not bare.is_word[ends].any()
    # four special tokens; full stop, comma, exclamation mark
    assert 0 < bare.is_word.sum() == len(bare.ids) - 4 - marks
    # a prompt's last piece may join the first of the text
    assert long.is_word.sum() <= bare.is_word.sum() + 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_word_table_is_that_of_the_model(family: str, folders: dict[str, Path]):
    inside = load_encoder(
        EncoderSettings(path=str(folders[family])), EncodeSettings(max_tokens=64), "cpu"
    ).hidden_states()
    table = (
        transformers.AutoModel.from_pretrained(folders[family]).get_input_embeddings().weight.detach().numpy()
    )
    ids = np.arange(5, 245, 2)  # more than one pass holds
    np.testing.assert_array_equal(inside.table(ids), table[ids])
    assert inside.table(ids[:0]).shape == (0, 48)


@pytest.mark.parametrize("family", FAMILIES)
def test_spellings_are_those_of_transformers(family: str, folders: dict[str, Path]):
    inside = load_encoder(EncoderSettings(path=str(folders[family])), EncodeSettings(), "cpu").hidden_states()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[family])
    tokens = inside.tokens(["The unknowable naïve dogs run, don't they?"])
    ids = np.unique(tokens.ids[inside.words(tokens).is_word])
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    decoded = [
        piece if piece.startswith("##") else tokenizer.decode([token_id]).strip()
        for piece, token_id in zip(pieces, ids.tolist(), strict=True)
    ]
    assert inside.spellings(ids) == decoded
    assert inside.spellings(ids[:0]) == []
    assert "dogs" in decoded or len(decoded) > 10  # in pieces


def test_pieces_and_unknown_tokens_are_not_whole_words(folders: dict[str, Path]):
    inside = load_encoder(EncoderSettings(path=str(folders["bert"])), EncodeSettings(), "cpu").hidden_states()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["bert"])
    ids = inside.tokens(["dogs unknowable 日本"]).ids[1:-1]
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    expected = [not piece.startswith("##") and piece != "[UNK]" for piece in pieces]
    assert inside.whole_words(ids).tolist() == expected
    assert {*expected} == {True, False}
    assert "[UNK]" in pieces

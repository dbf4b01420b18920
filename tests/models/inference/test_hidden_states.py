"""Hidden states equal those of transformers for each family; special tokens and punctuation are not words."""

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
    hidden, texts = encoder.hidden_states(), [text for text in (*TEXTS, LONG) if text]
    tokens = hidden.tokens(texts)
    assert (hidden.layers, hidden.width) == (3, 48)
    seen = []
    for batch in hidden.states(tokens):
        ends = np.cumsum(tokens.lengths[batch.rows])
        for row, start, end in zip(batch.rows, ends - tokens.lengths[batch.rows], ends, strict=True):
            seen.append(row)
            for found, expected in zip(batch.layers, hidden_states(folders[family], texts[row]), strict=True):
                np.testing.assert_allclose(found[start:end], expected.numpy(), atol=1e-5)
    assert sorted(seen) == list(range(len(texts)))


def test_the_mean_of_the_last_layer_is_mean_pooling(folders: dict[str, Path]):
    encoder = load_encoder(
        EncoderSettings(path=str(folders["bert"]), normalize=False), EncodeSettings(), "cpu"
    )
    hidden, texts = encoder.hidden_states(), [text for text in TEXTS if text]
    tokens = hidden.tokens(texts)
    words = hidden.words(tokens)
    layers = gather_states(
        hidden.states(tokens), words, choose_occurrences(words, min_texts=2, pairs=50, limit=1_000, seed=0)
    )
    np.testing.assert_allclose(layers[-1].means, encoder.encode(texts), atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_special_tokens_prompts_and_punctuation_are_not_words(family: str, folders: dict[str, Path]):
    texts = ["Two dogs run.", "A girl, a book!"]
    plain = load_encoder(EncoderSettings(path=str(folders[family])), EncodeSettings(), "cpu").hidden_states()
    prompted = load_encoder(
        EncoderSettings(path=str(folders[family]), prompt="query: "), EncodeSettings(), "cpu"
    ).hidden_states()
    without_prompt, with_prompt = plain.words(plain.tokens(texts)), prompted.words(prompted.tokens(texts))
    ends = np.concatenate([without_prompt.offsets[:-1], without_prompt.offsets[1:] - 1])
    assert not without_prompt.is_word[ends].any()
    special, punctuation = 4, 3  # a full stop, a comma and an exclamation mark
    assert 0 < without_prompt.is_word.sum() == len(without_prompt.ids) - special - punctuation
    # a prompt's last piece may join the first of the text
    assert abs(with_prompt.is_word.sum() - without_prompt.is_word.sum()) <= len(texts)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_word_table_is_that_of_the_model(family: str, folders: dict[str, Path]):
    hidden = load_encoder(
        EncoderSettings(path=str(folders[family])), EncodeSettings(max_tokens=64), "cpu"
    ).hidden_states()
    table = (
        transformers.AutoModel.from_pretrained(folders[family]).get_input_embeddings().weight.detach().numpy()
    )
    ids = np.arange(5, 245, 2)  # more than one pass holds
    np.testing.assert_array_equal(hidden.table(ids), table[ids])
    assert hidden.table(ids[:0]).shape == (0, 48)


@pytest.mark.parametrize("family", FAMILIES)
def test_spellings_are_those_of_transformers(family: str, folders: dict[str, Path]):
    hidden = load_encoder(EncoderSettings(path=str(folders[family])), EncodeSettings(), "cpu").hidden_states()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[family])
    tokens = hidden.tokens(["The unknowable naïve dogs run, don't they?"])
    ids = np.unique(tokens.ids[hidden.words(tokens).is_word])
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    decoded = [
        piece if piece.startswith("##") else tokenizer.decode([token_id]).strip()
        for piece, token_id in zip(pieces, ids.tolist(), strict=True)
    ]
    assert hidden.spellings(ids) == decoded
    assert hidden.spellings(ids[:0]) == []
    assert "dogs" in decoded or len(decoded) > 10  # a tokenizer may split "dogs" into pieces


def test_pieces_and_unknown_tokens_are_not_whole_words(folders: dict[str, Path]):
    hidden = load_encoder(EncoderSettings(path=str(folders["bert"])), EncodeSettings(), "cpu").hidden_states()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["bert"])
    ids = hidden.tokens(["dogs unknowable 日本"]).ids[1:-1]
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    expected = [not piece.startswith("##") and piece != "[UNK]" for piece in pieces]
    assert hidden.whole_words(ids).tolist() == expected
    assert {*expected} == {True, False}
    assert "[UNK]" in pieces

"""A new Transformer reads the words that are counted for vocabularies, and loads in other libraries too."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

from pipeline.config import load_settings
from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.word_vectors import END, START, UNKNOWN, words_of
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.new_transformer import write_transformer_folder
from pipeline.settings import Job
from pipeline.settings.weights import TransformerSettings
from tests.models.classic.recurrents import word_counts
from tests.models.folders import LONG, TEXTS, encoder_at, folder_at

SMALL = TransformerSettings(width=16, layers=2, heads=2, output=12)
CONTRACTIONS = ("I can't, and it's 3.14 o'clock!", "Unknown zebras' well-known ''quotes'' don\u2019t")

# Digits, signs and marks that regular expressions of Python and of tokenizers classify differently.
SIGNS = ("5 m² of CO₂, ½ x ④", "Ⓐ a‿b _c_ d\u20dd", "\U00011083\U000110b0 \U00010280\U000102e0 हिन्दी")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> EncoderFolder:
    path = tmp_path_factory.mktemp("transformer") / "new"
    write_transformer_folder(SMALL, word_counts(), path, seed=1)
    return folder_at(path)


def test_tokens_are_the_words_that_are_counted_for_vocabularies(tmp_path: Path):
    texts = [*TEXTS, *CONTRACTIONS, *SIGNS]
    counts = Counter(word for text in texts for word in words_of(text) if word != "zebras")
    write_transformer_folder(SMALL, counts, tmp_path / "new", seed=1)
    tokenizer = folder_at(tmp_path / "new").tokenizer()
    names = {number: token for token, number in tokenizer.vocabulary().items()}
    assert len(names) == len(counts) + 4
    tokens = tokenizer(texts)
    for text, ids in zip(texts, np.split(tokens.ids, tokens.offsets[1:-1]), strict=True):
        expected = [word if word in counts else UNKNOWN for word in words_of(text)]
        assert [names[number] for number in ids.tolist()] == [START, *expected, END]
    assert {"ca", "n't", "it", "'s", "do"} <= counts.keys()


def test_vectors_are_sums_of_states_divided_by_the_root_of_their_number(folder: EncoderFolder):
    model = transformers.AutoModel.from_pretrained(folder.path).eval()
    [dense] = load_trainable(folder).tail
    tokens = folder.tokenizer()(TEXTS)
    expected = []
    with torch.no_grad():
        for ids in np.split(tokens.ids, tokens.offsets[1:-1]):
            states = model(torch.from_numpy(ids).long()[None]).last_hidden_state[0]
            expected.append(dense.linear(states.sum(0) / len(states) ** 0.5))
    found = encoder_at(folder.path).encode(TEXTS)
    assert found.shape == (len(TEXTS), 12)
    np.testing.assert_allclose(found, torch.stack(expected), atol=1e-5)
    library = SentenceTransformer(str(folder.path), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(found, library, atol=1e-5)


def test_texts_of_the_same_words_are_alike_and_norms_are_moderate(folder: EncoderFolder):
    """Positions start at zero, so the order of words has no effect yet. Norms are about sqrt(tokens)."""
    encoder, words = encoder_at(folder.path), [text.split() for text in TEXTS]
    vectors = encoder.encode([" ".join(text) for text in words])
    np.testing.assert_allclose(encoder.encode([" ".join(text[::-1]) for text in words]), vectors, atol=1e-5)
    tokens = folder.tokenizer()([" ".join(text) for text in words]).lengths
    assert (np.linalg.norm(vectors, axis=1) < 1.5 * tokens**0.5).all()
    assert (np.linalg.norm(vectors, axis=1) > 0.1).all()


def test_long_texts_are_truncated(folder: EncoderFolder):
    assert folder.max_length == 256
    assert folder.tokenizer()([LONG]).lengths.tolist() == [256]


def test_new_weights_follow_from_the_seed_without_torchs_generator(folder: EncoderFolder, tmp_path: Path):
    state = torch.random.get_rng_state()
    for name, seed in (("same", 1), ("other", 2)):
        write_transformer_folder(SMALL, word_counts(), tmp_path / name, seed=seed)
    assert torch.equal(torch.random.get_rng_state(), state)
    same, other = (folder_at(tmp_path / name) for name in ("same", "other"))
    assert same.space_id == folder.space_id != other.space_id


def test_unusable_settings_and_counts_are_refused(tmp_path: Path):
    with pytest.raises(ModelError, match="words to learn vectors for"):
        write_transformer_folder(SMALL, Counter(), tmp_path / "new", seed=0)
    with pytest.raises(ConfigError, match="a width divisible by the number of heads, 8, not 20"):
        load_settings(Job, None, ("train.transformer.width=20",))
    with pytest.raises(ConfigError, match=r"dan\.width is 8, and transformer\.width is 16"):
        load_settings(Job, None, ("train.dan.width=8", "train.transformer.width=16"))

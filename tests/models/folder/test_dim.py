"""`encoder.dim` keeps the first components of the vectors, and scales them to length one again."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from pipeline.errors import ModelError
from pipeline.models.layers.post_pooling import TanhHead
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import SavedHeads, save_folder, save_joined
from tests.models.folder.saved import save_sentence_transformer
from tests.models.folders import TEXTS, edit_json, encoder_at, folder_at
from tests.models.trainable.padded import trained


def cut(vectors: np.ndarray, dim: int) -> np.ndarray:
    """Return the first components, scaled to length one."""
    kept = vectors[:, :dim]
    return kept / np.linalg.norm(kept, axis=1, keepdims=True)


@pytest.mark.parametrize("dim", [1, 7, 19, 20])
@pytest.mark.parametrize("query", [False, True])
def test_vectors_are_the_first_components_with_length_one(folders, tmp_path, dim: int, query: bool):
    expected = save_sentence_transformer(folders["bert"], tmp_path / "st").encode(list(TEXTS))
    encoder = encoder_at(tmp_path / "st", dim=dim)
    assert encoder.dim == encoder.folder.dim == dim
    np.testing.assert_allclose(encoder.encode(TEXTS, query=query), cut(expected, dim), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls+max"])
def test_normalize_false_keeps_the_lengths(folders, pooling: str):
    whole = encoder_at(folders["roberta"], pooling=pooling).encode(TEXTS)
    kept = encoder_at(folders["roberta"], pooling=pooling, dim=30, normalize=False)
    np.testing.assert_allclose(kept.encode(TEXTS), whole[:, :30], atol=1e-6)
    scaled = encoder_at(folders["roberta"], pooling=pooling, dim=30)
    np.testing.assert_allclose(scaled.encode(TEXTS), cut(whole, 30), atol=1e-6)
    assert (kept.folder.normalize, scaled.folder.normalize) == (False, True)


def test_each_number_is_a_space_of_its_own(folders):
    settings: list[dict[str, object]] = [{}, {"dim": 47}, {"dim": 48}, {"dim": 48, "normalize": False}]
    spaces = [folder_at(folders["bert"], **each).space_id for each in settings]
    assert len(set(spaces)) == len(spaces)
    assert folder_at(folders["bert"], dim=None).space_id == spaces[0]


def test_more_components_than_there_are_is_an_error(folders, tmp_path):
    message = (
        r"encoder\.dim: expected at most 48, the dimensions of the vectors of .*bert, found 49; lower it"
    )
    with pytest.raises(ModelError, match=message):
        folder_at(folders["bert"], dim=49)
    save_sentence_transformer(folders["bert"], tmp_path / "st", dense=False)
    edit_json(tmp_path / "st" / "config_sentence_transformers.json", truncate_dim=16)
    assert folder_at(tmp_path / "st", dim=16).dim == 16
    with pytest.raises(ModelError, match=r"encoder\.dim: expected at most 16"):
        folder_at(tmp_path / "st", dim=17)


def test_concatenated_vectors_are_truncated_once(folders, tmp_path):
    parts = [load_trainable(folder_at(folders["bert"], normalize=True)) for _ in range(2)]
    joined = save_joined(parts, tmp_path / "joined")
    whole = encoder_at(joined.path)
    assert whole.dim == 96
    kept = encoder_at(joined.path, dim=60)
    np.testing.assert_allclose(kept.encode(TEXTS), cut(whole.encode(TEXTS), 60), atol=1e-6)
    assert folder_at(joined.path, dim=96).space_id != whole.space_id
    with pytest.raises(ModelError, match=r"encoder\.dim: expected at most 96"):
        folder_at(joined.path, dim=97)


@pytest.mark.parametrize("normalize", [None, False])
@pytest.mark.parametrize("with_head", [False, True])
def test_a_trained_encoder_is_saved_with_its_truncation(folders, tmp_path, normalize, with_head: bool):
    save_sentence_transformer(folders["bert"], tmp_path / "st")
    edit_json(tmp_path / "st" / "config_sentence_transformers.json", truncate_dim=18)
    folder = folder_at(tmp_path / "st", dim=10, normalize=normalize)
    encoder, head = trained(folder), TanhHead(10)
    vectors = encoder(folder.tokenizer()(TEXTS)).detach()
    assert vectors.shape == (len(TEXTS), 10)
    expected = (head(vectors) if with_head else vectors).detach()
    saved = save_folder(encoder, folder, tmp_path / "saved", SavedHeads(head if with_head else None))
    assert saved.dim == 10
    for reloaded in (encoder_at(saved.path), SentenceTransformer(str(saved.path), device="cpu")):
        np.testing.assert_allclose(reloaded.encode(list(TEXTS)), expected, atol=1e-5)

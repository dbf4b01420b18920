"""A saved encoder equals the trained one, here and in sentence-transformers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from pipeline.errors import ModelError
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.layers.post_pooling import TanhHead
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import SavedHeads, save_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import FAMILIES, LONG, TEXTS, edit_json, folder_at
from tests.models.trainable.padded import many, tokens_of, trained


@pytest.mark.parametrize(
    ("family", "pooling", "normalize"),
    [
        *((family, "mean", True) for family in FAMILIES),
        ("bert", "cls", None),
        ("bert", "mean+max", None),
        ("bert", "max+mean", True),
        ("bert", "cls_mlp", True),
        ("distilbert", "cls_mlp", None),
        ("roberta", "weighted_mean", None),
        ("mpnet", "sqrt_len", None),
        ("bert", "last", None),
    ],
)
def test_the_saved_folder_gives_the_vectors_of_the_trained_module(
    folders, tmp_path, family, pooling, normalize
):
    folder = folder_at(folders[family], pooling=pooling, normalize=normalize, max_length=40)
    encoder = trained(folder)
    saved = save_folder(encoder, folder, tmp_path / "new" / "saved")
    expected = encoder(tokens_of(folders[family], [*TEXTS, LONG], 40)).detach()
    reloaded = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings())
    np.testing.assert_allclose(reloaded.encode([*TEXTS, LONG]), expected, atol=1e-5)
    np.testing.assert_allclose(
        SentenceTransformer(str(saved.path), device="cpu").encode([*TEXTS, LONG]), expected, atol=1e-5
    )
    untrained = load_trainable(folder).eval()(tokens_of(folders[family], TEXTS[:1]))
    assert (untrained[0] - expected[0]).abs().max() > 1e-3
    assert (saved.max_length, saved.normalize, saved.dim) == (40, bool(normalize), folder.dim)
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["saved"], "no temporary folder is left"
    permissions = {file.stat().st_mode for file in saved.path.rglob("*.*") if file.is_file()}
    assert len(permissions) == 1
    again = save_folder(load_trainable(saved), saved, tmp_path / "again")
    assert again.space_id == saved.space_id != folder.space_id
    np.testing.assert_allclose(
        Encoder(again, EncodeSettings(), reloaded.arithmetic.device).encode(TEXTS),
        reloaded.encode(TEXTS),
        atol=1e-6,
    )


@pytest.mark.parametrize("pooling", ["last2", "table", "mean+static"])
def test_a_pooling_unknown_to_sentence_transformers_is_saved_and_refused_there(folders, tmp_path, pooling):
    folder = folder_at(folders["bert"], pooling=pooling)
    encoder = trained(folder)
    saved = save_folder(encoder, folder, tmp_path / "saved")
    assert saved.pooling == tuple(pooling.split("+"))
    expected = encoder(tokens_of(folders["bert"], TEXTS)).detach()
    np.testing.assert_allclose(
        load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS),
        expected,
        atol=1e-5,
    )
    with pytest.raises(ValueError, match="pooling mode"):
        SentenceTransformer(str(saved.path), device="cpu")


def test_a_head_is_saved_only_if_it_is_kept_at_inference(folders, tmp_path):
    folder = folder_at(folders["distilbert"], pooling="cls")
    encoder, head = trained(folder), TanhHead(48)
    with_head = save_folder(encoder, folder, tmp_path / "with", SavedHeads(head))
    without = save_folder(encoder, folder, tmp_path / "without")
    vectors = encoder(tokens_of(folders["distilbert"], TEXTS))
    for saved, expected in ((with_head, head(vectors)), (without, vectors)):
        np.testing.assert_allclose(
            SentenceTransformer(str(saved.path), device="cpu").encode(list(TEXTS)),
            expected.detach(),
            atol=1e-5,
        )
        np.testing.assert_allclose(
            load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(TEXTS),
            expected.detach(),
            atol=1e-5,
        )
    assert [len(saved.tail) for saved in (with_head, without)] == [1, 0]
    assert with_head.space_id != without.space_id


def test_prompts_of_the_settings_are_saved(folders, tmp_path):
    folder = folder_at(folders["bert"], prompt="a man ", query_prompt="two dogs ")
    saved = save_folder(load_trainable(folder), folder, tmp_path / "saved")
    assert (saved.prompt, saved.query_prompt) == ("a man ", "two dogs ")
    queries = folder_at(folders["bert"], query_prompt="two dogs ")
    saved = save_folder(load_trainable(queries), queries, tmp_path / "queries")
    assert (saved.prompt, saved.query_prompt) == ("", "two dogs ")
    documents = folder_at(folders["bert"], prompt="a man ", query_prompt="")
    saved = save_folder(load_trainable(documents), documents, tmp_path / "documents")
    assert (saved.prompt, saved.query_prompt) == ("a man ", "")


def test_the_saved_checkpoint_has_the_names_of_its_source_in_float32(folders, tmp_path):
    source = tmp_path / "source"
    AutoModel.from_pretrained(folders["bert"]).save_pretrained(source)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).write_bytes((folders["bert"] / name).read_bytes())
    tensors = load_file(source / "model.safetensors")
    named = {f"bert.{name}": tensor.half() for name, tensor in tensors.items()}
    save_file(
        named | {"cls.predictions.bias": torch.zeros(300)}, source / "model.safetensors", {"format": "pt"}
    )
    edit_json(source / "config.json", dtype="float16", architectures=["BertForMaskedLM"])
    folder = folder_at(source)
    encoder = trained(folder)
    saved = save_folder(encoder, folder, tmp_path / "saved")
    written = load_file(saved.path / "model.safetensors")
    assert set(written) == {f"bert.{name}" for name in tensors}
    assert {tensor.dtype for tensor in written.values()} == {torch.float32}
    np.testing.assert_allclose(
        SentenceTransformer(str(saved.path), device="cpu").encode(list(TEXTS)),
        encoder(tokens_of(source, TEXTS)).detach(),
        atol=1e-5,
    )


def test_a_folder_is_saved_completely_or_not_at_all_and_never_overwritten(folders, tmp_path):
    folder = folder_at(folders["bert"])
    encoder = load_trainable(folder)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ModelError, match="a new path"):
        save_folder(encoder, folder, tmp_path / "taken")
    with pytest.raises(FileNotFoundError):
        save_folder(encoder, replace(folder, files={**folder.files, "gone.txt": "0"}), tmp_path / "torn")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["taken"]


def test_the_packaged_minilm_can_be_trained_and_saved(minilm, tmp_path):
    encoder = load_trainable(minilm.folder).eval()
    texts = [*TEXTS, *many(20)]
    vectors = encoder(tokens_of(minilm.folder.path, texts, 256))
    np.testing.assert_allclose(vectors.detach(), minilm.encode(texts), atol=1e-5)
    saved = save_folder(encoder, minilm.folder, tmp_path / "saved")
    assert json.loads((saved.path / "modules.json").read_text())[-1]["path"] == "2_Normalize"
    np.testing.assert_array_equal(
        Encoder(saved, EncodeSettings(), minilm.arithmetic.device).encode(texts), minilm.encode(texts)
    )

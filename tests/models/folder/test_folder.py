"""Every kind of encoder folder is read as sentence-transformers reads it, or refused with an error."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

from pipeline.errors import ModelError
from pipeline.models.folder.locate import PACKAGED_SHA256, locate
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.open_store import open_store
from tests.models.folder.saved import encoded, save_sentence_transformer
from tests.models.folders import TEXTS, copy_listed_files, edit_json, folder_at, save_folder


def test_loading_an_encoder_keeps_the_state_of_torchs_generator(folders, tmp_path):
    save_sentence_transformer(folders["bert"], tmp_path / "st")
    before = torch.get_rng_state()
    load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings())
    assert torch.equal(torch.get_rng_state(), before)


def test_settings_can_remove_and_add_normalization(folders, minilm):
    raw = load_encoder(EncoderSettings(normalize=False), EncodeSettings())
    lengths = np.linalg.norm(raw.encode(TEXTS), axis=1)
    assert abs(lengths - 1).min() > 0.01
    np.testing.assert_allclose(raw.encode(TEXTS) / lengths[:, None], minilm.encode(TEXTS), atol=1e-6)
    assert raw.space_id != minilm.space_id
    np.testing.assert_allclose(np.linalg.norm(encoded(folders["bert"], normalize=True), axis=1), 1, atol=1e-6)


def test_positions_limit_the_length(folders):
    # 66 positions, of which two are for padding
    assert folder_at(folders["roberta"], max_length=64).max_length == 64
    with pytest.raises(
        ModelError, match=r"encoder\.max_length: expected at most the 64 positions of the model, found 65"
    ):
        folder_at(folders["roberta"], max_length=65)


def test_the_packaged_weights_are_the_published_ones(minilm):
    assert minilm.folder.files["model.safetensors"] == PACKAGED_SHA256
    assert locate("sentence-transformers/all-MiniLM-L6-v2") == locate("all-MiniLM-L6-v2")


def test_a_copy_of_the_listed_files_is_the_same_encoder(folders, tmp_path):
    reference = save_sentence_transformer(folders["mpnet"], tmp_path / "st")
    folder = folder_at(tmp_path / "st")
    copy = copy_listed_files(folder, tmp_path / "copy")
    assert folder_at(copy).space_id == folder.space_id
    np.testing.assert_array_equal(
        SentenceTransformer(str(copy), device="cpu").encode(TEXTS), reference.encode(TEXTS)
    )


def test_the_space_depends_only_on_files_that_change_vectors(folders, bert):
    original = folder_at(folders["bert"]).space_id
    assert folder_at(bert).space_id == original
    edit_json(bert / "config.json", transformers_version="0.0", architectures=["Other"])
    (bert / "README.md").write_text("words")
    assert folder_at(bert).space_id == original
    changes = [{"pooling": "cls"}, {"prompt": "a "}, {"max_length": 20}, {"normalize": True}]
    spaces = [original, *(folder_at(bert, **change).space_id for change in changes)]
    save_folder(bert, "bert", seed=7)
    other_weights = folder_at(bert).space_id
    assert len({*spaces, other_weights}) == len(spaces) + 1 == len(changes) + 2
    assert folder_at(bert, query_prompt="q ").space_id == other_weights


def test_do_lower_case_of_the_folder_is_respected(folders, tmp_path):
    save_sentence_transformer(folders["bert"], tmp_path / "st", dense=False)
    edit_json(tmp_path / "st" / "sentence_bert_config.json", do_lower_case=True)
    reference = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    texts = ["TWO Dogs RUN.", "two dogs run."]
    vectors = load_encoder(EncoderSettings(path=str(tmp_path / "st")), EncodeSettings()).encode(texts)
    np.testing.assert_array_equal(vectors[0], vectors[1])
    np.testing.assert_allclose(vectors, reference.encode(texts), atol=1e-5)


def test_a_padding_token_in_a_text_has_the_padding_position(folders):
    text = "two [PAD] dogs [PAD] run"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["roberta"])
    model = transformers.AutoModel.from_pretrained(folders["roberta"]).eval()
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].mean(0)
    assert (ids == 1).sum() == 2
    np.testing.assert_allclose(
        load_encoder(EncoderSettings(path=str(folders["roberta"])), EncodeSettings()).encode([text])[0],
        expected,
        atol=1e-5,
    )


def test_reading_a_folder_imports_neither_torch_nor_transformers(folders):
    script = f"""
import sys
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings
import pipeline.text.tokens.tokens, pipeline.text.tokens.budget, pipeline.device
open_folder(EncoderSettings(path={str(folders["bert"])!r}))
print(sorted({{"torch", "transformers", "faiss", "ray"}} & set(sys.modules)))
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_a_remote_folder_is_copied_once_and_again_when_it_changes(folders, tmp_path, s3, monkeypatch):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    uri = f"{s3}/{tmp_path.name}/encoder"
    store = open_store(uri)
    for name in folder_at(folders["bert"]).files:
        store.write(name, (folders["bert"] / name).read_bytes())
    store.write("onnx/model.bin", b"another runtime's copy")
    first = folder_at(uri)
    assert first.space_id == folder_at(folders["bert"]).space_id
    assert first.path == folder_at(uri).path
    assert not (first.path / "onnx").exists()
    np.testing.assert_array_equal(encoded(uri), encoded(folders["bert"]))
    store.write("model.safetensors", (folders["mpnet"] / "model.safetensors").read_bytes())
    assert folder_at(uri).space_id != first.space_id
    with pytest.raises(
        ModelError, match=r"an encoder folder with config\.json or modules\.json, found 0 files"
    ):
        folder_at(f"{s3}/{tmp_path.name}/nothing")


def test_an_adapter_without_a_model_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some/encoder"}')
    with pytest.raises(ModelError, match=r"found an adapter to 'some/encoder'; merge it"):
        folder_at(tmp_path)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_only_hidden_act_names_the_activation_of_bert(folders, tmp_path, family):
    """DistilBERT calls it activation; transformers ignores that key in other families."""
    shutil.copytree(folders[family], tmp_path / family)
    edit_json(tmp_path / family / "config.json", activation="relu")
    peer = SentenceTransformer(str(tmp_path / family), device="cpu")
    np.testing.assert_allclose(encoded(tmp_path / family), peer.encode(list(TEXTS)), atol=1e-5)


def test_positions_of_roberta_begin_after_its_usual_padding_token_if_the_config_has_none(folders, tmp_path):
    shutil.copytree(folders["roberta"], tmp_path / "roberta")
    edit_json(tmp_path / "roberta" / "config.json", pad_token_id=None)
    assert folder_at(tmp_path / "roberta").max_length == 64
    np.testing.assert_array_equal(encoded(tmp_path / "roberta"), encoded(folders["roberta"]))

"""Static embeddings are read as by the library that saved them: sentence-transformers or model2vec."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer

from pipeline.errors import ModelError
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import save_folder
from tests.models.folder.static_folders import (
    TOKENIZERS,
    WIDTH,
    model2vec_vectors,
    random_table,
    save_model2vec,
    save_static,
)
from tests.models.folders import LONG, TEXTS, copy_listed_files, encoder_at, folder_at, word_piece

# the last ones have no token, unknown ones only, and more than 512 tokens
EXAMPLES = [*TEXTS, "  ", "☃", "☃ two dogs ☃☃ run", LONG, "☃ x " * 400, "Hydroelectricity " * 500]

ROUNDING = {"rtol": 5e-6, "atol": 5e-6}  # of sums of up to 512 float32 numbers, against float64


def normalized(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-32)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_equal_those_of_sentence_transformers(tmp_path: Path, kind: str, normalize: bool):
    model = save_static(tmp_path / "st", TOKENIZERS[kind](), normalize)
    encoder = encoder_at(tmp_path / "st")
    assert (encoder.dim, encoder.folder.normalize) == (WIDTH, normalize)
    expected = model.encode(EXAMPLES)
    np.testing.assert_allclose(encoder.encode(EXAMPLES), expected, atol=1e-6)
    assert not expected[EXAMPLES.index("")].any()


def test_only_tokenizer_json_says_how_a_text_is_read(tmp_path: Path):
    model = save_static(tmp_path / "st", word_piece())
    before = folder_at(tmp_path / "st").space_id
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "tokenize_chinese_chars": False}
    (tmp_path / "st" / "tokenizer_config.json").write_text(json.dumps(config))
    texts = [*EXAMPLES, "Two DOGS"]
    np.testing.assert_allclose(encoder_at(tmp_path / "st").encode(texts), model.encode(texts), atol=1e-6)
    assert folder_at(tmp_path / "st").space_id == before


def test_truncation_in_tokenizer_json_limits_a_text(tmp_path: Path):
    for side in ("right", "left"):
        tokenizer = word_piece()
        tokenizer.enable_truncation(9, direction=side)
        expected = save_static(tmp_path / side, tokenizer).encode(EXAMPLES)
        encoder = encoder_at(tmp_path / side)
        assert encoder.max_length == 9
        np.testing.assert_allclose(encoder.encode(EXAMPLES), expected, atol=1e-6)
        assert encoder.count_tokens(EXAMPLES).truncated.any()


def test_prompts_are_put_before_documents_and_queries(tmp_path: Path):
    prompts = {"query": "two dogs: ", "document": "the text: "}
    model = save_static(tmp_path / "st", word_piece(), prompts=prompts)
    encoder = encoder_at(tmp_path / "st")
    np.testing.assert_allclose(encoder.encode(EXAMPLES), model.encode_document(EXAMPLES), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(EXAMPLES, query=True), model.encode_query(EXAMPLES), atol=1e-6)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("max_length", [512, 7])
@pytest.mark.parametrize("shape", ["table", "weights", "mapping", "weights and mapping"])
def test_vectors_equal_those_of_model2vec(tmp_path: Path, kind: str, max_length: int, shape: str):
    tokenizer, rng = TOKENIZERS[kind](), np.random.default_rng(1)
    size = tokenizer.get_vocab_size()
    tensors = {"embeddings": random_table(tokenizer, 40 if "mapping" in shape else size)}
    if "weights" in shape:
        tensors["weights"] = rng.uniform(0.1, 2, size)
    if "mapping" in shape:
        tensors["mapping"] = rng.integers(0, 40, size)
    lengths = {} if max_length == 512 else {"max_length": max_length}
    folder = save_model2vec(tmp_path / "m2v", tokenizer, tensors, normalize=True, **lengths)
    expected = normalized(model2vec_vectors(tokenizer, tensors, EXAMPLES, max_length))
    encoder = encoder_at(folder)
    assert encoder.max_length == max_length
    np.testing.assert_allclose(encoder.encode(EXAMPLES), expected, **ROUNDING)
    raw = model2vec_vectors(tokenizer, tensors, EXAMPLES, max_length)
    np.testing.assert_allclose(encoder_at(folder, normalize=False).encode(EXAMPLES), raw, **ROUNDING)
    (folder / "modules.json").unlink()
    np.testing.assert_allclose(encoder_at(folder).encode(EXAMPLES), expected, **ROUNDING)


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_tables_of_lower_precision_are_averaged_in_float32(tmp_path: Path, dtype: type):
    tokenizer = word_piece()
    tensors = {"embeddings": (random_table(tokenizer) * 30).astype(dtype)}
    folder = save_model2vec(tmp_path / "m2v", tokenizer, tensors)
    expected = model2vec_vectors(tokenizer, tensors, EXAMPLES)
    np.testing.assert_allclose(encoder_at(folder).encode(EXAMPLES), expected, rtol=1e-5, atol=1e-5)


def test_tokens_are_counted_although_unknown_ones_are_left_out(tmp_path: Path):
    tokenizer = word_piece()
    folder = save_model2vec(tmp_path / "m2v", tokenizer, {"embeddings": random_table(tokenizer)})
    texts = ["x x", "☃ x x ☃", "☃", "x " * 600, "x " * 2_000]
    counts = encoder_at(folder, max_length=500).count_tokens(texts)
    assert counts.lengths.tolist() == [2, 2, 0, 500, 500]
    assert counts.unknown.tolist() == [0, 2, 1, 0, 0]
    assert counts.content.tolist() == [2, 4, 1, 500, 500]
    assert counts.truncated.tolist() == [False, False, False, True, True]
    np.testing.assert_allclose(counts.lost, [0, 0, 0, 100, 1_500], rtol=0.05)


def test_bits_do_not_depend_on_the_order_of_the_texts(tmp_path: Path):
    save_static(tmp_path / "st", word_piece(), normalize=True)
    encoder = encoder_at(tmp_path / "st")
    texts = [*EXAMPLES, "Two dogs " * 3_000]
    order = np.random.default_rng(0).permutation(len(texts))
    vectors = encoder.encode(texts)
    np.testing.assert_array_equal(encoder.encode([texts[i] for i in order]), vectors[order])
    np.testing.assert_array_equal(np.concatenate([encoder.encode([text]) for text in texts]), vectors)


@pytest.mark.parametrize("library", ["sentence-transformers", "model2vec"])
def test_a_copy_of_the_listed_files_is_the_same_encoder(tmp_path: Path, library: str):
    tokenizer = word_piece()
    if library == "model2vec":
        tensors = {"embeddings": random_table(tokenizer)}
        save_model2vec(tmp_path / "folder", tokenizer, tensors, normalize=True, max_length=20)
    else:
        save_static(tmp_path / "folder", tokenizer, normalize=True)
    folder = folder_at(tmp_path / "folder")
    copy = copy_listed_files(folder, tmp_path / "copy")
    assert folder_at(copy).space_id == folder.space_id
    np.testing.assert_array_equal(encoder_at(copy).encode(EXAMPLES), encoder_at(folder.path).encode(EXAMPLES))
    shorter = folder_at(copy, dim=5)
    assert (shorter.dim, shorter.space_id == folder.space_id) == (5, False)


@pytest.mark.parametrize("library", ["sentence-transformers", "model2vec"])
@pytest.mark.parametrize("settings", [{}, {"max_length": 6}, {"dim": 5}, {"ensure_final_punctuation": True}])
def test_a_trained_table_is_saved_for_its_library(tmp_path: Path, library: str, settings: dict[str, object]):
    tokenizer, rng = word_piece(), np.random.default_rng(1)
    if library == "model2vec":
        size = tokenizer.get_vocab_size()
        tensors = {"embeddings": random_table(tokenizer, 40), "weights": rng.uniform(0.1, 2, size)}
        tensors["mapping"] = rng.integers(0, 40, size)
        save_model2vec(tmp_path / "folder", tokenizer, tensors, normalize=True)
    else:
        save_static(tmp_path / "folder", tokenizer, normalize=True)
    folder = folder_at(tmp_path / "folder", **settings)
    encoder = load_trainable(folder)
    vectors = encoder(folder.tokenizer()(EXAMPLES)).detach()
    np.testing.assert_allclose(
        vectors, encoder_at(tmp_path / "folder", **settings).encode(EXAMPLES), atol=1e-6
    )
    with torch.no_grad():
        encoder.backbone.word_table.add_(torch.randn(encoder.backbone.word_table.shape))
    expected = encoder(folder.tokenizer()(EXAMPLES)).detach().numpy()
    saved = save_folder(encoder, folder, tmp_path / "saved")
    assert (saved.max_length, saved.ends_sentences) == (folder.max_length, folder.ends_sentences)
    np.testing.assert_allclose(encoder_at(saved.path).encode(EXAMPLES), expected, atol=1e-6)
    if library == "sentence-transformers" and not folder.ends_sentences:
        peer = SentenceTransformer(str(saved.path), device="cpu")
        np.testing.assert_allclose(peer.encode(EXAMPLES), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"pooling": "max"},
            r"encoder\.pooling: expected mean, the only pooling of a table of token vectors",
        ),
        ({"template": "[X] is [MASK]"}, r"encoder\.template: .* found an encoder without layers"),
        ({"dim": WIDTH + 1}, rf"encoder\.dim: expected at most {WIDTH}"),
        ({"sif": 0.1}, r"encoder\.sif: expected word vectors"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, settings: dict[str, object], message: str):
    save_static(tmp_path / "st", word_piece())
    with pytest.raises(ModelError, match=message):
        folder_at(tmp_path / "st", **settings)


def test_damaged_folders_are_refused(tmp_path: Path):
    save_static(tmp_path / "st", word_piece())
    inner = tmp_path / "st"
    table = load_file(inner / "model.safetensors")["embedding.weight"]
    save_file({"embedding.weight": table[:50].copy()}, inner / "model.safetensors")
    with pytest.raises(ModelError, match=r"a row of the table for each of the \d+ tokens .* found 50 tokens"):
        encoder_at(tmp_path / "st")
    save_file({"other": table}, inner / "model.safetensors")
    with pytest.raises(ModelError, match=r"as embedding\.weight or embeddings, found other"):
        folder_at(tmp_path / "st")
    save_file(
        {"embeddings": table, "mapping": np.zeros(3), "weights": np.zeros(4)}, inner / "model.safetensors"
    )
    with pytest.raises(ModelError, match="mapping and weights of one length"):
        folder_at(tmp_path / "st")
    (inner / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="a complete safetensors file"):
        folder_at(tmp_path / "st")
    (inner / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="found no tensor, or no such file"):
        folder_at(tmp_path / "st")
    save_static(tmp_path / "other", word_piece())
    (tmp_path / "other" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json beside the table"):
        folder_at(tmp_path / "other")
    (tmp_path / "other" / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.StaticEmbedding", "path": ""}] * 2)
    )
    with pytest.raises(ModelError, match="Transformer and Pooling, or StaticEmbedding, then Dense"):
        folder_at(tmp_path / "other")

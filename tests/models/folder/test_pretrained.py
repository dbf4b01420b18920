"""A folder gives the vectors of sentence-transformers, or an error with a remedy.

Code in the folder is never run, and no question is asked on the terminal.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folder.pretrained import reference
from tests.models.folders import (
    TEXTS,
    add_noise,
    edit_json,
    encoder_at,
    save_folder,
    save_tokenizer,
    word_piece,
)

_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}


def save(folder: Path, model: Any) -> Path:
    """Write a Hugging Face folder of a model with noise added to its weights, and the tests' tokenizer."""
    torch.manual_seed(0)
    add_noise(model, 0.15)
    model.eval().save_pretrained(folder)
    save_tokenizer(word_piece(), folder)
    return folder


@pytest.mark.parametrize(
    "load",
    [
        encoder_at,
        lambda folder: load_trainable(open_folder(EncoderSettings(path=str(folder)))),
    ],
    ids=["encoder", "start of a training"],
)
def test_missing_weights_are_named_and_not_initialized(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[[Path], Any],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    folder = save_folder(tmp_path, "electra")
    capfd.readouterr()  # drop the output of saving
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("layer.1.", "layer.9."): tensor for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(
        ModelError,
        match=(
            r"with all its weights, found 16 weights missing: encoder\.layer\.1\.attention.* \.\.\.; fetch "
            r"its files again"
        ),
    ) as caught:
        load(folder)
    assert caught.value.exit_code == 4
    assert "LOAD REPORT" not in caplog.text
    assert "Loading weights" not in capfd.readouterr().err


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a question is asked on the terminal."""

    def fail(*_: object) -> str:
        raise AssertionError("a question is asked on the terminal")

    monkeypatch.setattr("builtins.input", fail)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "bert",
            {"auto_map": {"AutoModel": "modeling.JinaBert"}},
            "names the code modeling.JinaBert; use an encoder whose architecture is part of transformers",
        ),
        (
            "electra",
            {"auto_map": {"AutoModel": "someone/code--modeling.NomicBertModel"}},
            "its implementation in transformers (model_type nomic_bert, no auto_map)",
        ),
        (
            "electra",
            {"model_type": "new", "auto_map": {"AutoModel": "a/b--modeling.NewModel"}},
            "its implementation in transformers (model_type gte, no auto_map)",
        ),
        (
            "electra",
            {"model_type": "never_heard_of"},
            "found model_type 'never_heard_of'; use an encoder whose architecture is part of transformers",
        ),
        (
            "bert",
            {"attn_implementation": "kernels-community/flash"},
            "found attn_implementation 'kernels-community/flash', a repository of code; remove that line",
        ),
    ],
)
def test_code_in_a_folder_is_refused_naming_the_built_in_architecture(
    tmp_path: Path, family: str, changes: dict[str, Any], message: str
):
    folder = save_folder(tmp_path, family)
    edit_json(folder / "config.json", **changes)
    (folder / "modeling.py").write_text("raise SystemExit('code of the folder ran')")
    with pytest.raises(ModelError) as caught:
        encoder_at(folder)
    assert message in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("kind", ["T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel"])
def test_a_model_saved_without_its_decoder_is_loaded_as_encoder(tmp_path: Path, kind: str):
    config = getattr(transformers, kind.replace("EncoderModel", "Config"))(
        vocab_size=300, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4
    )
    folder = save(tmp_path, getattr(transformers, kind)(config))
    for is_encoder_decoder in (False, True):  # written by transformers 5, and by older versions
        edit_json(folder / "config.json", is_encoder_decoder=is_encoder_decoder)
        np.testing.assert_allclose(
            encoder_at(folder, normalize=True).encode(TEXTS), reference(folder).encode(list(TEXTS)), atol=1e-5
        )


@pytest.mark.parametrize("is_causal", [..., True, False])
@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
def test_attention_is_bidirectional_if_configured_in_the_folder(tmp_path: Path, is_causal: Any, pooling: str):
    folder = save(
        tmp_path / "hf",
        transformers.Qwen2Model(transformers.Qwen2Config(**_SIZES, max_position_embeddings=64)),
    )
    edit_json(folder / "config.json", is_causal=is_causal)
    model = reference(folder, pooling)
    model.save_pretrained(str(tmp_path / "st"))
    vectors = encoder_at(tmp_path / "st").encode(TEXTS)
    np.testing.assert_allclose(vectors, model.encode(list(TEXTS)), atol=1e-5)
    edit_json(tmp_path / "st/config.json", is_causal=is_causal is False)
    assert np.abs(encoder_at(tmp_path / "st").encode(TEXTS) - vectors).max() > 1e-3, (
        "attention in the other direction gives other vectors"
    )


@pytest.mark.parametrize("bidirectional", [False, True])
def test_gemma_attends_in_both_directions_if_configured_and_uses_its_prompts(
    tmp_path: Path, bidirectional: bool
):
    """EmbeddingGemma is bidirectional, and has one prompt for queries and one for documents."""
    config = transformers.Gemma3TextConfig(
        **_SIZES,
        head_dim=12,
        max_position_embeddings=64,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        use_bidirectional_attention=bidirectional,
    )
    folder = save(tmp_path / "hf", transformers.Gemma3TextModel(config))
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    model, texts = reference(folder, prompts=prompts), list(TEXTS)
    model.save_pretrained(str(tmp_path / "st"))
    encoder = encoder_at(tmp_path / "st")
    np.testing.assert_allclose(encoder.encode(texts), model.encode_document(texts), atol=1e-5)
    np.testing.assert_allclose(encoder.encode(texts, query=True), model.encode_query(texts), atol=1e-5)


def test_padding_is_bounded_for_any_context_length(tmp_path: Path):
    folder = save(
        tmp_path, transformers.Qwen2Model(transformers.Qwen2Config(**_SIZES, max_position_embeddings=32_768))
    )
    encoder = encoder_at(folder, max_length=32_768)
    encoder.encode([" ".join(["dogs"] * (280 + number % 20)) + f" {number}" for number in range(100)])
    assert encoder.counters.tokens > 25_000
    assert encoder.counters.padding < 0.25 * encoder.counters.tokens
    assert encoder.encode([" ".join(["run"] * 3_000)]).any(), "a text may be longer than a buffer"


def test_overflowing_weights_are_refused_before_the_corpus_is_read(tmp_path: Path):
    folder = save_folder(tmp_path, "bert")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.weight"][:] = 3e38
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"expected finite vectors, found NaN or infinity for 'A sentence"):
        encoder_at(folder).check()


def test_an_encoder_that_fails_on_every_text_is_named(tmp_path: Path):
    folder = save_folder(tmp_path, "electra")
    encoder = encoder_at(folder)
    table = encoder._model._model.embeddings.word_embeddings  # type: ignore[union-attr]
    table.weight.data = table.weight.data[:3]
    with pytest.raises(ModelError, match=r"an encoder that encodes a plain sentence, found IndexError"):
        encoder.check()


@pytest.mark.parametrize("threads", [1, 3])
def test_encoding_keeps_torchs_number_of_threads(folders, threads: int):
    torch.set_num_threads(threads)
    encoder = load_encoder(EncoderSettings(path=str(folders["bert"])), EncodeSettings(threads=2))
    encoder.encode(TEXTS)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("threads", "cores", "expected"), [(1, 8, 1), (3, 8, 3), (3, 2, 2)])
def test_by_default_an_encoder_has_torchs_threads_but_not_more_than_cores(
    folders, monkeypatch: pytest.MonkeyPatch, threads: int, cores: int, expected: int
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    torch.set_num_threads(threads)
    encoder, during = load_encoder(str(folders["bert"])), list[int]()
    forward = encoder._model.forward
    monkeypatch.setattr(
        encoder._model, "forward", lambda *given: (during.append(torch.get_num_threads()), forward(*given))[1]
    )
    encoder.encode(TEXTS)
    assert set(during) == {expected}
    assert torch.get_num_threads() == threads


def test_a_string_gives_one_vector_and_any_column_of_strings_gives_rows(minilm: Encoder):
    texts = ["two dogs run", "a girl reads"]
    vectors = minilm.encode(texts)
    assert minilm.encode(texts[0]).shape == (384,)
    np.testing.assert_array_equal(minilm.encode(texts[0]), vectors[0])
    for column in (
        np.array(texts),
        np.array(texts, object),
        pa.array(texts),
        pa.chunked_array([texts[:1], texts[1:]]),
        tuple(texts),
        iter(texts),
    ):
        np.testing.assert_array_equal(minilm.encode(column), vectors)
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(minilm.encode(pandas.Series(texts)), vectors)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts: expected a string or a sequence of strings, found NoneType"),
        (b"bytes", "found bytes"),
        ({"a", "b"}, "texts: expected a string or a sequence of strings, found set"),
        (np.array("x"), "texts: expected a string or a sequence of strings, found ndarray"),
        ({"a": 1}, "found dict"),
        (5, "found int"),
        (["a", None], r"texts\[1\]: expected a string, found NoneType; replace missing texts"),
        ([b"a"], r"texts\[0\]: expected a string, found bytes"),
        (np.zeros((2, 3)), r"texts\[0\]: expected a string, found ndarray"),
    ],
)
def test_inputs_that_are_not_texts_raise_a_type_error(minilm: Encoder, texts: Any, message: str):
    with pytest.raises(TypeError, match=message):
        minilm.encode(texts)


def test_a_name_is_enough_to_load_an_encoder_with_the_defaults(minilm: Encoder):
    encoder = load_encoder("all-MiniLM-L6-v2")
    assert encoder.space_id == minilm.space_id
    np.testing.assert_array_equal(encoder.encode("two dogs run"), minilm.encode("two dogs run"))

"""Untrusted encoder folders: no code runs, no question is asked, and no file outside the folder is read."""

import contextlib
import json
import pickle
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import JOINED
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.mlm_guesses import load_masked_lm
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.translation.seq2seq import open_tokenizer, open_translator
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.augment import TranslatorSettings
from tests.models.folders import folder_of_language_model, save_folder
from tests.models.inference.poisoned import CODE, LOADED, REFUSED, Poisoned, save_poisoned
from tests.models.translation.translators import save_translator


def encode(settings: EncoderSettings) -> None:
    load_encoder(settings, EncodeSettings(compile=False)).encode(["a man reads"])


def train(settings: EncoderSettings) -> None:
    load_trainable(open_folder(settings))


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Path of the file that code of a folder would write.

    After the test, the file must not exist, and no question may have been asked on the terminal.
    """
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", asked.append)
    yield tmp_path / "witness"
    assert not (tmp_path / "witness").exists()
    assert not asked


def test_code_that_runs_writes_the_witness(tmp_path: Path):
    """Without this, the tests below would pass with code that does nothing."""
    poisoned = Poisoned(tmp_path, tmp_path / "witness")
    poisoned.code(f"{CODE}.py")
    poisoned.pickle("weights.bin")
    for run in (
        lambda: runpy.run_path(str(tmp_path / f"{CODE}.py")),
        lambda: pickle.loads((tmp_path / "weights.bin").read_bytes()),
    ):
        assert not poisoned.witness.exists()
        run()
        poisoned.witness.unlink()


@pytest.mark.parametrize("family", ["bert", "electra"])  # loaded by this project, and by transformers
@pytest.mark.parametrize("code", LOADED)
def test_code_that_no_vector_depends_on_is_ignored(
    tmp_path: Path, witness: Path, monkeypatch: pytest.MonkeyPatch, code: str, family: str
):
    folder = save_poisoned(tmp_path / "encoder", family, LOADED[code], witness)
    monkeypatch.chdir(folder)
    for load in (encode, train):
        load(EncoderSettings(path=str(folder)))


@pytest.mark.parametrize("family", ["bert", "electra"])
@pytest.mark.parametrize("code", REFUSED)
def test_code_that_vectors_may_depend_on_is_refused(tmp_path: Path, witness: Path, code: str, family: str):
    folder = save_poisoned(tmp_path / "encoder", family, REFUSED[code], witness)
    with pytest.raises(ModelError) as caught:
        encode(EncoderSettings(path=str(folder)))
    assert caught.value.exit_code == 4
    with contextlib.suppress(ModelError):  # training may not read the file at fault
        train(EncoderSettings(path=str(folder)))


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "{outside}", "a/../../secret.safetensors", "..\\secret.safetensors", 7]
)
def test_weights_outside_the_folder_are_not_read(tmp_path: Path, name: object):
    folder = save_folder(tmp_path / "encoder", "bert")
    outside = (folder / "model.safetensors").rename(tmp_path / "secret.safetensors")
    name = str(outside) if name == "{outside}" else name
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"embeddings.word_embeddings.weight": name}})
    )
    with pytest.raises(ModelError, match="names of files in the folder"):
        open_folder(EncoderSettings(path=str(folder)))


@pytest.mark.parametrize(
    ("family", "auto", "load"),
    [
        (
            "bert",
            "AutoModelForMaskedLM",
            lambda path: load_masked_lm(open_folder(EncoderSettings(path=str(path))), torch.float32),
        ),
        ("marian", "AutoModelForSeq2SeqLM", lambda path: open_translator(TranslatorSettings(path=str(path)))),
    ],
)
def test_code_named_in_auto_map_is_refused(tmp_path, family, auto, load):
    if family == "marian":
        folder = save_translator(tmp_path, family)
    else:
        folder = folder_of_language_model(tmp_path / family, family=family)
    load(folder)
    Poisoned(folder, tmp_path).edit("config.json", auto_map={auto: "evil_code.Model"})
    with pytest.raises(
        ModelError, match="code from a folder is not run, found auto_map, which names the code evil"
    ):
        load(folder)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_code_of_a_translators_tokenizer_is_refused(tmp_path: Path, witness: Path, file: str):
    settings = TranslatorSettings(path=str(save_translator(tmp_path, "marian")))
    open_tokenizer(open_translator(settings), settings)
    folder = Poisoned(Path(settings.path), witness)
    folder.code(f"{CODE}.py")
    folder.edit("tokenizer_config.json", tokenizer_class="T")
    folder.edit(file, auto_map={"AutoTokenizer": [f"{CODE}.T", None]})
    with pytest.raises(ModelError) as caught:
        open_tokenizer(open_translator(settings), settings)
    assert caught.value.exit_code == 4
    assert str(folder.path) in str(caught.value)


@pytest.mark.parametrize("outside", [0, 1, 2])
@pytest.mark.parametrize("path", ["..", "/etc", "a/../../b"])
def test_modules_outside_the_folder_are_not_read(tmp_path: Path, outside: int, path: str):
    folder = save_folder(tmp_path / "encoder", "bert")
    kinds = ("Transformer", "Pooling", "Dense")
    entries = [
        {"type": f"sentence_transformers.models.{kind}", "path": path if number == outside else ""}
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ModelError, match="names of files in the folder"):
        open_folder(EncoderSettings(path=str(folder)))


@pytest.mark.parametrize("parts", [["..", "a"], ["a", "/etc"], ["a", 7]])
def test_encoders_outside_the_folder_are_not_concatenated(tmp_path: Path, parts: list[object]):
    folder = tmp_path / "encoder"
    save_folder(folder / "a", "bert")
    (folder / "config.json").write_text(json.dumps({"model_type": JOINED, "parts": parts}))
    with pytest.raises(ModelError, match="names of files in the folder"):
        open_folder(EncoderSettings(path=str(folder)))


@pytest.mark.parametrize("name", ["config.json", "modules.json", "config_sentence_transformers.json"])
def test_deeply_nested_json_is_refused(tmp_path: Path, name: str):
    folder = save_folder(tmp_path / "encoder", "bert")
    (folder / name).write_text("[" * 100_000)
    with pytest.raises(ModelError, match=name):
        open_folder(EncoderSettings(path=str(folder)))


@pytest.mark.parametrize("value", [None, "x", -1, 10**30, [], {}, True, float("nan")])
@pytest.mark.parametrize(
    "name",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "vocab_size"],
)
def test_impossible_sizes_are_refused(tmp_path: Path, name: str, value: object):
    folder = save_folder(tmp_path / "encoder", "bert")
    Poisoned(folder, tmp_path).edit("config.json", **{name: value})
    with pytest.raises(ModelError, match=r"config\.json"):
        open_folder(EncoderSettings(path=str(folder)))


def test_an_adapter_does_not_load_its_base_model(tmp_path: Path):
    folder = save_folder(tmp_path / "encoder", "electra")
    other = save_folder(tmp_path / "other", "electra", seed=1)
    Poisoned(folder, tmp_path).edit(
        "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(other)
    )
    with pytest.raises(ModelError, match=r"an adapter to .*merge_and_unload"):
        open_folder(EncoderSettings(path=str(folder)))

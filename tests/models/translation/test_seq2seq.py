"""Folders of translation models: their languages, weights and digests, and errors for folders that cannot be
used.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file, save_file

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.locate import absolute_path
from pipeline.models.translation.seq2seq import (
    check_languages,
    check_weights,
    load_model,
    open_tokenizer,
    open_translator,
)
from pipeline.settings.augment import TranslatorSettings
from tests.models.folders import edit_json
from tests.models.translation.translators import LANGUAGES, SENTENCES, save_translator


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return {
        family: save_translator(tmp_path_factory.mktemp(family), family)
        for family in ("marian", "m2m100", "nllb", "mbart25", "t5")
    }


def checked(path: Path, **options) -> None:
    """Open a translation model, and check its languages as before a run."""
    settings = TranslatorSettings(path=str(path), **options)
    check_languages(open_translator(settings), settings)


def copied(folder: Path, to: Path, **config) -> Path:
    """Copy a folder with changes of its config.json."""
    shutil.copytree(folder, to)
    edit_json(to / "config.json", **config)
    return to


@pytest.mark.parametrize("family", ["marian", "mbart25"])
def test_a_model_without_output_bias_is_refused(folders, family: str, tmp_path: Path):
    settings = TranslatorSettings(path=str(copied(folders[family], tmp_path / family)))
    load_model(open_translator(settings), torch.float32)
    tensors = load_file(tmp_path / family / "model.safetensors")
    del tensors["final_logits_bias"]
    save_file(tensors, tmp_path / family / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="expected a tensor final_logits_bias, found 1 missing"):
        load_model(open_translator(settings), torch.float32)


@pytest.mark.parametrize("family", ["marian", "m2m100", "nllb", "mbart25", "t5"])
def test_texts_survive_tokenizing_in_the_languages_of_each_family(folders, family: str):
    settings = TranslatorSettings(path=str(folders[family]), **LANGUAGES[family])
    tokenizer = open_tokenizer(open_translator(settings), settings)
    tokens = tokenizer.tokens(SENTENCES)
    # leading tokens that are not skipped as special tokens: a language, or words of the prefix
    leading = {"marian": 1, "m2m100": 1, "t5": len(LANGUAGES["t5"]["prefix"].split())}.get(family, 0)
    texts = tokenizer.texts([ids[leading:] for ids in tokens])
    assert [" ".join(text.split()) for text in texts] == list(SENTENCES)
    assert tokenizer.texts([[]]) == [""]


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        ("m2m100", {"source": "en", "target": "dee"}, "did you mean 'de'"),
        ("nllb", {"source": "eng_Lat", "target": "deu_Latn"}, "did you mean 'eng_Latn'"),
        ("nllb", {"target": "deu_Latn"}, "found none; set source"),
        ("mbart25", {"source": "en_XX"}, "found none; set target"),
        ("marian", {"source": "en", "prefix": ">>deu<< "}, "no languages"),
        ("marian", {"prefix": ">>ger<< "}, "deu"),
        ("t5", {"target": "de"}, "no languages"),
    ],
)
def test_an_unknown_or_missing_language_is_named(folders, family: str, options: dict, expected: str):
    with pytest.raises(ConfigError, match=expected):
        checked(folders[family], **options)


def test_a_model_without_decoder_is_refused_before_torch_is_imported(folders, tmp_path):
    program = """
import sys
from pipeline.models.translation.seq2seq import open_translator
from pipeline.settings.augment import TranslatorSettings
try:
    open_translator(TranslatorSettings(path=sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error, "torch" in sys.modules)
"""
    encoder = copied(
        folders["t5"], tmp_path / "encoder", is_encoder_decoder=False, architectures=["BertModel"]
    )
    classifier = copied(
        folders["t5"], tmp_path / "classifier", architectures=["BartForSequenceClassification"]
    )
    for folder, name in ((encoder, "BertModel"), (classifier, "BartForSequenceClassification")):
        found = subprocess.run(
            [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True
        ).stdout
        assert found.startswith("ModelError")
        assert name in found
        assert found.strip().endswith("False")


def test_a_path_without_a_model_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "file", tmp_path / "empty"):
        with pytest.raises(ModelError, match=re.escape(f"{path}")):
            checked(path)


def test_a_max_length_above_the_positions_of_the_model_is_refused(folders):
    checked(folders["t5"], max_length=48)
    with pytest.raises(ConfigError, match="positions"):
        checked(folders["t5"], max_length=49)


def test_damaged_and_missing_weights_are_refused(folders, tmp_path):
    truncated = copied(folders["t5"], tmp_path / "truncated")
    weights = (truncated / "model.safetensors").read_bytes()
    (truncated / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    incomplete = copied(folders["t5"], tmp_path / "incomplete")
    tensors = load_file(incomplete / "model.safetensors")
    del tensors["decoder.block.1.layer.0.SelfAttention.q.weight"]
    save_file(tensors, incomplete / "model.safetensors", {"format": "pt"})
    for folder in (truncated, incomplete):
        with pytest.raises(ModelError, match="fetch"):
            load_model(open_translator(TranslatorSettings(path=str(folder))), "float32")
    with pytest.raises(ModelError, match="complete safetensors"):
        check_weights(open_translator(TranslatorSettings(path=str(truncated))))
    # only loading the model finds a missing tensor
    check_weights(open_translator(TranslatorSettings(path=str(incomplete))))
    (truncated / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="weights"):
        open_translator(TranslatorSettings(path=str(truncated)))


def test_digests_depend_on_the_content_of_the_model_and_not_on_its_path(folders, tmp_path):
    same, other = copied(folders["marian"], tmp_path / "same"), copied(folders["marian"], tmp_path / "other")
    (other / "source.spm").write_bytes(b"another")
    digests = [
        open_translator(TranslatorSettings(path=str(path))).digests()
        for path in (folders["marian"], same, other)
    ]
    assert {*digests[0]} >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "source.spm",
        "target.spm",
        "vocab.json",
    }
    assert digests[1]["source.spm"] == digests[0]["source.spm"] != digests[2]["source.spm"]
    (same / "README.md").write_text("not a part of the model")
    assert open_translator(TranslatorSettings(path=str(same))).digests() == digests[1]


def test_a_relative_path_becomes_absolute_for_workers(folders, monkeypatch):
    monkeypatch.chdir(folders["t5"].parent)
    assert absolute_path("model") == str(folders["t5"].resolve())
    for name in ("s3://bucket/model", "Helsinki-NLP/opus-mt-en-de"):
        assert absolute_path(name) == name


def test_a_model_in_a_store_is_loaded_from_the_local_cache(folders, s3, tmp_path, monkeypatch):
    from pipeline.store.files.open_store import open_store

    monkeypatch.setenv("MANTA_CACHE", str(tmp_path))
    store = open_store(f"{s3}/marian")
    for file in folders["marian"].iterdir():
        store.write(file.name, file.read_bytes())
    settings = TranslatorSettings(path=f"{s3}/marian", **LANGUAGES["marian"])
    folder = open_translator(settings)
    assert folder.path.is_relative_to(tmp_path)
    local = open_translator(TranslatorSettings(path=str(folders["marian"])))
    assert folder.digests() == local.digests()
    found, expected = (open_tokenizer(each, settings).tokens(SENTENCES) for each in (folder, local))
    assert found == expected

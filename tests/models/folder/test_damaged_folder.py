"""Missing and damaged folders are refused naming the file, the expected content and the content found."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import locate
from pipeline.settings import EncoderSettings
from tests.models.every_family import save_family
from tests.models.folder.saved import encoded
from tests.models.folders import edit_json, encoder_at, folder_at


def test_a_pickle_with_other_objects_than_tensors_is_refused(bert):
    (bert / "model.safetensors").unlink()
    torch.save({"evil": Path("x")}, bert / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: expected a file that contains only tensors"):
        encoded(bert)


def _without(name):
    return lambda folder: (folder / name).unlink()


def _with(name, **changes):
    return lambda folder: edit_json(folder / name, **changes)


def _text(name, text):
    return lambda folder: (folder / name).write_text(text)


def _modules(*kinds):
    entries = [{"type": kind, "path": "" if index == 0 else f"{index}_x"} for index, kind in enumerate(kinds)]
    return _text("modules.json", json.dumps(entries))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("config.json"), r"config\.json: expected a model's configuration, found no such file"),
        (_text("config.json", "{"), r"config\.json: expected readable JSON"),
        (_text("config.json", "[1]"), r"config\.json: expected a JSON object, found list"),
        (_text("config.json", "[" * 100_000), r"config\.json: expected readable JSON"),
        (
            _with("config.json", hidden_size="wide"),
            r"config\.json: expected a whole number as hidden_size, found 'wide'",
        ),
        (
            _with("config.json", num_hidden_layers=True),
            r"config\.json: expected a whole number as num_hidden_layers, found True",
        ),
        (
            _with("config.json", layer_norm_eps="tiny"),
            r"config\.json: expected a number as layer_norm_eps, found 'tiny'",
        ),
        (
            _with("config.json", pad_token_id="x"),
            r"config\.json: expected a whole number as pad_token_id, found 'x'",
        ),
        (_with("config.json", hidden_act=3), r"config\.json: expected a name as hidden_act, found 3"),
        (
            _with("config.json", layer_norm_eps=[1]),
            r"config\.json that transformers reads, found .*layer_norm_eps",
        ),
        (
            _with("config.json", type_vocab_size=[1]),
            r"config\.json that transformers reads, found .*type_vocab",
        ),
        (_text("config.json", '{"seed": 1e400}'), r"readable JSON, found 1e400 is not a finite number"),
        (_text("tokenizer_config.json", "{"), r"tokenizer_config\.json: expected readable JSON"),
        (_text("tokenizer_config.json", "3"), r"tokenizer_config\.json: expected a JSON object, found int"),
        (
            _without("model.safetensors"),
            r"expected weights in model\.safetensors or pytorch_model\.bin, found neither",
        ),
        (
            _text("model.safetensors", "not weights at all"),
            r"model\.safetensors: expected a complete safetensors file",
        ),
        (
            _with("config.json", num_hidden_layers=4),
            (
                r"the 69 tensors of the model, found 16 missing: "
                r"encoder\.layer\.3\.attention\.self\.query\.weight, .* \.\.\. "
            ),
        ),
        (
            _with("config.json", hidden_size=52),
            r"expected embeddings\.word_embeddings\.weight of shape \(300, 52\), found \(300, 48\)",
        ),
        (
            _modules("sentence_transformers.models.Transformer", "sentence_transformers.models.LSTM"),
            r"found the module sentence_transformers\.models\.LSTM",
        ),
        (
            _modules("sentence_transformers.models.Transformer", "my_own.Pooling"),
            r"found the module my_own\.Pooling",
        ),
        (
            _modules("sentence_transformers.models.Transformer", "sentence_transformers.models.Normalize"),
            r"expected Transformer and Pooling, or StaticEmbedding, then",
        ),
        (
            _text("modules.json", '[{"idx": 0}]'),
            r"modules\.json: expected a list of modules with type and path",
        ),
        (
            _text("config.json", '{"model_type": "bert"}'),
            r"config\.json: expected the width of the token states as hidden_size",
        ),
        (
            _with("sentence_bert_config.json", transformer_task="fill-mask"),
            r"expected a Transformer module for feature-extraction, found 'fill-mask'",
        ),
        (
            _with("config_sentence_transformers.json", default_prompt_name="passage"),
            r"expected default_prompt_name among no prompts, found 'passage'",
        ),
    ],
)
def test_a_damaged_folder_is_refused_naming_file_expected_and_found(bert, spoil, message):
    spoil(bert)
    with pytest.raises(ModelError, match=message) as caught:
        encoded(bert)
    assert caught.value.exit_code == 4
    assert str(bert) in str(caught.value)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("roberta", "layer_norm_eps", []),
        ("modernbert", "num_attention_heads", 0),
        ("deberta-v2", "num_attention_heads", 0),
        ("deberta-v2", "num_attention_heads", -1),
        ("deberta-v2", "dtype", [1]),
        ("deberta-v2", "pad_token_id", [1]),
        ("deberta-v2", "vocab_size", [1]),
        ("bert", "is_encoder_decoder", True),
    ],
)
def test_a_value_that_no_model_can_have_is_an_error_of_the_model(tmp_path, family, key, value):
    folder = save_family(family, tmp_path / "encoder")
    edit_json(folder / "config.json", **{key: value})
    with pytest.raises(ModelError, match=re.escape(str(folder))):
        encoder_at(folder).check()


@pytest.mark.parametrize(
    "damage",
    [
        {"post_processor": "x"},
        {"post_processor": [1]},
        {"post_processor": {"type": "Sequence"}},
        {"post_processor": {"type": "TemplateProcessing", "single": ["a"]}},
        {"model": {"type": "WordPiece", "vocab": 5}},
        {"model": {"type": "Unigram", "vocab": [[]]}},
        {"model": {"type": "Unigram", "vocab": [1, 2]}},
    ],
    ids=str,
)
def test_a_part_of_a_tokenizer_that_is_of_another_type_is_an_error_of_the_model(bert, damage):
    edit_json(bert / "tokenizer.json", **damage)
    with pytest.raises(ModelError, match=r"tokenizer\.json: expected"):
        encoder_at(bert).check()


def test_an_index_that_names_a_missing_file_is_refused_unless_all_weights_are_in_one_file(bert):
    before = encoded(bert)
    edit_json(bert / "model.safetensors.index.json", weight_map={"a": "gone.safetensors"})
    np.testing.assert_array_equal(encoded(bert), before)
    (bert / "model.safetensors").unlink()
    with pytest.raises(
        ModelError, match=r"expected every file of its weight_map, found no gone\.safetensors"
    ):
        folder_at(bert)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/place", "found no such folder"),
        ("./nothing/at/all", "found no such folder"),
        ("file:///no/such/place", "found no such folder"),
        (__file__, "line 1: expected a word and its numbers"),
    ],
)
def test_a_path_without_a_folder_is_refused(path, message):
    with pytest.raises(ModelError, match=message):
        locate(path)


def test_a_hub_id_without_network_and_cache_is_refused_with_a_remedy(tmp_path):
    script = "from pipeline.models.folder.locate import locate; locate('someone/some-encoder')"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=offline, check=False
    )
    assert (
        "someone/some-encoder: expected an encoder folder or a hub id, found no such folder, and no "
        "download from the hub"
    ) in done.stderr
    assert "give the path of a folder, or go online" in done.stderr


@pytest.mark.parametrize(
    ("file", "name", "values", "expected"),
    [
        ("config.json", "model_type", (["x"], {}, 3), "a name"),
        ("config.json", "hidden_size", ([48], "48", True), "a whole number"),
        ("config.json", "architectures", ("BertModel", [1]), "a list of names"),
        ("1_Pooling/config.json", "pooling_mode", (3, [], [1], True), "a name, or a list of names,"),
        (
            "sentence_bert_config.json",
            "max_seq_length",
            ("64", -1, [64], 64.5, True),
            "a whole number, 0 or more,",
        ),
        ("sentence_bert_config.json", "do_lower_case", ("false", 1), "true or false"),
        (
            "sentence_bert_config.json",
            "processing_kwargs",
            (3, {"text": 3}, {"common": {"max_length": "x"}}),
            "map",
        ),
        (
            "config_sentence_transformers.json",
            "prompts",
            ([1], "query: ", {"query": 3}),
            "a mapping from names to",
        ),
        ("config_sentence_transformers.json", "default_prompt_name", (["x"], {}), "a name"),
        ("tokenizer_config.json", "model_max_length", ("x", [64], -1), "a number, 0 or more,"),
    ],
)
@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_value_of_another_type_is_named_with_its_file(
    tmp_path, folders, family, file, name, values, expected
):
    folder = shutil.copytree(folders[family], tmp_path / family)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    edit_json(folder / "1_Pooling/config.json", pooling_mode_mean_tokens=True)
    before = open_folder(EncoderSettings(path=str(folder))).space_id
    edit_json(
        folder / file, **({} if name in ("model_type", "hidden_size", "model_max_length") else {name: None})
    )
    assert open_folder(EncoderSettings(path=str(folder))).space_id == before, "null is like a missing key"
    for value in values:
        edit_json(folder / file, **{name: value})
        message = re.escape(f"{folder / file}: expected {expected}")
        with pytest.raises(
            ModelError, match=rf"{message}.* as {name}, found {re.escape(repr(value))}; restore"
        ):
            open_folder(EncoderSettings(path=str(folder)))

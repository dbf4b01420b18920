"""NaN or infinity among the weights is refused, and so are weights of layers that are not used."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import torch as torch_files
from safetensors.numpy import load_file, save_file

from pipeline.errors import ModelError
from pipeline.models.folder.check_weights import check_finite
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.mlm_guesses import load_masked_lm
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import folder_of_language_model, save_folder

WORDS = "bert.embeddings.word_embeddings.weight"
Load = Callable[[Path], object]
LOADERS: dict[str, Load] = {
    "encode": lambda path: load_encoder(str(path), EncodeSettings()),
    "train": lambda path: load_trainable(open_folder(EncoderSettings(path=str(path)))),
    "guess words": lambda path: load_masked_lm(open_folder(EncoderSettings(path=str(path))), torch.float32),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with a head for masked words, which all three loaders can read: one packed, one padded."""
    top = tmp_path_factory.mktemp("finite")
    return {family: folder_of_language_model(top / family, family=family) for family in ("bert", "electra")}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("family", ["bert", "electra"])
@pytest.mark.parametrize("load", LOADERS)
def test_nan_or_infinity_in_one_row_of_the_word_table_is_refused(folders, tmp_path, load, family, value):
    folder = shutil.copytree(folders[family], tmp_path / family)
    LOADERS[load](folder)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][7, 3] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    message = (
        r"expected finite numbers in .*word_embeddings\.weight, found NaN or infinity in 1 of 300 rows; "
    )
    with pytest.raises(ModelError, match=message):
        LOADERS[load](folder)


@pytest.mark.parametrize("family", ["bert", "electra"])
@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    "extra",
    [
        "encoder.layer.0.attention.self.distance_embedding.weight",
        "encoder.layer.3.output.dense.bias",
        "embeddings.more.weight",
    ],
)
def test_weights_of_the_encoder_that_no_layer_uses_are_refused(folders, tmp_path, load, family, extra):
    folder = shutil.copytree(folders[family], tmp_path / family)
    add_weights(folder, extra)
    with pytest.raises(ModelError, match=f"only weights that the model .*, found 1 more: .*{extra}; "):
        LOADERS[load](folder)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_weights_of_heads_are_logged_and_constants_are_not(folders, tmp_path, family, caplog):
    folder = shutil.copytree(folders[family], tmp_path / family)
    add_weights(folder, "embeddings.position_ids", "encoder.layer.0.attention.inv_freq")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"qa_outputs.weight": np.ones(2, np.float32)}, folder / "model.safetensors")
    with caplog.at_level(logging.INFO, "pipeline"):
        LOADERS["encode"](folder)
    (line,) = [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]
    assert line.startswith(f"{folder}: ")
    assert "qa_outputs.weight" in line
    assert "ids" not in line
    assert "inv_freq" not in line


def add_weights(folder: Path, *names: str) -> None:
    """Add vectors of ones to the weights of an encoder, under its own prefix."""
    tensors = load_file(folder / "model.safetensors")
    table = next(name for name in tensors if name.endswith("embeddings.word_embeddings.weight"))
    prefix = table.removesuffix("embeddings.word_embeddings.weight")
    more = {f"{prefix}{name}": np.ones(48, np.float32) for name in names}
    save_file(tensors | more, folder / "model.safetensors", {"format": "pt"})


def test_invalid_values_of_a_bias_are_counted(tmp_path):
    folder = save_folder(tmp_path / "bert", "bert")
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.2.output.dense.bias"][[1, 5]] = np.inf, -np.inf
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelError, match=r"layer\.2\.output\.dense\.bias, found NaN or infinity in 2 of 48 val"
    ):
        load_encoder(str(folder), EncodeSettings())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_large_numbers_whose_sum_overflows_are_accepted(dtype):
    large = torch.full((3, 4), torch.finfo(dtype).max, dtype=dtype)
    check_finite("model", "weight", large)
    large[1, 2] = torch.nan
    with pytest.raises(ModelError, match="1 of 3 rows"):
        check_finite("model", "weight", large)


@pytest.mark.parametrize("kind", [torch.int8, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("family", ["bert", "electra"])
@pytest.mark.parametrize("load", LOADERS)
def test_weights_of_layers_that_are_not_floating_point_numbers_are_refused(
    folders, tmp_path, load, family, kind
):
    """Converted, they would be weights without their scale, or without a part."""
    folder = shutil.copytree(folders[family], tmp_path / family)
    tensors = torch_files.load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layer.1.output.dense.weight"))
    torch_files.save_file(tensors | {name: tensors[name].to(kind)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"floating-point numbers in .*layer\.1\.output\.dense\.weight"):
        LOADERS[load](folder)


@pytest.mark.parametrize(
    "content",
    [
        [1],
        torch.ones(2),
        None,
        "text",
        {1: torch.ones(2)},
        {"state_dict": {}},
        {WORDS: torch.eye(300, 48).to_sparse()},
        {WORDS: torch.empty(300, 48, device="meta")},
    ],
    ids=["list", "tensor", "none", "text", "numbers", "nested", "sparse", "meta"],
)
def test_files_of_other_contents_than_tensors_by_name_are_refused(folders, tmp_path, content):
    folder = shutil.copytree(folders["bert"], tmp_path / "bert")
    tensors = torch_files.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    merged = tensors | content if isinstance(content, dict) and WORDS in content else content
    torch.save(merged, folder / "pytorch_model.bin")
    with pytest.raises(ModelError):
        LOADERS["encode"](folder)


def test_a_type_that_torch_does_not_know_is_refused(folders, tmp_path):
    folder = shutil.copytree(folders["bert"], tmp_path / "bert")
    file = folder / "model.safetensors"
    size = int.from_bytes(file.read_bytes()[:8], "little")
    header, content = json.loads(file.read_bytes()[8 : 8 + size]), file.read_bytes()[8 + size :]
    name = next(name for name in header if name.endswith("layer.1.output.dense.weight"))
    begin, end = header[name]["data_offsets"]
    header[name] |= {"dtype": "F6_E2M3", "shape": [(end - begin) * 8 // 6 // 4 * 4]}
    header[name]["data_offsets"] = [begin, begin + header[name]["shape"][0] * 6 // 8]
    shift = end - header[name]["data_offsets"][1]
    for other, entry in header.items():
        if other not in ("__metadata__", name) and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - shift for offset in entry["data_offsets"]]
    packed = json.dumps(header).encode()
    file.write_bytes(len(packed).to_bytes(8, "little") + packed + content[: end - shift] + content[end:])
    with pytest.raises(ModelError, match=r"layer\.1\.output\.dense\.weight of a known type"):
        LOADERS["encode"](folder)

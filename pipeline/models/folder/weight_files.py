"""Find the weight files of a model folder."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import ModelError
from pipeline.models.folder.modules import ModuleEntry, check_inside, read_json
from pipeline.models.spec.pooling import NGRAMS

# in the order of preference
_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def weights_of(path: Path, transformer: str) -> tuple[str, ...]:
    """List the weight files of a model, relative to the folder; an index comes after its files.

    Raises:
        ModelError: there are none, or an index names a missing file.
    """
    name = next((name for name in _NAMES if (path / transformer / name).is_file()), None)
    if name is None:
        raise ModelError(
            str(path / transformer),
            "weights in model.safetensors or pytorch_model.bin",
            "neither",
            "give a folder with weights",
        )
    file = path / transformer / name
    parts = _files_of_index(file) if name.endswith(".index.json") else []
    if missing := [part for part in parts if not (file.parent / part).is_file()]:
        raise ModelError(str(file), "every file of its weight_map", f"no {missing[0]}", "restore the file")
    return tuple(path_inside(transformer, part) for part in (*parts, name))


def pooling_weights_of(path: Path, modules: Sequence[ModuleEntry], pooling: Sequence[str]) -> str | None:
    """Return the weight file of the folder's Pooling module, for the pooling ngrams; None if it has none."""
    if NGRAMS not in pooling or not modules:
        return None
    name = path_inside(modules[1].folder, _NAMES[0])
    return name if (path / name).is_file() else None


def _files_of_index(index: Path) -> list[str]:
    """List the files that an index of weights names, relative to its folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(
            str(index), "a weight_map from tensors to files", repr(weight_map)[:80], "restore the file"
        )
    check_inside(index, weight_map.values())
    return sorted(set(weight_map.values()))


def path_inside(folder: str, name: str) -> str:
    """Return the relative path of a file in a subfolder; "" is the folder itself."""
    return f"{folder}/{name}" if folder else name

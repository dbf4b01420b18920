"""Tensors of a model folder under the names of one family-neutral architecture."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pipeline.errors import ModelError
from pipeline.models.folder.finite import check_finite
from pipeline.models.folder.folder import EncoderFolder

_ANCHOR = (
    "embeddings.word_embeddings.weight"  # what stands before it in a checkpoint is the prefix of every name
)


@dataclass(frozen=True)
class Names:
    """Where a family keeps the parts of its layer {i}; ".weight" and ".bias" follow."""

    layer: str
    query: str
    key: str
    value: str
    output: str
    output_norm: str
    up: str
    down: str
    down_norm: str


_BERT = Names(
    "encoder.layer.{i}.",
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
NAMES: Mapping[str, Names] = {
    "bert": _BERT,
    "roberta": _BERT,
    "mpnet": Names(
        "encoder.layer.{i}.",
        "attention.attn.q",
        "attention.attn.k",
        "attention.attn.v",
        "attention.attn.o",
        "attention.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ),
    "distilbert": Names(
        "transformer.layer.{i}.",
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.lin2",
        "output_layer_norm",
    ),
}


def tensor_names(family: str, layers: int, *, token_types: bool) -> list[str]:
    """Every tensor of an encoder of a packed family, under its neutral name."""
    tables = ["word", "position", *(["token_type"] if token_types else [])]
    names, found = NAMES[family], [f"embeddings.{table}_embeddings.weight" for table in tables]
    parts = ["embeddings.LayerNorm"]
    for number in range(layers):
        parts += [names.layer.format(i=number) + name for name in astuple(names)[1:]]
    found += [f"{part}.{kind}" for part in parts for kind in ("weight", "bias")]
    return [*found, *(["encoder.relative_attention_bias.weight"] if family == "mpnet" else [])]


class Checkpoint:
    """Tensors by name, read one at a time; prefixes (bert., roberta. ...) and the old gamma and beta are seen through."""

    def __init__(self, where: str, load: Mapping[str, Callable[[], Tensor]]) -> None:
        prefix = next((name.removesuffix(_ANCHOR) for name in load if name.endswith(_ANCHOR)), "")
        self._where = where
        self._load = {_modern(name.removeprefix(prefix)): read for name, read in load.items()}
        self.names = {_modern(name.removeprefix(prefix)): name for name in load if name.startswith(prefix)}
        """of the encoder's own tensors: neutral name -> name in the file. What has not the prefix is of another head, such as a language model's"""

    def __contains__(self, name: str) -> bool:
        return name in self._load

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """float32 tensor of that name. shape: None for any.

        Raises:
            ModelError: it is missing, has another shape, or holds NaN or infinity.
        """
        self.check_present([name])
        found = self.raw(name)
        if shape is not None and tuple(found.shape) != shape:
            raise ModelError(
                self._where,
                f"{name} of shape {shape}",
                str(tuple(found.shape)),
                "check that weights and config.json belong together",
            )
        found = found.to(torch.float32)
        check_finite(self._where, name, found)
        return found

    def check_present(self, names: Iterable[str]) -> None:
        """Refuse weights without all of these tensors. ModelError names the first missing ones and their number."""
        wanted = list(names)
        if missing := [name for name in wanted if name not in self._load]:
            shown = f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
            near = ", ".join(sorted(self._load)[:3])
            what = f"the {len(wanted)} tensors of the model" if len(wanted) > 1 else f"a tensor {wanted[0]}"
            raise ModelError(
                self._where,
                what,
                f"{len(missing)} missing: {shown} (of {len(self._load)} there, the first are {near})",
                "check that weights and config.json belong together",
            )

    def raw(self, name: str) -> Tensor:
        """The tensor of that name, which is there, as it is."""
        return self._load[name]()

    def linear(self, name: str, inner: int, outer: int, *, bias: bool = True) -> tuple[Tensor, Tensor | None]:
        """(weight (outer, inner), bias (outer,) or None)."""
        return self.tensor(f"{name}.weight", (outer, inner)), self.tensor(
            f"{name}.bias", (outer,)
        ) if bias else None


def open_checkpoint(folder: EncoderFolder) -> Checkpoint:
    """The backbone's tensors."""
    files = [folder.file(name) for name in folder.weights if not name.endswith(".index.json")]
    return open_files(str(folder.path), files)


def open_weights(file: Path) -> Checkpoint:
    """The tensors of one file, such as a Dense module's."""
    return open_files(str(file), [file])


def open_files(where: str, files: list[Path]) -> Checkpoint:
    """The tensors of several files. where: the model that they belong to, for errors."""
    return Checkpoint(where, _readers(files))


def _readers(files: list[Path]) -> dict[str, Callable[[], Tensor]]:
    readers: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        readers |= _from_safetensors(file) if file.suffix == ".safetensors" else _from_pickle(file)
    return readers


def _from_safetensors(file: Path) -> dict[str, Callable[[], Tensor]]:
    try:
        opened = safe_open(str(file), framework="pt")
        names = opened.keys()
        return {name: partial(opened.get_tensor, name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelError(
            str(file), "a whole safetensors file", " ".join(str(error).split()), "fetch the file again"
        ) from None


def _from_pickle(file: Path) -> dict[str, Callable[[], Tensor]]:
    """weights_only: a .bin file is a pickle, and nothing but tensors may come out of it."""
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, OSError, EOFError) as error:
        found = " ".join(str(error).split())[:200]
        raise ModelError(
            str(file),
            "a file of tensors alone (weights_only)",
            found,
            "fetch the file again, or convert it to safetensors",
        ) from None
    return {name: tensor.detach for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def _modern(name: str) -> str:
    """Checkpoints converted from TensorFlow call a norm's weight and bias gamma and beta."""
    stem, _, last = name.rpartition(".")
    return f"{stem}.{ {'gamma': 'weight', 'beta': 'bias'}.get(last, last) }" if "LayerNorm" in stem else name

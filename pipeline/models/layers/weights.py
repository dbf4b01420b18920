"""Tensors of a model folder by family-neutral names."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.finite import check_finite

# in a checkpoint, the prefix of this name is the prefix of all of the encoder's tensors
_ANCHOR = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class Names:
    """Tensor names of layer {i} in a model family, without ".weight" and ".bias"."""

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
    """Neutral names of all tensors of an encoder of a packed family."""
    tables = ["word", "position", *(["token_type"] if token_types else [])]
    layer, *names = astuple(NAMES[family])
    parts = [layer.format(i=number) + name for number in range(layers) for name in names]
    return [
        *(f"embeddings.{table}_embeddings.weight" for table in tables),
        *(f"{part}.{kind}" for part in ("embeddings.LayerNorm", *parts) for kind in ("weight", "bias")),
        *(["encoder.relative_attention_bias.weight"] if family == "mpnet" else []),
    ]


class Checkpoint:
    """Tensors by neutral name, read one at a time.

    Neutral names have no prefix (bert., roberta. ...); the old names gamma and beta are weight and bias.
    """

    def __init__(self, where: str, load: Mapping[str, Callable[[], Tensor]]) -> None:
        prefix = next((name.removesuffix(_ANCHOR) for name in load if name.endswith(_ANCHOR)), "")
        self._where = where
        self._load = {_modern(name.removeprefix(prefix)): read for name, read in load.items()}
        self.names = {_modern(name.removeprefix(prefix)): name for name in load if name.startswith(prefix)}
        """neutral name -> name in the file, for the encoder's tensors; without those of other heads"""

    def __contains__(self, name: str) -> bool:
        return name in self._load

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Read a tensor as float32.

        Args:
            name: neutral name.
            shape: expected shape; None for any.

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

    def fill(self, module: nn.Module, prefix: str = "") -> None:
        """Load all parameters of a module, float32. prefix: of their neutral names.

        Raises:
            ModelError: as `tensor` does.
        """
        parameters = dict(module.named_parameters())
        self.check_present(prefix + name for name in parameters)
        found = {
            name: self.tensor(prefix + name, tuple(each.shape)).clone() for name, each in parameters.items()
        }
        module.load_state_dict(found, strict=False, assign=True)  # not strict: buffers keep their values

    def check_present(self, names: Iterable[str]) -> None:
        """Check that the weights contain these tensors.

        Raises:
            ModelError: tensors are missing; the message names the first ones and their number.
        """
        wanted = list(names)
        if missing := [name for name in wanted if name not in self._load]:
            shown = f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
            raise ModelError(
                self._where,
                f"the {len(wanted)} tensors of the model" if len(wanted) > 1 else f"a tensor {wanted[0]}",
                f"{len(missing)} missing: {shown} "
                f"(of {len(self._load)} there, the first are {', '.join(sorted(self._load)[:3])})",
                "check that weights and config.json belong together",
            )

    def raw(self, name: str) -> Tensor:
        """Read a tensor that exists, unchecked and in its own type."""
        return self._load[name]()

    def linear(self, name: str, inner: int, outer: int) -> tuple[Tensor, Tensor]:
        """Read a linear layer: weight (outer, inner) and bias (outer,)."""
        return self.tensor(f"{name}.weight", (outer, inner)), self.tensor(f"{name}.bias", (outer,))


def open_checkpoint(folder: EncoderFolder) -> Checkpoint:
    """Open the backbone's weights."""
    return open_files(
        str(folder.path),
        (folder.file(name) for name in folder.weights if not name.endswith(".index.json")),
    )


def open_files(where: str, files: Iterable[Path]) -> Checkpoint:
    """Open several files of weights. where: path of their model, for errors."""
    readers: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        readers |= _from_safetensors(file) if file.suffix == ".safetensors" else _from_pickle(file)
    return Checkpoint(where, readers)


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
    """Load a .bin file. It is a pickle; with weights_only it cannot run code."""
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise ModelError(
            str(file),
            "a file that contains only tensors (weights_only)",
            " ".join(str(error).split())[:200],
            "fetch the file again, or convert it to safetensors",
        ) from None
    return {name: tensor.detach for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def _modern(name: str) -> str:
    """Rename a norm's gamma and beta, as in checkpoints converted from TensorFlow, to weight and bias."""
    stem, _, last = name.rpartition(".")
    return f"{stem}.{ {'gamma': 'weight', 'beta': 'bias'}.get(last, last) }" if "LayerNorm" in stem else name

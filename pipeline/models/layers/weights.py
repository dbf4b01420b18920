"""Tensors of a model's weight files, under names without the prefix that a checkpoint adds."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.check_weights import check_finite, check_numbers_type, check_unused
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.spec.tensor_names import NAMES

_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
# prefixes of tensor names that transformers writes if it saves a model with a head
_BASES = ("bert.", "distilbert.", "model.", "mpnet.", "new.", "nomic_bert.", "roberta.")


class Checkpoint:
    """Tensors by name, read one at a time.

    Names have no prefix (bert., roberta. ...), and the old names gamma and beta are weight and bias.
    """

    def __init__(
        self, path: str, load: Mapping[str, Callable[[], Tensor]], words: str = NAMES["bert"].words
    ) -> None:
        """Index the tensors by their names without prefix; none is read yet.

        Args:
            path: path of the model, for errors.
            load: function that reads a tensor, by the tensor's name in the file.
            words: name of the word table without prefix. The prefix that it has in the file is the prefix of
                all of the encoder's tensors.

        Raises:
            ModelError: there are several word tables, and no rule says which is the encoder's.
        """
        prefix = _prefix(path, load, f"{words}.weight")
        self._path = path
        self._load = {_current_name(name.removeprefix(prefix)): read for name, read in load.items()}
        self.names = {
            _current_name(name.removeprefix(prefix)): name for name in load if name.startswith(prefix)
        }
        """names in the file by name without prefix, for the encoder's tensors only, not for tensors
        of heads
        """

    def __contains__(self, name: str) -> bool:
        return name in self._load

    def tensor(self, name: str, shape: tuple[int, ...] | None = None, *, integers: bool = False) -> Tensor:
        """Read a tensor as float32.

        Args:
            name: name without prefix.
            shape: expected shape; None for any.
            integers: integers are read, too; weights of layers that are integers lack their scale.

        Raises:
            ModelError: it is missing, has another shape or type, or holds NaN or infinity.
        """
        self.check_present([name])
        found = self.raw(name)
        check_numbers_type(self._path, name, found, integers=integers)
        if shape is not None and tuple(found.shape) != shape:
            raise ModelError(
                self._path,
                f"{name} of shape {shape}",
                str(tuple(found.shape)),
                "check that weights and config.json belong together",
            )
        found = found.to(torch.float32)
        check_finite(self._path, name, found)
        return found

    def fill(self, module: nn.Module, prefix: str = "") -> None:
        """Load all parameters of a module as float32.

        Args:
            module: module to fill; its parameters may be on the meta device.
            prefix: precedes the parameters' names among the tensors.

        Raises:
            ModelError: as `tensor` does.
        """
        parameters = dict(module.named_parameters())
        self.check_present(prefix + name for name in parameters)
        found = {
            name: self.tensor(prefix + name, tuple(parameter.shape)).clone()
            for name, parameter in parameters.items()
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
                self._path,
                f"the {len(wanted)} tensors of the model" if len(wanted) > 1 else f"a tensor {wanted[0]}",
                f"{len(missing)} missing: {shown} "
                f"(the weights have {len(self._load)} tensors, first {', '.join(sorted(self._load)[:3])})",
                "check that weights and config.json belong together",
            )

    def check_used(self, names: Iterable[str]) -> None:
        """Check that no other tensors belong to the encoder's parts; log tensors of heads, for `manta -v`.

        Raises:
            ModelError: there are others; the message names the first ones and their number.
        """
        used = set(names)
        check_unused(self._path, self._load.keys() - used, {name.split(".")[0] for name in used})

    def raw(self, name: str) -> Tensor:
        """Read a tensor without checks, in the type in which it is stored.

        Raises:
            ModelError: the type is unknown.
        """
        try:
            return self._load[name]()
        except (SafetensorError, RuntimeError) as error:
            raise ModelError(
                self._path, f"{name} of a known type", " ".join(str(error).split()), "fetch its files again"
            ) from None

    def linear(self, name: str, inner: int, outer: int, *, bias: bool = True) -> tuple[Tensor, Tensor | None]:
        """Read a linear layer: weight (outer, inner) and, if it has one, bias (outer,)."""
        weight = self.tensor(f"{name}.weight", (outer, inner))
        return weight, self.tensor(f"{name}.bias", (outer,)) if bias else None


def open_checkpoint(folder: EncoderFolder) -> Checkpoint:
    """Open the backbone's weights."""
    return open_files(
        str(folder.path),
        (folder.file(name) for name in folder.weights if not name.endswith(".index.json")),
        NAMES.get(folder.family, NAMES["bert"]).words,
    )


def open_files(path: str, files: Iterable[Path], words: str = NAMES["bert"].words) -> Checkpoint:
    """Open several files of weights as one checkpoint.

    Args:
        path: path of the model, for errors.
        files: safetensors files, or .bin files.
        words: name of the word table; see `Checkpoint`.
    """
    readers: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        readers |= _from_safetensors(file) if file.suffix == ".safetensors" else _from_pickle(file)
    return Checkpoint(path, readers, words)


def _from_safetensors(file: Path) -> dict[str, Callable[[], Tensor]]:
    try:
        opened = safe_open(str(file), framework="pt")
        names = opened.keys()
        return {name: partial(opened.get_tensor, name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelError(
            str(file), "a complete safetensors file", " ".join(str(error).split()), "fetch the file again"
        ) from None


def _from_pickle(file: Path) -> dict[str, Callable[[], Tensor]]:
    """Load a .bin file. It is a pickle; with weights_only it cannot run code."""
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(tensors, dict):
            raise UnpicklingError(f"{type(tensors).__name__}, and not tensors by name")
    except (UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise ModelError(
            str(file),
            "a file that contains only tensors (weights_only)",
            " ".join(str(error).split())[:200],
            "fetch the file again, or convert it to safetensors",
        ) from None
    return {str(name): tensor.detach for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def _prefix(path: str, names: Iterable[str], table: str) -> str:
    """Return the characters before the name of the word table; "" if there is none.

    If there are several tables, as in a checkpoint of two encoders, the encoder's is the one without prefix,
    or else the one under a prefix that transformers gives to a model with a head.
    """
    found = [name.removesuffix(table) for name in names if name.endswith(table)]
    if "" in found or not found:
        return ""
    chosen = found if len(found) == 1 else [prefix for prefix in found if prefix in _BASES]
    if len(chosen) == 1:
        return chosen[0]
    raise ModelError(
        path,
        f"weights of one encoder, with one {table}",
        ", ".join(f"{prefix}{table}" for prefix in sorted(found)[:3]),
        "save the encoder that is meant alone",
    )


def _current_name(name: str) -> str:
    """Rename a norm's gamma and beta, as in checkpoints converted from TensorFlow, to weight and bias."""
    module, _, parameter = name.rpartition(".")
    if "LayerNorm" not in module:
        return name
    return f"{module}.{_OLD_NAMES.get(parameter, parameter)}"

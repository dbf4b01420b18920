"""Check that loaded weights are finite, and that no weight of a layer is ignored.

Imports torch where a tensor is checked.
"""

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pipeline.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor


_log = logging.getLogger(__name__)
# constants that models compute, and that older checkpoints store
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq", "masked_bias", ".attn.bias", ".attention.bias")


def check_unused(where: str, names: Iterable[str], parts: Collection[str]) -> None:
    """Check that a model uses all stored weights of its parts, such as `encoder`.

    Weights outside these parts, usually of a head or a pooler, are logged for `manta -v`.

    Args:
        where: path of the model, for errors.
        names: stored weights that are not used.
        parts: first components of the names of the weights that are used.

    Raises:
        ModelError: a part has more weights than config.json describes, so its vectors would be wrong.
    """
    unused = sorted(name for name in names if not name.endswith(_BUFFERS))
    if inside := [name for name in unused if name.split(".")[0] in parts]:
        shown = f"{', '.join(inside[:3])}{' ...' if len(inside) > 3 else ''}"
        raise ModelError(
            where,
            "only weights that the model of config.json uses",
            f"{len(inside)} more: {shown}",
            "check that weights and config.json belong together, and merge adapters",
        )
    if unused:
        _log.info("%s: %d stored weights are not used: %s", where, len(unused), ", ".join(unused))


def check_numbers_type(where: str, name: str, tensor: "Tensor", *, integers: bool = False) -> None:
    """Check that a tensor holds all of its values, as floating-point numbers.

    Integers and Boolean values are weights that lack the scale by which they were quantized; complex numbers
    would lose a part.

    Args:
        integers: integers are allowed.

    Raises:
        ModelError: the tensor has another type, is sparse, or has no values.
    """
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_meta:
        kind = "no values" if tensor.is_meta else f"a sparse tensor of {kind}"
    elif tensor.is_floating_point() or (integers and kind.lstrip("u").startswith("int")):
        return
    raise ModelError(
        where, f"floating-point numbers in {name}", kind, "save the model with its weights as float32"
    )


def check_finite(where: str, name: str, tensor: "Tensor") -> None:
    """Check that a floating-point tensor is finite.

    A bad row of a word table affects only texts with that token, so encoding a few sentences would not find
    it. The sum of a tensor with NaN or infinity is not finite, and computing the sum takes a twentieth of the
    time of testing each value. Each value is tested only if the sum is not finite, which may be an overflow.

    Raises:
        ModelError: NaN or infinity; the message names the tensor and counts its bad rows, or values of a
            vector.
    """
    import torch

    if torch.isfinite(tensor.sum(dtype=torch.float32)):
        return
    bad = ~torch.isfinite(tensor)
    if count := int((bad.flatten(1).any(dim=1) if bad.dim() > 1 else bad).sum()):
        total = f"{tensor.shape[0] if bad.dim() else 1:,} {'rows' if bad.dim() > 1 else 'values'}"
        raise ModelError(
            where,
            f"finite numbers in {name}",
            f"NaN or infinity in {count:,} of {total}",
            "fetch its files again",
        )

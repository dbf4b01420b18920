"""Check while a model is loaded that its weights are finite, and log those that are not used.

Imports torch where a tensor is checked.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor


_log = logging.getLogger(__name__)


def log_unused(where: str, names: Iterable[str]) -> None:
    """Log the weights of a model that are stored but not used, for `manta -v`; usually a head or a pooler."""
    if unused := sorted(names):
        _log.info("%s: %d stored weights are not used: %s", where, len(unused), ", ".join(unused))


def check_finite(where: str, name: str, tensor: "Tensor") -> None:
    """Check that a floating-point tensor is finite.

    A bad row of a word table affects only texts with that token, so encoding a few sentences would not find
    it. The sum of a tensor with NaN or infinity is not finite, and takes a twentieth of the time of testing
    each value. Only if the sum is not finite, which may also be an overflow, is each value tested.

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

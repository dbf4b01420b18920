"""Weights that are NaN or infinite are found when a model is loaded.

Imports torch where a tensor is checked.
"""

from typing import TYPE_CHECKING

from pipeline.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor


def check_finite(where: str, name: str, tensor: "Tensor") -> None:
    """Refuse a floating-point tensor that holds NaN or infinity. One such row of a word table spoils only the
    texts with that token, so encoding a few sentences does not show it.

    The sum of a tensor that holds either is not finite, and takes a twentieth of the time of a look at each
    value; a finite tensor whose sum overflows is looked at in full.

    Raises:
        ModelError: names the tensor and counts its rows (of a vector: its values) that are not finite.
    """
    import torch

    if torch.isfinite(tensor.sum(dtype=torch.float32)):
        return
    bad = ~torch.isfinite(tensor)
    if count := int((bad.flatten(1).any(dim=1) if bad.dim() > 1 else bad).sum()):
        of = f"{tensor.shape[0] if bad.dim() else 1:,} {'rows' if bad.dim() > 1 else 'values'}"
        raise ModelError(
            where,
            f"finite numbers in {name}",
            f"NaN or infinity in {count:,} of {of}",
            "fetch its files again",
        )

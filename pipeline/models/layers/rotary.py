"""Rotary positions (Su et al. 2021): pairs of a head's values are rotated by angles that grow with position.

The pairs are (x[i], x[i + width / 2]), as in transformers.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Angles(NamedTuple):
    """Cosines and sines of the angles of some positions; the first half of the sines is negated."""

    cosines: Tensor
    """(tokens, 1, head width) float32"""
    sines: Tensor
    """(tokens, 1, head width) float32"""


def angles_of(positions: Tensor, base: float, width: int) -> Angles:
    """Compute the angles of positions.

    Args:
        positions: (tokens,).
        base: the wavelength of the slowest pair is almost 2 pi times this.
        width: values of a head, an even number.
    """
    steps = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device)
    # rounded as in transformers, because far positions magnify differences
    frequencies = 1.0 / (base ** (steps / width))
    angles = positions.float()[:, None] * frequencies  # bfloat16 has no integer between 256 and 258
    cosines, sines = angles.cos(), angles.sin()
    return Angles(torch.cat([cosines, cosines], dim=1)[:, None], torch.cat([-sines, sines], dim=1)[:, None])


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotate x (tokens, heads, head width) by the angles of its tokens, in float32."""
    return rotate_by(x, *angles)


def rotate_by(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate as `rotate` does, with the angles as two arguments, so that it can be compiled."""
    wide = x.float()
    rotated = torch.addcmul(wide * cosines, wide.roll(x.shape[-1] // 2, dims=-1), sines)
    return rotated.to(x.dtype)

"""Chains of transforms, such as standardize+components.

All affine steps are fitted from the moments of the raw vectors, because an affine map transforms moments too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.post import TRANSFORMS, Affine, FromMoments, Transform, load_transform, space_after
from pipeline.post.files import read_fit, verified
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.tensors import pack

Train = Callable[[str, Transform | None, str], Transform]
"""Fit a transform that needs more than moments, from its name, preceding transform and input space."""


@TRANSFORMS.register("chain")
@dataclass(frozen=True, eq=False)
class Chain:
    """Two or more transforms in sequence, each fitted on the output of the preceding ones.

    See `fit_transform`.
    """

    kind: ClassVar[str] = "chain"
    steps: tuple[Transform, ...]

    @property
    def space_id(self) -> str:
        """Name of the space of the first step's fit."""
        return self.steps[0].space_id

    @property
    def fitted_rows(self) -> int:
        """Smallest number of rows of a step's fit."""
        return min(step.fitted_rows for step in self.steps)

    @property
    def k(self) -> int:
        """Dimension of the output of the last step."""
        return self.steps[-1].k

    @property
    def shortage(self) -> str | None:
        """First shortage of a step."""
        return next((step.shortage for step in self.steps if step.shortage), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of all steps, prefixed with the step's kind."""
        return tuple(f"{step.kind}: {note}" for step in self.steps for note in step.notes)

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the steps' ids, in order."""
        return digest_of([self.kind, *(step.transform_id for step in self.steps)])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Transform x (n, d) by all steps: (n, k) float32."""
        return reduce(lambda moved, step: step(moved), self.steps, x)

    def affine(self) -> Affine | None:
        """Return the product of the steps, computed in float64; None if a step is not affine."""
        product: tuple[np.ndarray, np.ndarray] | None = None
        for step in self.steps:
            if (each := step.affine()) is None:
                return None
            matrix, bias = each.matrix.astype(np.float64), each.bias.astype(np.float64)
            product = (matrix, bias) if product is None else (matrix @ product[0], matrix @ product[1] + bias)
        assert product is not None
        return Affine(product[0].astype(np.float32), product[1].astype(np.float32))

    def to_bytes(self) -> bytes:
        """Write a safetensors file with the steps' files, one tensor of bytes each.

        Equal fits give equal bytes.
        """
        return pack(
            {str(number): np.frombuffer(step.to_bytes(), np.uint8) for number, step in enumerate(self.steps)},
            {
                "kind": self.kind,
                "steps": [step.kind for step in self.steps],
                "transform_id": self.transform_id,
            },
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "Chain":
        """Read the output of `to_bytes`; raise DataError if the file, or that of a step, is damaged."""
        tensors, header = read_fit(content, cls.kind, (), ("steps",))
        numbers = [str(number) for number in range(len(header["steps"]))]
        if len(numbers) < 2 or set(tensors) != set(numbers):
            raise DataError(
                "chain file",
                f"one tensor per step of {'+'.join(header['steps'])}",
                f"{len(tensors)}",
                "fit it again",
            )
        return verified(cls(tuple(load_transform(tensors[number].tobytes()) for number in numbers)), header)


def steps_of(transform: Transform) -> tuple[Transform, ...]:
    """Return the steps of a chain; a single transform is its only step."""
    return transform.steps if isinstance(transform, Chain) else (transform,)


def name_of(transform: Transform) -> str:
    """Return the name of a transform in whiten.transform: whitening, standardize+components ..."""
    return "+".join(step.kind for step in steps_of(transform))


def joined(steps: Sequence[Transform]) -> Transform | None:
    """Combine steps into one transform; None for no steps."""
    return Chain(tuple(steps)) if len(steps) > 1 else steps[0] if steps else None


def fit_transform(
    moments: Moments, settings: WhitenSettings, space_id: str, train: Train | None = None
) -> Transform:
    """Fit the transform named by whiten.transform on the vectors that `moments` describes.

    Args:
        moments: of the raw vectors; all affine steps are fitted from them, without another pass over the
            rows.
        settings: options of the steps.
        space_id: name of the space of the raw vectors.
        train: fits a last step that is not affine.

    Raises:
        ConfigError: a step is not affine and `train` is None.
        DataError: the vectors do not allow the fit.
    """
    steps: list[Transform] = []
    for name in settings.transform.split("+"):
        kind = TRANSFORMS[name]
        if isinstance(kind, FromMoments):
            step = kind.of_moments(moments, settings, space_id)
            affine = step.affine()
            assert affine is not None
            moments = moments.mapped(affine.matrix, affine.bias)
        elif train is not None:
            step = train(name, joined(steps), space_id)
        else:
            raise ConfigError(
                "whiten.transform",
                "steps that can be fitted from moments",
                name,
                "fit it with `manta whiten`",
            )
        steps.append(step)
        space_id = space_after(step)
    whole = joined(steps)
    assert whole is not None
    return whole


def check_transform(settings: WhitenSettings, *, indexed: bool) -> None:
    """Check whiten.transform without fitting anything.

    Args:
        settings: the settings to check.
        indexed: the transform is used in an index, which can hold affine maps only.

    Raises:
        ConfigError: the transform cannot be fitted, or cannot be used in an index.
    """
    names = settings.transform.split("+")
    for number, name in enumerate(names):
        if name in ("", Chain.kind):
            raise ConfigError(
                "whiten.transform",
                "the names of transforms",
                repr(settings.transform),
                "join them by +, such as standardize+components",
            )
        if not isinstance(TRANSFORMS[name], FromMoments):
            if indexed:
                raise ConfigError(
                    "whiten.transform",
                    "an affine map, which a faiss index can hold",
                    f"{name}, which is not affine",
                    f"use `manta whiten` and `manta evaluate` for a {name}; for the index choose whitening, "
                    "standardize, components or several of them joined by +",
                )
            if number < len(names) - 1:
                raise ConfigError(
                    "whiten.transform",
                    f"{name} as the last step",
                    settings.transform,
                    "put it last, because steps after it cannot be fitted from moments",
                )
    for setting, value, step in (("k", settings.k, "whitening"), ("remove", settings.remove, "components")):
        chosen = value is not None and value != WhitenSettings.model_fields[setting].default
        if chosen and step not in names:
            raise ConfigError(
                f"whiten.{setting}",
                f"{step} among the steps of whiten.transform",
                settings.transform,
                f"add {step}, or leave whiten.{setting} as it is",
            )

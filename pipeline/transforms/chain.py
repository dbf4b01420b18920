"""Chains of transforms, such as standardize+components.

All affine steps are fitted from the moments of the raw vectors: the moments of an affine step's output follow
from those of its input.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.tensors import pack
from pipeline.transforms.files import read_fit, verify_id
from pipeline.transforms.transform import (
    TRANSFORMS,
    Affine,
    FromMoments,
    Transform,
    load_transform,
    space_after,
)

Train = Callable[[str, Transform | None, str], Transform]
"""function that fits a transform for which moments do not suffice, from its name, the steps before it and the
id of its input space"""


@TRANSFORMS.register("chain")
@dataclass(frozen=True, eq=False)
class Chain:
    """Two or more transforms in sequence, each fitted on the output of the preceding ones."""

    kind: ClassVar[str] = "chain"
    steps: tuple[Transform, ...]

    @property
    def space_id(self) -> str:
        """Id of the space of the vectors that the first step was fitted to."""
        return self.steps[0].space_id

    @property
    def fitted_rows(self) -> int:
        """Smallest number of rows that a step was fitted on."""
        return min(step.fitted_rows for step in self.steps)

    @property
    def k(self) -> int:
        """Dimension of the output of the last step."""
        return self.steps[-1].k

    @property
    def shortage(self) -> str | None:
        """Shortage of the first step whose fit had too few rows; None if all had enough."""
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
        return reduce(lambda vectors, step: step(vectors), self.steps, x)

    def affine(self) -> Affine | None:
        """Return the product of the steps, computed in float64; None if a step is not affine."""
        affines = [affine for step in self.steps if (affine := step.affine()) is not None]
        if len(affines) < len(self.steps):
            return None
        matrix, bias = affines[0].matrix.astype(np.float64), affines[0].bias.astype(np.float64)
        for affine in affines[1:]:
            step_matrix = affine.matrix.astype(np.float64)
            matrix, bias = step_matrix @ matrix, step_matrix @ bias + affine.bias.astype(np.float64)
        return Affine(matrix.astype(np.float32), bias.astype(np.float32))

    def to_bytes(self) -> bytes:
        """Return the content of a safetensors file that holds each step's file as a tensor of bytes.

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
        """Read the output of `to_bytes`; raise DataError if it, or the file of a step, is corrupt."""
        tensors, header = read_fit(content, cls.kind, (), ("steps",))
        numbers = [str(number) for number in range(len(header["steps"]))]
        if len(numbers) < 2 or set(tensors) != set(numbers):
            raise DataError(
                "chain file",
                f"one tensor per step of {'+'.join(header['steps'])}",
                f"{len(tensors)} tensors",
                "fit it again",
            )
        return verify_id(cls(tuple(load_transform(tensors[number].tobytes()) for number in numbers)), header)


def steps_of(transform: Transform) -> tuple[Transform, ...]:
    """Return the steps of a chain; a single transform is its only step."""
    return transform.steps if isinstance(transform, Chain) else (transform,)


def name_of(transform: Transform) -> str:
    """Return the name that whiten.transform has for a transform: whitening, standardize+components ..."""
    return "+".join(step.kind for step in steps_of(transform))


def _combine(steps: Sequence[Transform]) -> Transform:
    """Combine one or more steps into one transform."""
    return Chain(tuple(steps)) if len(steps) > 1 else steps[0]


def fit_transform(
    moments: Moments, settings: WhitenSettings, space_id: str, train: Train | None = None
) -> Transform:
    """Fit the transform named by whiten.transform on the vectors that `moments` describes.

    Args:
        moments: moments of the raw vectors.
        settings: names and options of the steps.
        space_id: id of the space of the raw vectors.
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
            moments = moments.transform(affine.matrix, affine.bias)
        elif train is not None:
            step = train(name, _combine(steps) if steps else None, space_id)
        else:
            raise ConfigError(
                "whiten.transform",
                "steps that can be fitted from moments",
                name,
                "fit it with `manta whiten`",
            )
        steps.append(step)
        space_id = space_after(step)
    return _combine(steps)


def check_transform(settings: WhitenSettings, *, indexed: bool) -> None:
    """Check whiten.transform without fitting anything.

    Args:
        settings: the settings to check.
        indexed: True if an index will hold the transform, which must then be affine.

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
                    "standardize, components or several of them combine by +",
                )
            if number < len(names) - 1:
                raise ConfigError(
                    "whiten.transform",
                    f"{name} as the last step",
                    settings.transform,
                    "put it last, because steps after it cannot be fitted from moments",
                )
    for setting, step in (("k", "whitening"), ("remove", "components")):
        default = WhitenSettings.model_fields[setting].default
        if getattr(settings, setting) not in (None, default) and step not in names:
            raise ConfigError(
                f"whiten.{setting}",
                f"{step} among the steps of whiten.transform",
                settings.transform,
                f"add {step}, or leave whiten.{setting} as it is",
            )

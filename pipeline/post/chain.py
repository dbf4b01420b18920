"""Transforms in a row, such as standardize+components. Affine ones are fitted all from the moments of the raw vectors: an affine map moves moments too."""

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
"""(name, transform that comes before it or None, name of the space that it works in) -> a transform that moments alone do not fit"""


@TRANSFORMS.register("chain")
@dataclass(frozen=True, eq=False)
class Chain:
    """Two or more transforms, applied one after the other. Each but the first is fitted in the space that those before it make. Fitted by `fit_transform`."""

    kind: ClassVar[str] = "chain"
    steps: tuple[Transform, ...]

    @property
    def space_id(self) -> str:
        return self.steps[0].space_id

    @property
    def fitted_rows(self) -> int:
        """Rows of the fit that had the fewest."""
        return min(step.fitted_rows for step in self.steps)

    @property
    def k(self) -> int:
        """Width of what the last step gives."""
        return self.steps[-1].k

    @property
    def shortage(self) -> str | None:
        """The first one of a step."""
        return next((step.shortage for step in self.steps if step.shortage), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Those of all steps, each under its name."""
        return tuple(f"{step.kind}: {note}" for step in self.steps for note in step.notes)

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of those of the steps, in order."""
        return digest_of([self.kind, *(step.transform_id for step in self.steps)])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(n, d) -> (n, k) float32, through every step."""
        return reduce(lambda moved, step: step(moved), self.steps, x)

    def affine(self) -> Affine | None:
        """The product of the steps, multiplied in float64; None where a step is no affine map."""
        product: tuple[np.ndarray, np.ndarray] | None = None
        for step in self.steps:
            if (each := step.affine()) is None:
                return None
            matrix, bias = each.matrix.astype(np.float64), each.bias.astype(np.float64)
            product = (matrix, bias) if product is None else (matrix @ product[0], matrix @ product[1] + bias)
        assert product is not None
        return Affine(product[0].astype(np.float32), product[1].astype(np.float32))

    def to_bytes(self) -> bytes:
        """A safetensors file that holds the steps' own files, one tensor of bytes each; equal fits give equal bytes."""
        files = {
            str(place): np.frombuffer(step.to_bytes(), np.uint8) for place, step in enumerate(self.steps)
        }
        return pack(
            files,
            {
                "kind": self.kind,
                "steps": [step.kind for step in self.steps],
                "transform_id": self.transform_id,
            },
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "Chain":
        """What `to_bytes` wrote; DataError if the file, or that of a step, is damaged."""
        tensors, header = read_fit(content, cls.kind, (), ("steps",))
        if len(header["steps"]) < 2 or set(tensors) != {str(place) for place in range(len(header["steps"]))}:
            raise DataError(
                "chain file",
                f"one file for each of {'+'.join(header['steps'])}",
                f"{len(tensors)}",
                "fit it again",
            )
        return verified(
            cls(tuple(load_transform(tensors[str(place)].tobytes()) for place in range(len(tensors)))), header
        )


def steps_of(transform: Transform) -> tuple[Transform, ...]:
    """The transforms of a chain; a single one is the only step."""
    return transform.steps if isinstance(transform, Chain) else (transform,)


def name_of(transform: Transform) -> str:
    """As whiten.transform would name it: whitening, standardize+components ..."""
    return "+".join(step.kind for step in steps_of(transform))


def joined(steps: Sequence[Transform]) -> Transform | None:
    """The steps as one transform; None for none."""
    return Chain(tuple(steps)) if len(steps) > 1 else steps[0] if steps else None


def fit_transform(
    moments: Moments, settings: WhitenSettings, space_id: str, train: Train | None = None
) -> Transform:
    """What whiten.transform names, fitted on the vectors that `moments` describes: all affine steps from these moments, in one pass over the rows.

    train: fits a last step that is no affine map; without it such a step is a ConfigError. DataError where the vectors do not carry the fit.
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
            raise _untrained(name)
        steps.append(step)
        space_id = space_after(step)
    whole = joined(steps)
    assert whole is not None
    return whole


def check_transform(settings: WhitenSettings, *, indexed: bool) -> None:
    """ConfigError for a whiten.transform that cannot be fitted as named, or, where it is to be `indexed`, cannot stand in an index; nothing is fitted for it."""
    names = settings.transform.split("+")
    for place, name in enumerate(names):
        if name in ("", Chain.kind):
            raise ConfigError(
                "whiten.transform",
                "the names of a chain's steps",
                repr(settings.transform),
                "join them by +, such as standardize+components",
            )
        if not isinstance(TRANSFORMS[name], FromMoments):
            if indexed:
                raise ConfigError(
                    "whiten.transform",
                    "an affine map, which a faiss index can hold",
                    f"{name}, which is none",
                    _ELSEWHERE.format(name=name),
                )
            if place < len(names) - 1:
                raise ConfigError(
                    "whiten.transform",
                    f"{name} as the last step",
                    settings.transform,
                    "put it last: behind it no step can be fitted from moments",
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


_ELSEWHERE = "use `manta whiten` and `manta evaluate` for a {name}; for the index choose whitening, standardize, components or several of them joined by +"


def _untrained(name: str) -> ConfigError:
    return ConfigError("whiten.transform", "steps that moments alone fit", name, "fit it with `manta whiten`")

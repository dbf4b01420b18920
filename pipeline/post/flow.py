"""BERT-flow: embeddings as the images of standard normal vectors under an invertible network, fitted by likelihood. Li et al. 2020, section 3."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import ValidationError

from pipeline.errors import DataError
from pipeline.post import TRANSFORMS, Affine
from pipeline.post.files import checked_vectors, content_id, read_fit, verified
from pipeline.settings import FlowSettings
from pipeline.stats.tensors import pack

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.models.glow import Glow

ROWS_PER_DIMENSION = (
    5  # as for whitening: a flow learns one location and scale for each dimension too, and a network on top
)
_BLOCK = 256  # rows of every forward pass, the last one filled up: a vector comes out the same whatever its neighbours
_FACTS = (
    "settings",
    "fitted_rows",
    "heldout_rows",
    "unit_length",
    "curve",
    "metric",
    "space_id",
)  # of the file's header


@dataclass(frozen=True)
class Point:
    """How far a training was after so many steps. train: bits per dimension since the point before, None at the beginning; heldout: those of rows that it does not
    train on; dev: the figure on the dev task, None without one."""

    step: int
    train: float | None
    heldout: float
    dev: float | None = None


@TRANSFORMS.register("flow")
@dataclass(frozen=True, eq=False)
class Flow:
    """z = f(x), f invertible: what a trained `models.glow.Glow` computes. Not affine, so no index can hold it.

    tensors: all weights, and the flags that say which actnorms were initialised. fitted_rows: rows it was trained on, each counted once. unit_length: whether those
    had length 1. curve: the course of the training; metric: of its figures on the dev task, None without one.
    """

    kind: ClassVar[str] = "flow"
    settings: FlowSettings
    tensors: dict[str, np.ndarray]
    fitted_rows: int
    heldout_rows: int
    unit_length: bool
    curve: tuple[Point, ...]
    metric: str | None
    space_id: str

    @property
    def k(self) -> int:
        """Width, that of the vectors that it was fitted on."""
        return len(self.tensors["levels.0.0.actnorm.b"])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """z (n, d) float32 of x (n, d); DataError on another dimension, or a value that is not finite."""
        return self._mapped(self._glow, x)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """x (n, d) float32 of z (n, d)."""
        return self._mapped(self._glow.inverse, z)

    def affine(self) -> Affine | None:
        """None: it is no affine map."""
        return None

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the map and of the space it belongs to."""
        names = sorted(self.tensors)
        return content_id(
            [self.kind, self.space_id, *((name, *self.tensors[name].shape) for name in names)],
            *(self.tensors[name] for name in names),
        )

    @property
    def shortage(self) -> str | None:
        """Why this fit must not be used: fewer than five rows per dimension. None if there are enough."""
        if self.fitted_rows >= ROWS_PER_DIMENSION * self.k:
            return None
        return f"{self.fitted_rows:,} rows are too few for a flow on {self.k} dimensions: at least {ROWS_PER_DIMENSION * self.k:,} are needed"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the fit, in sentences."""
        return tuple(
            note
            for note in (self._likelihood(), self._dev(), self._constant(), self._input(), self.shortage)
            if note
        )

    def to_bytes(self) -> bytes:
        """A safetensors file; equal fits give equal bytes."""
        header = {name: getattr(self, name) for name in _FACTS if name not in ("settings", "curve")}
        settings = self.settings.model_dump(
            mode="json", exclude={"checkpoint_steps"}
        )  # of the run, not of the fit
        told = {"settings": settings, "curve": [asdict(point) for point in self.curve]}
        return pack(self.tensors, header | told | {"transform_id": self.transform_id, "kind": self.kind})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Flow":
        """What `to_bytes` wrote; DataError if the file is damaged or its content does not match its transform_id."""
        tensors, header = read_fit(content, cls.kind, ("levels.0.0.actnorm.b",), _FACTS)
        return verified(
            cls(tensors=tensors, **{name: header[name] for name in _FACTS} | _read(header)), header
        )

    @cached_property
    def _glow(self) -> "Glow":
        import torch

        from pipeline.models.glow import Glow

        glow = Glow(self.k, self.settings)
        try:
            glow.load_state_dict(
                {name: torch.from_numpy(tensor.copy()) for name, tensor in self.tensors.items()}
            )
        except RuntimeError as error:
            raise DataError(
                "flow file",
                "the tensors of its settings",
                " ".join(str(error).split())[:200],
                "the file is damaged: fit it again",
            ) from None
        return glow.eval().requires_grad_(False)

    def _mapped(self, through: "Callable[[Tensor], Tensor]", x: np.ndarray) -> np.ndarray:
        import torch

        checked_vectors(x, self.k)
        made = np.empty(x.shape, np.float32)
        block = torch.zeros(_BLOCK, self.k)
        for start in range(0, len(x), _BLOCK):
            rows = torch.from_numpy(x[start : start + _BLOCK].astype(np.float32))
            block[: len(rows)] = rows
            made[start : start + len(rows)] = through(block).numpy()[: len(rows)]
        return made

    def _likelihood(self) -> str:
        first, last = self.curve[0], self.curve[-1]
        ended = f"{last.heldout:.4f} on {self.heldout_rows:,} rows held out" + (
            f", {last.train:.4f} on those it was trained on" if last.train is not None else ""
        )
        return f"bits per dimension went from {first.heldout:.4f} to {ended}, in {last.step:,} steps over {self.fitted_rows:,} rows"

    def _dev(self) -> str | None:
        told = [(point.dev, point.step) for point in self.curve if point.dev is not None]
        if not told:
            return None
        (best, step), (ended, end) = max(told, key=lambda each: (each[0], -each[1])), told[-1]
        when = f"after step {step:,}" if step else "before any training"
        peaked = (
            f"; it was best {when}, {best:.4f}: likelihood went on improving after that" if step < end else ""
        )
        return f"{self.metric} on the dev task went from {told[0][0]:.4f} after initialisation to {ended:.4f}{peaked}"

    def _constant(self) -> str | None:
        constant = int((~self.tensors["levels.0.0.actnorm.varies"]).sum())
        words = "has" if constant == 1 else "have"
        return (
            f"{constant} of {self.k} dimensions {words} no variance and kept the scale of the others"
            if constant
            else None
        )

    def _input(self) -> str | None:
        if not self.unit_length:
            return None
        return "the vectors have length 1, as the encoder's Normalize module makes them; a flow is meant for vectors as pooled (encoder.normalize=false)"


def _read(header: dict[str, Any]) -> dict[str, Any]:
    try:
        curve = tuple(Point(**point) for point in header["curve"])
        return {"settings": FlowSettings.model_validate(header["settings"]), "curve": curve}
    except (TypeError, ValidationError) as error:
        found = " ".join(str(error).split())[:200]
        raise DataError(
            "flow file",
            "the settings and the curve of a flow",
            found,
            "use the version of manta that wrote it, or fit it again",
        ) from None

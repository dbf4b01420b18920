"""BERT-flow: an invertible network maps embeddings to a standard normal distribution.

Source: Li et al. 2020, section 3.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import ValidationError

from pipeline.errors import DataError
from pipeline.settings import FlowSettings
from pipeline.stats.tensors import pack
from pipeline.transforms.files import check_vectors, content_id, read_fit, too_few_rows, verify_id
from pipeline.transforms.transform import TRANSFORMS, Affine

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.models.layers.glow import Glow

# As for whitening: a flow also learns a location and a scale per dimension, besides the weights of a network.
ROWS_PER_DIMENSION = 5
_BLOCK = 256  # rows per forward pass, always the same, so that a result does not depend on the other rows
# Fields of Flow in the header of its file.
_HEADER_FIELDS = ("settings", "fitted_rows", "heldout_rows", "unit_length", "curve", "metric", "space_id")


@dataclass(frozen=True)
class FlowPoint:
    """Progress of a training after some steps."""

    step: int
    """number of steps"""
    train: float | None
    """mean bits per dimension of the rows trained on since the previous point; None at the start"""
    heldout: float
    """bits per dimension of held-out rows"""
    dev: float | None = None
    """score on the dev task; None without one"""


@TRANSFORMS.register("flow")
@dataclass(frozen=True, eq=False)
class Flow:
    """Invertible map z = f(x) of a trained `Glow`; not affine, so that no index can hold it."""

    kind: ClassVar[str] = "flow"
    settings: FlowSettings
    """settings of the network and the training"""
    tensors: dict[str, np.ndarray]
    """state dict of the network: all weights, and which actnorms are initialized"""
    fitted_rows: int
    """number of distinct rows of the training"""
    heldout_rows: int
    """number of held-out rows"""
    unit_length: bool
    """True if the rows had length 1"""
    curve: tuple[FlowPoint, ...]
    """progress of the training"""
    metric: str | None
    """name of the score on the dev task; None without one"""
    space_id: str
    """id of the space of the rows"""

    @property
    def k(self) -> int:
        """Dimension of input and output."""
        return len(self.tensors["levels.0.0.actnorm.b"])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map x (n, d) to z (n, d) float32; DataError for another dimension or values that are not finite."""
        return self._apply(self._glow, x)

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """Map z (n, d) to x (n, d) float32."""
        return self._apply(self._glow.inverse, z)

    def affine(self) -> Affine | None:
        """Return None: the map is not affine."""
        return None

    @cached_property
    def transform_id(self) -> str:
        """sha256 (hex) of the weights and the id of their space."""
        names = sorted(self.tensors)
        return content_id(
            [self.kind, self.space_id, *((name, *self.tensors[name].shape) for name in names)],
            *(self.tensors[name] for name in names),
        )

    @property
    def shortage(self) -> str | None:
        """Reason why the transform must not be used: fewer than five rows per dimension; else None."""
        return too_few_rows(
            self.fitted_rows, ROWS_PER_DIMENSION * self.k, f"for a flow on {self.k} dimensions"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the fit, for reports."""
        notes = (
            self._likelihood_note(),
            self._dev_note(),
            self._constant_note(),
            self._unit_length_note(),
            self.shortage,
        )
        return tuple(note for note in notes if note)

    def to_bytes(self) -> bytes:
        """Return the content of the transform's file; equal fits give equal bytes."""
        return pack(
            self.tensors,
            {
                **{name: getattr(self, name) for name in _HEADER_FIELDS},
                # checkpoint_steps is an option of the run, not of the fit.
                "settings": self.settings.model_dump(mode="json", exclude={"checkpoint_steps"}),
                "curve": [asdict(point) for point in self.curve],
                "transform_id": self.transform_id,
                "kind": self.kind,
            },
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "Flow":
        """Read the output of `to_bytes`.

        Raises:
            DataError: the file is corrupt or does not match its transform_id.
        """
        tensors, header = read_fit(content, cls.kind, ("levels.0.0.actnorm.b",), _HEADER_FIELDS)
        return verify_id(
            cls(
                tensors=tensors,
                **{name: header[name] for name in _HEADER_FIELDS} | _settings_and_curve(header),
            ),
            header,
        )

    @cached_property
    def _glow(self) -> "Glow":
        import torch

        from pipeline.models.layers.glow import Glow

        glow = Glow(self.k, self.settings)
        try:
            glow.load_state_dict(
                {name: torch.from_numpy(tensor.copy()) for name, tensor in self.tensors.items()}
            )
        except RuntimeError as error:
            raise DataError(
                "flow file",
                "tensors that match its settings",
                " ".join(str(error).split())[:200],
                "the file is damaged; fit it again",
            ) from None
        return glow.eval().requires_grad_(False)

    def _apply(self, function: "Callable[[Tensor], Tensor]", x: np.ndarray) -> np.ndarray:
        """Apply a function of (_BLOCK, k) tensors to the rows of x (n, k); the last block is padded."""
        import torch

        check_vectors(x, self.k)
        result = np.empty(x.shape, np.float32)
        block = torch.zeros(_BLOCK, self.k)
        for start in range(0, len(x), _BLOCK):
            rows = torch.from_numpy(x[start : start + _BLOCK].astype(np.float32))
            block[: len(rows)] = rows
            result[start : start + len(rows)] = function(block).numpy()[: len(rows)]
        return result

    def _likelihood_note(self) -> str:
        first, last = self.curve[0], self.curve[-1]
        train = "" if last.train is None else f", {last.train:.4f} on the training rows"
        return (
            f"bits per dimension went from {first.heldout:.4f} to {last.heldout:.4f} "
            f"on {self.heldout_rows:,} held-out rows{train}, "
            f"in {last.step:,} steps over {self.fitted_rows:,} rows"
        )

    def _dev_note(self) -> str | None:
        scores = [(point.dev, point.step) for point in self.curve if point.dev is not None]
        if not scores:
            return None
        best, best_step = max(scores, key=lambda point: (point[0], -point[1]))
        last, last_step = scores[-1]
        when = f"after step {best_step:,}" if best_step else "before any training"
        peak = (
            f"; it was best {when}, {best:.4f}, and likelihood kept improving"
            if best_step < last_step
            else ""
        )
        return (
            f"{self.metric} on the dev task went from {scores[0][0]:.4f} after initialization "
            f"to {last:.4f}{peak}"
        )

    def _constant_note(self) -> str | None:
        constant = int((~self.tensors["levels.0.0.actnorm.varies"]).sum())
        if not constant:
            return None
        return (
            f"{constant} of {self.k} dimensions {'has' if constant == 1 else 'have'} no variance "
            "and kept the scale of the others"
        )

    def _unit_length_note(self) -> str | None:
        if not self.unit_length:
            return None
        return (
            "the vectors have length 1, from the encoder's Normalize module; a flow is meant for vectors "
            "before normalization (encoder.normalize=false)"
        )


def _settings_and_curve(header: dict[str, Any]) -> dict[str, Any]:
    """Parse the settings and the curve in a header; raise DataError if they are invalid."""
    try:
        return {
            "settings": FlowSettings.model_validate(header["settings"]),
            "curve": tuple(FlowPoint(**point) for point in header["curve"]),
        }
    except (TypeError, ValidationError) as error:
        raise DataError(
            "flow file",
            "the settings and the curve of a flow",
            " ".join(str(error).split())[:200],
            "use the version of manta that wrote it, or fit it again",
        ) from None

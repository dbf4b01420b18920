"""Training of the BERT-flow transform, with checkpoints from which it resumes bit for bit."""

import math
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.models.layers.glow import Glow
from pipeline.settings import FlowSettings
from pipeline.stats.tensors import pack, unpack
from pipeline.transforms.compare import DevTask, Map
from pipeline.transforms.flow import Flow, FlowPoint

_KIND = "flow checkpoint"
_HELD_OUT_CHUNK = 1_024  # held-out rows of one forward pass
_UNIT_NORM_TOLERANCE = 1e-3  # half precision has an error of 5e-4
_REMEDY = "lower whiten.flow.learning_rate, or check the steps of whiten.transform before the flow"


class Diverged(DataError):
    """The likelihood or its gradient is not finite. Training again would end in the same way."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Data to evaluate a flow on during its training."""

    rows: np.ndarray
    """(n, d) inputs of the flow that are not trained on"""
    dev: DevTask | None = None
    """task that the flow is scored on, or None"""
    prepare: Map = lambda raw: raw
    """transforms the encoder's vectors into inputs of the flow"""


class FlowTrainer:
    """Minimize the bits per dimension with Adam.

    A weight decay, if there is one, applies as in AdamW, and only to the matrices of the couplings, because
    it would pull scales and locations to zero.

    The initial weights follow from the seed, and no random number is drawn later; the caller's order of the
    rows is a function of `step`. So a checkpoint needs no random state and no position in the data.
    """

    def __init__(self, dim: int, settings: FlowSettings, device: torch.device) -> None:
        self.settings, self._device = settings, device
        self.glow = Glow(dim, settings).to(device)
        self._parameters = dict(self.glow.named_parameters())
        matrices = [parameter for parameter in self._parameters.values() if parameter.ndim == 2]
        others = [parameter for parameter in self._parameters.values() if parameter.ndim != 2]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
        self.step = 0
        self.curve: list[FlowPoint] = []
        self._losses: list[float] = []  # losses since the last plotted point

    def initialize(self, batch: np.ndarray, held_out: HeldOut) -> None:
        """Initialize the actnorms on the first batch (n, d), and evaluate.

        Raises:
            DataError: all rows of the batch are equal.
        """
        with torch.no_grad():
            self.glow(self._tensor(batch))
        if not self.glow.varies.any():
            raise DataError(
                "flow",
                "different rows",
                f"{len(batch)} equal rows in the first batch",
                "check the vectors, or use more of them",
            )
        self.evaluate(held_out)

    def train_step(self, batch: np.ndarray) -> None:
        """Take one optimizer step on rows (n, d).

        Raises:
            Diverged: the loss or its gradient is not finite; the weights have not changed.
        """
        self._optimizer.zero_grad()
        loss = self.glow.bits_per_dimension(self._tensor(batch))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.glow.parameters(), self.settings.clip)
        bits = loss.item()
        if not math.isfinite(bits) or not math.isfinite(norm.item()):
            raise Diverged(
                "flow training",
                "a finite likelihood and gradient",
                f"{bits} bits, gradient {norm.item()} at step {self.step + 1:,}",
                _REMEDY,
            )
        self._optimizer.step()
        self.step += 1
        self._losses.append(bits)

    def evaluate(self, held_out: HeldOut) -> None:
        """Evaluate the flow on held-out data, and add a point to the curve.

        Raises:
            Diverged: the likelihood of held-out rows is not finite.
        """
        with torch.no_grad():
            parts = [
                self.glow.log_density(self._tensor(part)).double().sum()
                for part in np.array_split(held_out.rows, -(-len(held_out.rows) // _HELD_OUT_CHUNK))
            ]
        bits = -float(sum(parts)) / (held_out.rows.size * math.log(2))
        if not math.isfinite(bits):
            raise Diverged(
                "flow training",
                "a finite likelihood of the held-out rows",
                f"{bits} bits at step {self.step:,}",
                _REMEDY,
            )
        train = float(np.mean(self._losses)) if self._losses else None
        dev = (
            None
            if held_out.dev is None
            else held_out.dev.score(lambda raw: self._transform(held_out.prepare(raw)))
        )
        self.curve.append(FlowPoint(self.step, train, bits, dev))
        self._losses = []

    def to_bytes(self) -> bytes:
        """Serialize a checkpoint: weights, optimizer state, step, curve, and losses since its last point."""
        tensors = {f"model.{name}": tensor.cpu().numpy() for name, tensor in self.glow.state_dict().items()}
        for name, parameter in self._parameters.items():
            tensors |= {
                f"optimizer.{name}.{key}": value.cpu().numpy()
                for key, value in self._optimizer.state[parameter].items()
            }
        tensors["losses"] = np.asarray(self._losses, np.float64)
        return pack(
            tensors, {"kind": _KIND, "step": self.step, "curve": [asdict(point) for point in self.curve]}
        )

    def restore(self, checkpoint: bytes) -> None:
        """Restore the state returned by `to_bytes`. Raises DataError if the bytes are damaged."""
        tensors, header = unpack(checkpoint, "losses", kind=_KIND)
        values = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
        self.glow.load_state_dict({name: values[f"model.{name}"] for name in self.glow.state_dict()})
        for name, parameter in self._parameters.items():
            state = {key: values[f"optimizer.{name}.{key}"] for key in ("exp_avg", "exp_avg_sq")}
            state["step"] = values[f"optimizer.{name}.step"].reshape(())
            self._optimizer.state[parameter] = {key: value.to(self._device) for key, value in state.items()}
        self.step, self.curve = header["step"], [FlowPoint(**point) for point in header["curve"]]
        self._losses = tensors["losses"].tolist()

    def to_flow(self, held_out: HeldOut, rows: int, space_id: str) -> Flow:
        """Return the trained flow as a transform.

        Args:
            held_out: held-out data of the training.
            rows: number of rows that the flow was trained on.
            space_id: identity of the encoder that gave the rows.
        """
        tensors = {name: tensor.cpu().numpy().copy() for name, tensor in self.glow.state_dict().items()}
        norms = np.linalg.norm(held_out.rows, axis=1)
        unit_length = bool((np.abs(norms - 1) < _UNIT_NORM_TOLERANCE).all())
        metric = None if held_out.dev is None else held_out.dev.metric
        return Flow(
            self.settings, tensors, rows, len(held_out.rows), unit_length, tuple(self.curve), metric, space_id
        )

    def _transform(self, rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(self.glow(self._tensor(rows)).cpu().numpy())

    def _tensor(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows, np.float32)).to(self._device)

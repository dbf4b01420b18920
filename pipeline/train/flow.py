"""A flow in training: one step after the other, its course, and checkpoints from which it goes on to the same bits."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.models.glow import Glow
from pipeline.post.compare import Dev, Map
from pipeline.post.flow import Flow, FlowPoint
from pipeline.settings import FlowSettings
from pipeline.stats.tensors import pack, unpack

_KIND = "flow checkpoint"
_ROWS = 1_024  # held-out rows of one forward pass
_UNIT_LENGTH = 1e-3  # how far a norm may be from 1; half precision is off by 5e-4
_REMEDY = "lower whiten.flow.learning_rate, or look at what whiten.transform does before the flow"


class Diverged(DataError):
    """The likelihood or its gradient is not finite any more: the training cannot go on, and would come to the same end again."""


@dataclass(frozen=True, eq=False)
class Held:
    """What a training is measured on. rows (n, d): vectors that it does not train on, as the flow gets them; dev: raw vectors of a task, which go through `prepare`
    to become so, or None."""

    rows: np.ndarray
    dev: Dev | None = None
    prepare: Map = lambda raw: raw


class FlowFit:
    """AdamW on the bits per dimension; weight decay on the couplings' matrices alone, since that of a scale or a location pulls away from what the data say.

    No random number is drawn after the initial weights, which follow from the seed: `step`, of which the order of the rows is a function, stands for the state of
    any generator and for the place in the data.
    """

    def __init__(self, dim: int, settings: FlowSettings, device: torch.device) -> None:
        self.settings, self._device = settings, device
        self.glow = Glow(dim, settings).to(device)
        self._named = dict(self.glow.named_parameters())
        matrices = [parameter for parameter in self._named.values() if parameter.ndim == 2]
        others = [parameter for parameter in self._named.values() if parameter.ndim != 2]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
        self.step = 0
        self.curve: list[FlowPoint] = []
        self._losses: list[float] = []

    def begin(self, batch: np.ndarray, held: Held) -> None:
        """Initialise the actnorms on the first batch (n, d), and measure. DataError where its rows are all equal."""
        with torch.no_grad():
            self.glow(self._tensor(batch))
        if not self.glow.varies.any():
            raise DataError(
                "flow",
                "rows that differ",
                f"{len(batch)} equal ones in the first batch",
                "look at the vectors, or give more of them",
            )
        self.measure(held)

    def take(self, batch: np.ndarray) -> None:
        """One step on (n, d) rows. Diverged where the loss or its gradient is not finite; the weights are then those of before."""
        self._optimizer.zero_grad()
        loss = self.glow.bits_per_dimension(self._tensor(batch))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.glow.parameters(), self.settings.clip)
        if not math.isfinite(found := loss.item()) or not math.isfinite(norm.item()):
            raise Diverged(
                "flow training",
                "a finite likelihood and gradient",
                f"{found} bits, gradient {norm.item()} at step {self.step + 1:,}",
                _REMEDY,
            )
        self._optimizer.step()
        self.step += 1
        self._losses.append(found)

    def measure(self, held: Held) -> None:
        """Add a point to the curve. Diverged where held-out rows have no finite likelihood."""
        with torch.no_grad():
            parts = [
                self.glow.log_density(self._tensor(part)).double().sum()
                for part in np.array_split(held.rows, -(-len(held.rows) // _ROWS))
            ]
        bits = -float(sum(parts)) / (held.rows.size * math.log(2))
        if not math.isfinite(bits):
            raise Diverged(
                "flow training",
                "a finite likelihood of the rows held out",
                f"{bits} bits at step {self.step:,}",
                _REMEDY,
            )
        train = float(np.mean(self._losses)) if self._losses else None
        dev = None if held.dev is None else held.dev.score(lambda raw: self._mapped(held.prepare(raw)))
        self.curve.append(FlowPoint(self.step, train, bits, dev))
        self._losses = []

    def to_bytes(self) -> bytes:
        """A checkpoint: weights, the optimizer's moments, the step, the curve, and the losses since its last point."""
        tensors = {f"model.{name}": tensor.cpu().numpy() for name, tensor in self.glow.state_dict().items()}
        for name, parameter in self._named.items():
            tensors |= {
                f"optimizer.{name}.{what}": value.cpu().numpy()
                for what, value in self._optimizer.state[parameter].items()
            }
        tensors["losses"] = np.asarray(self._losses, np.float64)
        return pack(
            tensors, {"kind": _KIND, "step": self.step, "curve": [asdict(point) for point in self.curve]}
        )

    def go_on_from(self, checkpoint: bytes) -> None:
        """Everything as it was when `to_bytes` was called. DataError for a file that is damaged."""
        tensors, header = unpack(checkpoint, "losses", kind=_KIND)
        values = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
        self.glow.load_state_dict(
            {
                name.removeprefix("model."): value
                for name, value in values.items()
                if name.startswith("model.")
            }
        )
        for name, parameter in self._named.items():
            state = {what: values[f"optimizer.{name}.{what}"] for what in ("exp_avg", "exp_avg_sq")}
            step = values[f"optimizer.{name}.step"].reshape(())
            self._optimizer.state[parameter] = {
                what: value.to(self._device) for what, value in state.items()
            } | {"step": step.to(self._device)}
        self.step, self.curve = header["step"], [FlowPoint(**point) for point in header["curve"]]
        self._losses = tensors["losses"].tolist()

    def fitted(self, held: Held, rows: int, space_id: str) -> Flow:
        """The flow as it stands, fitted on so many rows of that space."""
        tensors = {name: tensor.cpu().numpy().copy() for name, tensor in self.glow.state_dict().items()}
        unit_length = bool((np.abs(np.linalg.norm(held.rows, axis=1) - 1) < _UNIT_LENGTH).all())
        metric = None if held.dev is None else held.dev.metric
        return Flow(
            self.settings, tensors, rows, len(held.rows), unit_length, tuple(self.curve), metric, space_id
        )

    def _mapped(self, rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(self.glow(self._tensor(rows)).cpu().numpy())

    def _tensor(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows, np.float32)).to(self._device)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch with one thread inside: matrices as narrow as a flow's gain nothing from more, and sums are then made in one order on any machine of a kind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

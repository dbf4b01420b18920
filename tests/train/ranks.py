"""The work of each process in the tests of gathering."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.errors import DataError
from pipeline.objectives import NO_PEERS, Batch, Loss, Objective, Peers
from pipeline.objectives.simcse import SimCSE
from pipeline.objectives.supervised import Supervised
from pipeline.train.gather import Ranks, average_gradients
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, gradients, texts
from tests.train.four_pairs import four_pairs, objective_of_four

ROWS = 6  # of the whole batch: 2 and 3 processes take equal parts
COLUMNS = {
    "anchor": texts(ROWS, 1),
    "positive": texts(ROWS, 2),
    "negative": texts(ROWS, 3),
    "text": texts(ROWS, 4),
}
ALIKE = (
    np.random.default_rng(0).random((ROWS, 2 * ROWS)) < 0.3
)  # false negatives among positives, then negatives


class Detached(Ranks):
    """Wrong gathering: candidates of other ranks have no graph."""

    def gather(self, z: Tensor) -> Tensor:
        parts = list(super().gather(z.detach()).chunk(dist.get_world_size()))
        parts[self.rank] = z
        return torch.cat(parts)


class Full(Supervised):
    """Wrong by a factor: every rank computes the loss of all rows, with a graph through its own rows only."""

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        peers = Detached()
        gathered = tuple(peers.gather(rep) for rep in reps)
        return super().loss(gathered, batch_of({"anchor": [""] * len(gathered[0])}))


def objectives() -> dict[str, Objective]:
    """Return objectives, equal on every rank and in the parent."""
    torch.manual_seed(5)
    with_negatives = Supervised(
        Tiny(seed=1), temperature=0.3, head="cls_mlp", hard_negative_weight=2.0
    ).double()
    return {"supervised": with_negatives, "simcse": SimCSE(Tiny(seed=2), temperature=0.3).double()}


def part(rank: int, world: int, peers: Peers = NO_PEERS, alike: np.ndarray | None = None) -> Batch:
    """Return the rank's slice of the whole batch."""
    rows = np.arange(ROWS * rank // world, ROWS * (rank + 1) // world)
    return replace(
        batch_of(COLUMNS, peers).of_rows(rows),
        false_negatives={} if alike is None else dict.fromkeys(("text", "anchor"), alike[rows]),
    )


def candidates(name: str) -> np.ndarray:
    """Return the false negatives among the candidates of an objective."""
    return ALIKE[:, : ROWS if name == "simcse" else None]


def work(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world)
    found: dict[str, Any] = {"gathered": Ranks().gather(torch.arange(4.0).reshape(2, 2) + 10 * rank)}
    for name, objective in objectives().items():
        for chunk_rows in (None, 1):
            for alike in (False, True):
                batch = part(rank, world, Ranks(), candidates(name) if alike else None)
                outcome = loss_and_backward(objective, batch, chunk_rows=chunk_rows)
                found[f"{name} {chunk_rows} {alike}"] = outcome.loss.total, gradients(objective)
        loss_and_backward(objective, part(rank, world, Ranks()))
        loss_and_backward(objective, part(rank, world, Ranks()))
        found[f"{name} twice"] = gradients(objective)
    found["errors"] = [message(rank, world, chunk_rows) for chunk_rows in (None, 1)]
    found["unused"] = unused(rank)
    if world == 2:
        found |= variants(rank)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def message(rank: int, world: int, chunk_rows: int | None) -> str:
    """Return the error that a rank gets if rank 0 has an additional row."""
    objective = objectives()["simcse"]
    batch = part(0, 1, Ranks()).of_rows(np.arange(2 + (rank == 0)))
    try:
        loss_and_backward(objective, batch, chunk_rows=chunk_rows)
    except DataError as error:
        return str(error)
    return "no error"


def unused(rank: int) -> list[Tensor | None]:
    """Average gradients: one that only rank 0 has, one that no rank has, one in half precision."""
    parameters = [
        torch.nn.Parameter(torch.zeros(2)),
        torch.nn.Parameter(torch.zeros(2)),
        torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)),
    ]
    if rank == 0:
        parameters[0].grad = torch.tensor([2.0, 4.0])
    parameters[2].grad = torch.full((3,), float(rank), dtype=torch.bfloat16)
    average_gradients(parameters)
    return [parameter.grad for parameter in parameters]


def variants(rank: int) -> dict[str, Any]:
    """Return the gradients of the four pairs by each way of gathering."""
    found = {}
    full = Full(objective_of_four().encoder, temperature=0.5, head="none")
    ways = {
        "right": (objective_of_four(), Ranks()),
        "detached": (objective_of_four(), Detached()),
        "local": (objective_of_four(), NO_PEERS),
        "full": (full, NO_PEERS),
    }
    for name, (objective, peers) in ways.items():
        batch = four_pairs(2 * rank, 2 * rank + 2, peers)
        own = objective.loss(tuple(view.encode() for view in objective.views(batch)), batch).total.item()
        outcome = loss_and_backward(objective, batch)
        found[name] = outcome.loss.total, own, gradients(objective)["encoder.weight"]
    return found

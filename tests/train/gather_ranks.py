"""Losses and gradients of one of several ranks, for test_gather.py."""

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
from tests.objectives.tiny import Tiny, batch_of, pop_gradients, texts
from tests.train.four_pairs import four_pairs, objective_of_four

ROWS = 6  # of the whole batch: 2 and 3 processes take equal parts
TOKENS = 25  # in a chunk; the rows of ranks fill unequal numbers of such chunks
COLUMNS = {
    "anchor": texts(ROWS, 1),
    "positive": texts(ROWS, 2),
    "negative": texts(ROWS, 3),
    "text": texts(ROWS, 4),
}
# False negatives: for each row, those among the positives of all rows, followed by those among the negatives.
ALIKE = np.random.default_rng(0).random((ROWS, 2 * ROWS)) < 0.3


class Detached(Ranks):
    """Wrong gathering: candidates of other ranks have no gradient."""

    def gather(self, z: Tensor) -> Tensor:
        parts = list(super().gather(z.detach()).chunk(dist.get_world_size()))
        parts[self.rank] = z
        return torch.cat(parts)


class LossOfAllRows(Supervised):
    """Wrong by a factor: every rank computes the loss of all rows, with a gradient of its own rows only."""

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        gathered = tuple(Detached().gather(rep) for rep in reps)
        return super().loss(gathered, batch_of({"anchor": [""] * len(gathered[0])}))


def objectives() -> dict[str, Objective]:
    """Return objectives that are equal on every rank and in the test's own process."""
    torch.manual_seed(5)
    with_negatives = Supervised(
        Tiny(seed=1), temperature=0.3, head="cls_mlp", hard_negative_weight=2.0
    ).double()
    return {"supervised": with_negatives, "simcse": SimCSE(Tiny(seed=2), temperature=0.3).double()}


def part(rank: int, world: int, peers: Peers = NO_PEERS, alike: np.ndarray | None = None) -> Batch:
    """Return the rank's slice of the batch; `alike` marks false negatives of the whole batch."""
    rows = np.arange(ROWS * rank // world, ROWS * (rank + 1) // world)
    return replace(
        batch_of(COLUMNS, peers).of_rows(rows),
        false_negatives={} if alike is None else dict.fromkeys(("text", "anchor"), alike[rows]),
    )


def false_negatives(name: str) -> np.ndarray:
    """Return the false negatives among the candidates of an objective: (rows, candidates) bool."""
    return ALIKE[:, : ROWS if name == "simcse" else None]


def work(rank: int, world: int, folder: Path) -> None:
    """Run all cases as one of the ranks, and save their results."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    found: dict[str, Any] = {"gathered": Ranks().gather(torch.arange(4.0).reshape(2, 2) + 10 * rank)}
    for name, objective in objectives().items():
        for chunk_rows in (None, 1):
            for masked in (False, True):
                batch = part(rank, world, Ranks(), false_negatives(name) if masked else None)
                outcome = loss_and_backward(objective, batch, chunk_rows=chunk_rows)
                found[f"{name} {chunk_rows} {masked}"] = outcome.loss.total, pop_gradients(objective)
        passes = count_passes(objective, part(rank, world, Ranks()), chunk_tokens=TOKENS)
        found[f"{name} tokens"] = passes, pop_gradients(objective)
        loss_and_backward(objective, part(rank, world, Ranks()))
        loss_and_backward(objective, part(rank, world, Ranks()))
        found[f"{name} twice"] = pop_gradients(objective)
    found["errors"] = [error_of_unequal_ranks(rank, chunk_rows) for chunk_rows in (None, 1)]
    found["averaged"] = averaged_gradients(rank)
    if world == 2:
        found |= ways_of_gathering(rank)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def count_passes(objective: Objective, batch: Batch, chunk_tokens: int) -> int:
    """Compute loss and gradient in chunks of tokens; return the number of the encoder's forward passes."""
    passes = list[int]()
    handle = objective.encoder.register_forward_hook(lambda module, texts, z: passes.append(len(z)))
    loss_and_backward(objective, batch, chunk_tokens=chunk_tokens)
    handle.remove()
    return len(passes)


def error_of_unequal_ranks(rank: int, chunk_rows: int | None) -> str:
    """Return the error message of this rank if rank 0 has three rows, and the others have two."""
    objective = objectives()["simcse"]
    batch = part(0, 1, Ranks()).of_rows(np.arange(3 if rank == 0 else 2))
    try:
        loss_and_backward(objective, batch, chunk_rows=chunk_rows)
    except DataError as error:
        return str(error)
    return "no error"


def averaged_gradients(rank: int) -> list[Tensor | None]:
    """Average three gradients: one that only rank 0 has, one that no rank has, one in half precision."""
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


def ways_of_gathering(rank: int) -> dict[str, dict[str, Any]]:
    """Compute a step on the four pairs, of which each rank has two, by right and by wrong gathering.

    Returns:
        For each way the mean loss of all ranks, the loss of this rank, and the mean gradient.
    """
    found = {}
    loss_of_all_rows = LossOfAllRows(objective_of_four().encoder, temperature=0.5, head="none")
    ways = {
        "right": (objective_of_four(), Ranks()),
        "detached": (objective_of_four(), Detached()),
        "own candidates": (objective_of_four(), NO_PEERS),
        "loss of all rows": (loss_of_all_rows, NO_PEERS),
    }
    for name, (objective, peers) in ways.items():
        batch = four_pairs(2 * rank, 2 * rank + 2, peers)
        own = objective.loss(tuple(view.encode() for view in objective.views(batch)), batch).total.item()
        outcome = loss_and_backward(objective, batch)
        gradient = pop_gradients(objective)["encoder.weight"]
        found[name] = {"loss": outcome.loss.total.item(), "own_loss": own, "gradient": gradient}
    return found

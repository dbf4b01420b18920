"""The trainings of test_ranks.py, in one process or in two: objectives that compare the rows of all ranks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from pipeline.objectives import NO_PEERS, Batch, KeepsState, Objective, Peers
from pipeline.objectives.build import Sum, Term
from pipeline.objectives.cert import Cert
from pipeline.objectives.consert import Consert
from pipeline.objectives.contrastive_tension import ContrastiveTension
from pipeline.objectives.declutr import Declutr
from pipeline.objectives.guided import Guided
from pipeline.objectives.input_response import InputResponse
from pipeline.objectives.pser import Pser
from pipeline.objectives.quickthoughts import QuickThoughts
from pipeline.objectives.simcse import SimCSE
from pipeline.objectives.supervised import Supervised
from pipeline.train.gather import Ranks
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, descend, texts

ROWS, STEPS, WORLD = 6, 3, 2


def two_tasks(guide: Path) -> Sum:
    """Return two tasks that share an encoder: one for steps of even number, one for those of odd number."""
    encoder = Tiny(seed=1)
    tasks = {"even": InputResponse(encoder), "odd": QuickThoughts(encoder)}
    return Sum(encoder, [Term(source, 2.0, task, source) for source, task in tasks.items()])


CASES: dict[str, Callable[[Path], Objective]] = {
    "consert": lambda guide: Consert(Tiny(seed=1), views=("none", "none")),
    "consert adversarial": lambda guide: Consert(Tiny(seed=1), views=("none", "adversarial"), noise=0.1),
    "declutr": lambda guide: Declutr(Tiny(seed=1), temperature=0.3),
    "declutr, words on one rank": lambda guide: Declutr(Tiny(seed=1), temperature=0.3),
    # Texts have three tokens: if both special tokens are kept, there is nothing to permute or draw.
    "pser": lambda guide: Pser(Tiny(seed=1), temperature=0.3, keep_special=True),
    "pser similarity": lambda guide: Pser(
        Tiny(seed=1), temperature=0.3, keep_special=True, kl_on="similarity"
    ),
    "tension": lambda guide: ContrastiveTension(Tiny(seed=1), negatives=3),
    "tension sum": lambda guide: ContrastiveTension(Tiny(seed=1), reduction="sum"),
    "cert": lambda guide: Cert(Tiny(seed=1), queue=10, width=4, momentum=0.9),
    "quickthoughts": lambda guide: QuickThoughts(Tiny(seed=1)),
    "responses": lambda guide: InputResponse(Tiny(seed=1)),
    "two tasks": two_tasks,
    "next sentence, two encoders": lambda guide: SimCSE(
        Tiny(seed=1), temperature=0.3, positive="next", second="copy"
    ),
    "several negatives": lambda guide: Supervised(
        Tiny(seed=1), temperature=0.3, second="copy", hard_negative_weight=2.0
    ),
    "all directions": lambda guide: Supervised(
        Tiny(seed=1),
        temperature=0.3,
        directions=("query_document", "document_query", "query_query", "document_document"),
        hardness=2.0,
    ),
    "a softmax for each direction": lambda guide: Supervised(
        Tiny(seed=1),
        temperature=0.3,
        directions=("query_document", "document_query"),
        softmax="each",
        hardness=2.0,
        hardness_on="own",
    ),
    "guided": lambda guide: Guided(Tiny(seed=1), guide=str(guide), temperature=0.3, margin=0.05),
}
# Cases that also run with false negatives.
WITH_FALSE_NEGATIVES = (
    "consert",
    "consert adversarial",
    "declutr",
    "pser",
    "tension",
    "quickthoughts",
    "next sentence, two encoders",
    "several negatives",
    "all directions",
    "a softmax for each direction",
    "guided",
)


def batch(
    rank: int, world: int, step: int, peers: Peers = NO_PEERS, with_false_negatives: bool = False
) -> Batch:
    """Return the rank's part of the rows of a step.

    Rows 1 to 4 are one document. Of two ranks, each has two of its sentences.
    """
    columns = {
        role: [text[:3] for text in texts(ROWS, 3 * step + number)]
        for number, role in enumerate(
            ("text", "anchor", "positive", "next", "negative", "negative2", "negative3")
        )
    }
    own = np.arange(ROWS * rank // world, ROWS * (rank + 1) // world)
    mask = np.zeros((ROWS, ROWS), bool)
    mask[[1, 5, 2, 3], [5, 1, 3, 2]] = True
    whole = batch_of(
        {**columns, "document": ["x", "a", "a", "a", "a", None], "position": np.arange(ROWS)}, peers
    )
    masks = (
        {"text": mask[own], "next": mask[own], "anchor": np.tile(mask[own], 4)}
        if with_false_negatives
        else {}
    )
    source = "odd" if step % 2 else "even"
    return replace(whole.of_rows(own), false_negatives=masks, source=source)


def with_documents(rows: Batch, documents: int = ROWS) -> Batch:
    """Replace the texts of the first `documents` rows by many words: the text's letters, 14 times over."""
    texts = [
        " ".join(14 * str(text)) if row < documents else text
        for row, text in zip(rows.rows, rows.column("text"), strict=True)
    ]
    return replace(rows, columns={"text": texts})


def trained(
    name: str, with_false_negatives: bool, batches: Callable[[int], Batch], guide: Path
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Run three steps of gradient descent; return their losses and the final state.

    `guide` is the folder of an encoder for objectives that need a second one.
    """
    torch.manual_seed(5)
    objective, losses = CASES[name](guide).double(), []
    for step in range(STEPS):
        rows = batches(step)
        if name.startswith("declutr"):
            rows = with_documents(rows, ROWS if name == "declutr" else ROWS // WORLD)
        outcome = loss_and_backward(objective, rows)
        descend(objective, rate=0.05)
        if isinstance(objective, KeepsState):
            objective.after_step(outcome.reps, rows)
        losses.append(outcome.loss.total)
    return torch.stack(losses), dict(objective.state_dict())


def cases() -> list[tuple[str, bool]]:
    """Return names of CASES, each without and, if it applies, with false negatives."""
    return [
        (name, with_false_negatives)
        for name in CASES
        for with_false_negatives in (False, True)
        if not with_false_negatives or name in WITH_FALSE_NEGATIVES
    ]


def work(rank: int, folder: Path, guide: Path) -> None:
    """Run all trainings as one of two ranks, and save their results."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=WORLD
    )
    found = {
        case: trained(*case, lambda step, case=case: batch(rank, WORLD, step, Ranks(), case[1]), guide)
        for case in cases()
    }
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()

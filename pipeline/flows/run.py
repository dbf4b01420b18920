"""The context of a running command."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.flows.workers.tasks import Pool, Task
from pipeline.flows.workers.workers import Workers
from pipeline.log import RunningStage, Stages
from pipeline.settings import Job
from pipeline.store.base import Store

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Run:
    """Inputs of every stage of a command.

    Attributes:
        job: settings.
        store: store of the results.
        workers: workers that run tasks.
        stages: stages of the command, whose progress is shown.
    """

    job: Job
    store: Store
    workers: Workers
    stages: Stages


def map_in_order(
    run: Run,
    task: Task[Item, Result],
    items: Sequence[Item],
    bar: RunningStage | None = None,
    memory: float = 0.0,
) -> tuple[Result, ...]:
    """Apply a task to items on the index workers, and return the results in order.

    Args:
        memory: bytes that one item takes; where they are scarce, fewer workers run at a time.
    """
    workers = run.workers.index_workers(run.job.cluster, len(items))
    pool = Pool(workers, least=1 if memory else None, memory=memory)
    results = dict(run.workers.map_units(task, items, pool, bar))
    return tuple(results[number] for number in range(len(items)))

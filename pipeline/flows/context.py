"""The context of a running command."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pipeline.errors import PipelineError
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import Pool, Task
from pipeline.log import RunningStage, Stages, counted
from pipeline.settings import Job
from pipeline.store.files.base import Store
from pipeline.store.records.units import UnitRecord

Item = TypeVar("Item")
Result = TypeVar("Result")
AnyUnit = TypeVar("AnyUnit", bound=UnitRecord)


@dataclass(frozen=True)
class FlowContext:
    """Inputs of every stage of a command."""

    job: Job
    """settings"""
    store: Store
    """store of the results"""
    workers: Workers
    """workers that run tasks"""
    stages: Stages
    """stages of the command, whose progress is shown"""


class ItemNeeds(NamedTuple):
    """Resources that an item needs besides a CPU. If they are scarce, fewer workers run at a time."""

    memory: float = 0.0
    """bytes"""
    gpus: float = 0.0
    """GPUs; may be a fraction"""


def map_kept_units(
    context: FlowContext,
    task: Task[AnyUnit, Result],
    units: Sequence[AnyUnit],
    pool: Pool,
    bar: RunningStage,
) -> Iterator[tuple[int, Result]]:
    """Map a task that stores its results over units, as `map_units` does.

    If the night is stopped, the last line of the stage says how many units are finished. The next run starts
    the other units again.
    """
    finished = set[int]()
    try:
        for number, result in context.workers.map_units(task, units, pool, bar):
            finished.add(number)
            yield number, result
    except (KeyboardInterrupt, PipelineError):
        rows = sum(unit.rows for number, unit in enumerate(units) if number not in finished)
        done = f"{len(finished):,} of {counted(len(units), 'unit')} finished"
        bar.stage.note = f"{done}; the other {counted(rows, 'row')} start again"
        raise


def map_in_order(
    context: FlowContext,
    task: Task[Item, Result],
    items: Sequence[Item],
    bar: RunningStage | None = None,
    needs: ItemNeeds = ItemNeeds(),
) -> tuple[Result, ...]:
    """Apply a task to items on the index workers, and return the results in order."""
    workers = context.workers.index_workers(context.job.cluster, len(items))
    least = 1 if needs.memory or needs.gpus else None
    pool = Pool(workers, gpus=needs.gpus, least=least, memory=needs.memory)
    results = dict(context.workers.map_units(task, items, pool, bar))
    return tuple(results[number] for number in range(len(items)))

"""Ray Data's loop makes a step when an item is done, not ten times a second."""

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import ray

from pipeline.flows.workers import ray_internals
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import Pool
from tests.flows.tasks import SlowFirst

_SLOW_S = 5.0


def test_few_steps_are_made_while_an_item_runs(
    ray_cluster: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps = []
    await_progress = ray_internals._await_progress

    def record(executor: Any) -> None:
        steps.append(time.monotonic())
        await_progress(executor)

    monkeypatch.setattr(ray_internals, "_await_progress", record)
    task = SlowFirst(str(tmp_path), _SLOW_S)
    assert len(dict(ray_cluster.map_units(task, [0, 1], Pool(2, cpus=0.5)))) == 2
    seconds = steps[-1] - steps[0]
    assert seconds > _SLOW_S / 2, "the steps are those of this pool"
    assert len(steps) < 5 * seconds, "Ray Data by itself makes ten a second"


@pytest.mark.parametrize(
    ("waiting", "size", "free", "restarting", "short"),
    [
        (5, 2, False, 0, False),
        (5, 1, False, 0, True),
        (5, 2, True, 0, True),
        (5, 2, False, 1, True),
        (0, 1, True, 1, False),
    ],
    ids=["all busy", "may grow", "an actor is free", "an actor restarts", "no item waits"],
)
def test_a_step_is_made_when_the_first_of_all_running_items_is_done(
    monkeypatch: pytest.MonkeyPatch, waiting: int, size: int, free: bool, restarting: int, short: bool
):
    pool = Mock(**{"current_size.return_value": size, "max_size.return_value": 2})
    pool.can_schedule_task.return_value, pool.num_restarting_actors.return_value = free, restarting
    tasks = [Mock(**{"get_waitable.return_value": number}) for number in range(3)]
    operator = Mock(**{"get_active_tasks.return_value": tasks})
    operator.get_autoscaling_actor_pools.return_value = [pool]
    state = Mock(**{"total_enqueued_input_blocks.return_value": waiting})
    wait = Mock()
    monkeypatch.setattr(ray, "wait", wait)
    ray_internals._await_progress(Mock(_topology={operator: state}))
    seconds = ray_internals._SHORT_STEP_S if short else ray_internals._STEP_S
    wait.assert_called_once_with([0, 1, 2], num_returns=1, timeout=seconds, fetch_local=False)

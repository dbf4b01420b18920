"""Ray Data's loop makes a step when an item is done, not ten times a second."""

import time
from pathlib import Path
from typing import Any

import pytest
from ray.data._internal.execution import streaming_executor_state

from pipeline.flows.workers import execution
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.workers import Workers
from tests.flows.tasks import SlowFirst

_SLOW_S = 5.0


def test_few_steps_are_made_while_an_item_runs(
    ray_cluster: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps = []
    await_progress = execution._await_progress

    def record(executor: Any) -> None:
        steps.append(time.monotonic())
        await_progress(executor)

    monkeypatch.setattr(execution, "_await_progress", record)
    task = SlowFirst(str(tmp_path), _SLOW_S)
    assert len(dict(ray_cluster.map_units(task, [0, 1], Pool(2, cpus=0.5)))) == 2
    seconds = steps[-1] - steps[0]
    assert seconds > _SLOW_S / 2, "the steps are those of this pool"
    assert len(steps) < 5 * seconds, "Ray Data by itself makes ten a second"


def test_ray_data_reads_the_time_that_each_step_waits():
    assert "WAIT_FOR_TASK_COMPLETION_TIMEOUT_S" in (
        streaming_executor_state.process_completed_tasks.__code__.co_names
    )

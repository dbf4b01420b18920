"""The execution of a Ray Dataset: notice at once that an item is done, and abandon it.

This uses parts of Ray Data that are not public; pyproject.toml allows one minor version of Ray.
"""

from typing import Any

import ray

_STEP_S = 1.0  # time between two steps if no item is done
_SHORT_STEP_S = 0.1  # the same while the next step may request an actor, or give an item to one
_REST_S = 0.01  # time that a step itself waits for all running items


class Execution:
    """Controls the one execution of a Ray Dataset.

    Ray Data's own loop makes a step every 0.1 s, and takes up to two steps to notice that an item is done,
    while its actor waits for the next one. Here a step is made when an item is done or an actor is up.
    """

    def __init__(self) -> None:
        self._executor: Any = None
        self._abandoned = False

    @classmethod
    def of(cls, dataset: Any) -> "Execution":
        """Prepare to control the execution of the dataset."""
        # slow to import, and not needed in the process of a worker
        from ray.data._internal.execution import streaming_executor_state

        # A step always waits so long, since it waits for all items. It has no setting of its own, so steps of
        # other datasets in this process are as short.
        streaming_executor_state.WAIT_FOR_TASK_COMPLETION_TIMEOUT_S = _REST_S
        execution = cls()

        class Callback:
            """Receives the executor from Ray Data, which takes the class and creates the object."""

            def before_execution_starts(self, executor: Any) -> None:
                execution._begin(executor)

            def on_execution_step(self, executor: Any) -> None:
                _await_progress(executor)

            def after_execution_succeeds(self, executor: Any) -> None: ...

            def after_execution_fails(self, executor: Any, error: Exception) -> None: ...

        dataset.context.custom_execution_callback_classes = [Callback]
        return execution

    def _begin(self, executor: Any) -> None:
        if self._abandoned:
            raise RuntimeError("the execution was abandoned before it began")
        from ray.data._internal.execution.metadata_fetcher import InlineMetadataFetcher

        # The default fetches the size of a result in a thread, so that it would be seen a step later.
        executor._metadata_fetcher = InlineMetadataFetcher()
        self._executor = executor

    def abandon(self) -> None:
        """End the execution and kill its actors, running and pending. Takes up to two seconds.

        Without that, Ray Data drops its handles, and an actor keeps its CPUs until Python has collected the
        last of them as garbage.
        """
        self._abandoned = True
        if self._executor is not None:
            self._executor.shutdown(force=True)


def _await_progress(executor: Any) -> None:
    """Wait until an item is done or an actor is up, but not longer than the time between two steps."""
    running = [task.get_waitable() for operator in executor._topology for task in operator.get_active_tasks()]
    if running:
        ray.wait(running, num_returns=1, timeout=_step_s(executor), fetch_local=False)


def _step_s(executor: Any) -> float:
    """Return the time between two steps if no item is done.

    It is short if items wait while a pool may grow, which takes a step for each actor, or has a free actor,
    or one that Ray starts again, which no task announces.
    """
    for operator, state in executor._topology.items():
        for pool in operator.get_autoscaling_actor_pools():
            may_grow = pool.current_size() < pool.max_size()
            may_begin = pool.can_schedule_task() or pool.num_restarting_actors()
            if state.total_enqueued_input_blocks() and (may_grow or may_begin):
                return _SHORT_STEP_S
    return _STEP_S

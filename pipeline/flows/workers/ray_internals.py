"""Every private or undocumented name of Ray that Manta uses; no other module uses one.

pyproject.toml allows one minor version of Ray. Where another version lacks a name, the test of that name in
tests/flows/workers/test_ray_internals.py fails.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Environment variables, read when Ray is imported.
ALWAYS_VARIABLES = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # which count items, where Manta's progress counts rows
    # Messages that Ray prints on a driver's standard output. `watch.Watch` counts and limits restarts, and
    # reports lost nodes, for each of which Ray would repeat the last twenty lines of its log.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "infinite retries remaining|Raylet is terminated",
}
QUIET_VARIABLES = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # Ray's future default; set here, Ray does not warn that it will change
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Environment variables of Ray Train, read when a training starts.
TRAIN_VARIABLES = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # Ray's default is 2; also the delay at the start and the end
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # saves an actor: a preempted node counts as lost
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in the settings mean the same on every rank
}
# One more on a cluster that may have a dashboard: an actor on the head records what the tab Train shows.
TRAIN_STATE = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
TRAIN_START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
# Options of a Ray that this process starts, the argument _system_config of ray.init.
LOCAL_OPTIONS = {
    # with Ray's default of 1,000 ms every stage of a short night waits for new processes
    "idle_worker_killing_time_threshold_ms": 10_000,
    # statistics for Ray's logs, and records for a dashboard, which is not started: every process would take
    # CPU time for them
    "event_stats": False,
    "task_events_report_interval_ms": 0,
}
_KV_NAMESPACE = "manta"
_REST_S = 0.01  # time that a step of Ray Data itself waits for all running items
_STEP_S = 1.0  # time between two steps if no item is done
# seconds between two steps while the next one may request an actor or give an item to an actor
_SHORT_STEP_S = 0.1


def _node() -> Any:
    """Return Ray's object for its processes on this machine; None if not connected, or in a Ray client."""
    from ray._private.worker import _global_node

    return _global_node


def raylet_socket() -> str | None:
    """Return the Unix socket of the raylet that this process is connected to; None in a Ray client."""
    node = _node()
    return None if node is None else str(node.raylet_socket_name)


def temp_folder() -> str:
    """Return the folder in which Ray stores sessions and logs on this process's node."""
    return str(_node().get_temp_dir_path())


def stop_log_monitor() -> None:
    """Stop the process of a local Ray that sends the workers' logs to a driver that shows them.

    It looks for new lines ten times a second, and takes 0.7 % of a core.
    """
    _node().kill_log_monitor(check_alive=False)


def dead_processes() -> set[str]:
    """Return the kinds of the processes that this process's Ray started and that have ended."""
    return {kind for kind, _ in _node().dead_processes()}


def kill_all_processes() -> None:
    """Kill the processes of the Ray that this process started."""
    _node().kill_all_processes(check_alive=False, allow_graceful=False)


def raylet_pids() -> list[int]:
    """Return the process ids of the raylets that this process started; [] on another cluster."""
    node = _node()
    return [] if node is None else [each.process.pid for each in node.all_processes.get("raylet", ())]


def is_worker() -> bool:
    """Return whether this process, which is connected to Ray, is a worker and not a driver."""
    import ray

    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def addable_resources() -> "list[Mapping[str, float]]":
    """Return the resources of one node for each group of nodes that Ray's autoscaler (v2) can enlarge."""
    from ray._private.state import state

    config = state.get_cluster_config()
    return [
        group.resources
        for group in (config.node_group_configs if config else ())
        if group.resources and (group.max_count < 0 or group.max_count > group.min_count)
    ]


def kv_put(key: str, value: str) -> None:
    """Store a value in the cluster's key-value store."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, value, namespace=_KV_NAMESPACE)


def kv_get(key: str) -> bytes | None:
    """Return the value of a key; None if there is none."""
    from ray.experimental import internal_kv

    found: bytes | None = internal_kv._internal_kv_get(key, namespace=_KV_NAMESPACE)
    return found


def kv_list(prefix: str) -> list[str]:
    """Return the keys that begin with the prefix."""
    from ray.experimental import internal_kv

    return [key.decode() for key in internal_kv._internal_kv_list(prefix, namespace=_KV_NAMESPACE)]


def kv_delete(prefix: str) -> None:
    """Delete the keys that begin with the prefix."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(prefix, del_by_prefix=True, namespace=_KV_NAMESPACE)


def lost_rank_errors() -> tuple[type[Exception], ...]:
    """Return the errors by which Ray Train reports that a rank, or its start, is lost."""
    from ray.train.v2._internal import exceptions

    return (
        exceptions.WorkerHealthCheckFailedError,
        exceptions.WorkerHealthCheckTimeoutError,
        exceptions.WorkerGroupStartupFailedError,
    )


def start_timeout_error() -> type[Exception]:
    """Return the error by which Ray Train reports that the cluster had no room for all ranks in time."""
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

    return WorkerGroupStartupTimeoutError


def configure_pool(dataset: Any, max_deaths: int) -> None:
    """Configure how Ray Data runs a pool of actors.

    Args:
        dataset: the Ray Dataset.
        max_deaths: actors that may die, one after the other, while they start.
    """
    context = dataset.context
    # at one item per actor, the utilization that makes Ray Data add actors is never above 1
    context.autoscaling_config.actor_pool_util_upscaling_threshold = 1.0
    context.execution_no_progress_timeout_s = -1  # only the watch decides whether an item hangs
    # an actor loads nothing at its start, so it dies there only if it is killed from outside
    context.max_consecutive_actor_init_deaths = max_deaths


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

        # A step waits for all items, so it always takes this long. There is no setting per dataset, so steps
        # of other datasets in this process become as short.
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

        # By default, the size of a result is fetched in a thread, and the result is seen a step later.
        executor._metadata_fetcher = InlineMetadataFetcher()
        self._executor = executor

    def abandon(self) -> None:
        """End the execution and kill its actors, running and pending. Takes up to two seconds.

        Otherwise Ray Data would only drop its handles, and an actor would keep its CPUs until Python has
        collected its last handle as garbage.
        """
        self._abandoned = True
        if self._executor is not None:
            self._executor.shutdown(force=True)


def _await_progress(executor: Any) -> None:
    """Wait until an item is done or an actor is up, but not longer than the time between two steps."""
    import ray

    running = [task.get_waitable() for operator in executor._topology for task in operator.get_active_tasks()]
    if running:
        ray.wait(running, num_returns=1, timeout=_step_s(executor), fetch_local=False)


def _step_s(executor: Any) -> float:
    """Return the time between two steps if no item is done.

    It is short if items wait and the pool may grow (a step per actor), has a free actor, or has an actor that
    Ray restarts, which no task announces.
    """
    for operator, state in executor._topology.items():
        for pool in operator.get_autoscaling_actor_pools():
            may_grow = pool.current_size() < pool.max_size()
            may_begin = pool.can_schedule_task() or pool.num_restarting_actors()
            if state.total_enqueued_input_blocks() and (may_grow or may_begin):
                return _SHORT_STEP_S
    return _STEP_S

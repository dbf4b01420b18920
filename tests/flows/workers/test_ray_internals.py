"""The private and undocumented names of Ray that Manta uses exist, and one module has them all."""

import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import ray

from pipeline.flows.workers import ray_internals
from tests.conftest import ROOT

_RAY = Path(ray.__file__).parent
# What ray_internals imports from, and the attributes that it uses there; dots lead to attributes of a class.
_NAMES = {
    "ray": ("WORKER_MODE",),
    "ray._private.worker": ("_global_node",),
    "ray._private.node": (
        "Node.raylet_socket_name",
        "Node.get_temp_dir_path",
        "Node.kill_log_monitor",
        "Node.dead_processes",
        "Node.kill_all_processes",
    ),
    "ray._private.state": ("state.get_cluster_config",),
    "ray.experimental.internal_kv": (
        "_internal_kv_put",
        "_internal_kv_get",
        "_internal_kv_list",
        "_internal_kv_del",
    ),
    "ray.train.v2._internal.exceptions": (
        "WorkerHealthCheckFailedError",
        "WorkerHealthCheckTimeoutError",
        "WorkerGroupStartupFailedError",
        "WorkerGroupStartupTimeoutError",
    ),
    "ray.data._internal.execution.metadata_fetcher": ("InlineMetadataFetcher",),
    "ray.data._internal.execution.streaming_executor": ("StreamingExecutor.shutdown",),
    "ray.data._internal.execution.interfaces.physical_operator": (
        "PhysicalOperator.get_active_tasks",
        "PhysicalOperator.get_autoscaling_actor_pools",
        "OpTask.get_waitable",
    ),
    "ray.data._internal.execution.streaming_executor_state": ("OpState.total_enqueued_input_blocks",),
    "ray.data._internal.execution.operators.actor_pool_map_operator": (
        "_ActorPool.current_size",
        "_ActorPool.max_size",
        "_ActorPool.can_schedule_task",
        "_ActorPool.num_restarting_actors",
    ),
    "ray.data._internal.execution.execution_callback": (
        "ExecutionCallback.before_execution_starts",
        "ExecutionCallback.on_execution_step",
        "ExecutionCallback.after_execution_succeeds",
        "ExecutionCallback.after_execution_fails",
    ),
}
# Attributes that objects get when they are made, and constants, by a function that reads or writes them.
_READ_BY = {
    "WAIT_FOR_TASK_COMPLETION_TIMEOUT_S": (
        "ray.data._internal.execution.streaming_executor_state",
        "process_completed_tasks",
    ),
    "_metadata_fetcher": (
        "ray.data._internal.execution.streaming_executor",
        "StreamingExecutor._scheduling_loop_step",
    ),
    "_topology": ("ray.data._internal.execution.streaming_executor", "StreamingExecutor.execute"),
    "all_processes": ("ray._private.node", "Node.start_reaper_process"),
}
_CONTEXT = (
    "autoscaling_config.actor_pool_util_upscaling_threshold",
    "execution_no_progress_timeout_s",
    "max_consecutive_actor_init_deaths",
    "custom_execution_callback_classes",
)
_ARGUMENTS = {
    ("ray._private.node", "Node.kill_log_monitor"): {"check_alive"},
    ("ray._private.node", "Node.kill_all_processes"): {"check_alive", "allow_graceful"},
    ("ray.data._internal.execution.streaming_executor", "StreamingExecutor.shutdown"): {"force"},
    ("ray.experimental.internal_kv", "_internal_kv_del"): {"del_by_prefix", "namespace"},
}


def attribute(module: str, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


@pytest.mark.parametrize(
    ("module", "path"), [(module, path) for module, paths in _NAMES.items() for path in paths]
)
def test_ray_has_the_name(module: str, path: str):
    attribute(module, path)


@pytest.mark.parametrize(("name", "function"), _READ_BY.items())
def test_ray_uses_the_attribute(name: str, function: tuple[str, str]):
    code = attribute(*function).__code__
    assert name in code.co_names


@pytest.mark.parametrize(("function", "names"), _ARGUMENTS.items())
def test_ray_takes_the_argument(function: tuple[str, str], names: set[str]):
    code = getattr(attribute(*function), "__wrapped__", attribute(*function)).__code__
    assert names <= set(code.co_varnames)


@pytest.mark.parametrize("path", _CONTEXT)
def test_ray_data_has_the_setting(path: str):
    from ray.data import DataContext

    functools.reduce(getattr, path.split("."), DataContext.get_current())


@pytest.mark.parametrize("name", ["resources", "min_count", "max_count"])
def test_the_autoscaler_describes_groups_of_nodes(name: str):
    from ray.core.generated.autoscaler_pb2 import ClusterConfig

    groups = ClusterConfig.DESCRIPTOR.fields_by_name["node_group_configs"]
    assert name in groups.message_type.fields_by_name


@functools.cache
def texts_of_ray() -> bytes:
    """Return the Python files that read environment variables, and the program that reads other options."""
    files = [_RAY / "core/src/ray/raylet/raylet"]
    for folder in ("_private", "train", "data", "util"):
        files += (_RAY / folder).rglob("*constants.py")
    files += [_RAY / "data/context.py", _RAY / "_private/accelerators/__init__.py"]
    return b"\n".join(file.read_bytes() for file in files)


@pytest.mark.parametrize(
    "name",
    [
        *ray_internals.ALWAYS_VARIABLES,
        *ray_internals.QUIET_VARIABLES,
        *ray_internals.TRAIN_STATE,
        *ray_internals.TRAIN_VARIABLES,
        ray_internals.TRAIN_START_TIMEOUT,
        *ray_internals.LOCAL_OPTIONS,
    ],
)
def test_ray_reads_the_variable(name: str):
    assert name.encode() in texts_of_ray()


_PRIVATE = re.compile(
    r"""\bray(\.\w+)*\.(_\w|experimental)|internal_kv|_global_node|["']RAY_(?!A|USAGE_STATS_ENABLED)"""
)


def test_no_other_module_uses_a_private_name_of_ray():
    """A name with an underscore, an experimental module, or a variable of Ray's parts."""
    own = Path(ray_internals.__file__)
    found = {
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for folder in ("pipeline", "jobs")
        for file in (ROOT / folder).rglob("*.py")
        if file != own
        for line in file.read_text().splitlines()
        if _PRIVATE.search(line)
    }
    assert not found


def test_the_log_of_a_lost_node_is_not_printed():
    """Ray sends its last lines as one message, which a driver prints unless it is skipped."""
    from ray._private.ray_logging import LogDeduplicator

    skipped = ray_internals.ALWAYS_VARIABLES["RAY_DEDUP_LOGS_SKIP_REGEX"]
    message = "Raylet is terminated. Last 20 lines of the Raylet logs:\n    [state-dump] NodeManager:"
    shown = LogDeduplicator(5, None, skipped).deduplicate(
        {"lines": [message, "another"], "pid": "raylet", "is_err": False}
    )
    assert [line for batch in shown for line in batch["lines"]] == ["another"]

"""Every item is processed once, on several actors. Errors of this package keep their type and message, and
the wait for resources that never become available ends with an error.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.flows.workers.heartbeat import PATIENCE_S, set_patience
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import Pool
from tests.flows.conftest import ROOT
from tests.flows.tasks import Double, HangOnce, Long, Meet, SlowFirst


def test_every_item_comes_back_once_with_its_number(ray_cluster: Workers):
    made = dict(ray_cluster.map_units(Double(), list(range(100, 112)), Pool(2, cpus=0.5)))
    assert {number: value for number, (value, _) in made.items()} == {
        number: 2 * (100 + number) for number in range(12)
    }


def test_errors_of_manta_keep_their_type_and_message(ray_cluster: Workers):
    with pytest.raises(DataError, match="item 13: expected luck") as caught:
        list(ray_cluster.map_units(Double(), [12, 13, 14], Pool(1)))
    assert caught.value.exit_code == 3
    with pytest.raises(DataError, match="item 13"):
        ray_cluster.run(Double(), 13, Pool(1))


def test_a_pool_that_is_given_up_frees_its_cpus(ray_cluster: Workers):
    import ray

    with pytest.raises(DataError, match="item 13"):
        list(ray_cluster.map_units(Double(), list(range(12, 24)), Pool(2, cpus=0.5)))
    results = ray_cluster.map_units(Double(), list(range(100, 112)), Pool(2, cpus=0.5))
    next(results)
    results.close()
    deadline = time.monotonic() + 60
    while (free := ray.available_resources().get("CPU", 0)) < ray_cluster.cpus:
        assert time.monotonic() < deadline, f"{free:g} of {ray_cluster.cpus:g} CPUs are free"
        time.sleep(0.2)


def test_without_items_no_actor_is_started(ray_cluster: Workers):
    assert list(ray_cluster.map_units(Double(), [], Pool(1))) == []


def test_a_pool_grows_from_one_actor_while_there_is_work(ray_cluster: Workers, tmp_path: Path):
    made = dict(
        ray_cluster.map_units(Meet(str(tmp_path), 2), list(range(12)), Pool(2, cpus=0.5, least=1, initial=1))
    )
    assert len(made) == 12
    assert len(set(made.values())) == 2, "the first actor waits at its item until there is a second one"


def test_processes_are_reused_by_the_next_stage(ray_cluster: Workers, tmp_path: Path):
    def processes(stage: str) -> set[int]:
        (tmp_path / stage).mkdir()
        with ThreadPoolExecutor(4) as pool:
            return set(
                pool.map(
                    lambda number: ray_cluster.run(Meet(str(tmp_path / stage), 4), number, Pool(1, cpus=0.5)),
                    range(4),
                )
            )

    first = processes("first")
    assert len(first) == 4, "four processes: Ray by itself keeps only two idle ones on two CPUs"
    time.sleep(2.5)  # Ray's own rule ends idle processes after one second
    assert len(processes("second") & first) > 2


@pytest.fixture
def restore_patience(ray_cluster: Workers) -> Iterator[None]:
    """Restore the patience that a test changed."""
    yield
    set_patience(PATIENCE_S)


def test_a_worker_too_large_for_a_fixed_cluster_is_refused_at_once(ray_cluster: Workers):
    words = (
        r"cluster: expected 1000 CPUs and 0 GPUs for one worker, found one node of .* CPUs and 0 GPUs; "
        r"lower cluster\.cpus_per_worker"
    )
    with pytest.raises(ConfigError, match=words) as caught:
        list(ray_cluster.map_units(Double(), [1, 2], Pool(2, cpus=1000)))
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="1 CPU and 1 GPU for one worker"):
        ray_cluster.run(Double(), 1, Pool(1, gpus=1))


def test_a_worker_with_more_memory_than_a_node_has_is_refused_and_others_share_it(ray_cluster: Workers):
    import ray

    node_bytes = ray.cluster_resources()["memory"]
    with pytest.raises(ConfigError, match=r"with .* of memory for one worker, found one node of .* with .*;"):
        list(ray_cluster.map_units(Double(), [1], Pool(1, cpus=0.5, memory=1.1 * node_bytes)))
    pool = Pool(2, cpus=0.5, least=1, memory=0.6 * node_bytes)
    made = dict(ray_cluster.map_units(Double(), list(range(4)), pool))
    assert len({process for _, process in made.values()}) == 1, "there is no room for a second worker"
    assert ray_cluster.run(Double(), 4, pool)[0] == 8


@pytest.mark.usefixtures("restore_patience")
def test_waiting_for_an_occupied_cluster_ends_with_an_error(ray_cluster: Workers):
    import ray

    set_patience(2.0)
    occupied = ray.remote(Double).options(num_cpus=ray_cluster.cpus).remote()
    ray.get(occupied.start.remote(), timeout=120)
    words = (
        r"cluster: expected a running worker \(1 CPU and 0 GPUs\) within 2 s \(cluster\.patience_s\), "
        r"found none, with 0 CPUs and 0 GPUs free on 1 node; add such"
    )
    with pytest.raises(TransientError, match=words) as caught:
        ray_cluster.run(Double(), 1, Pool(1))
    assert caught.value.exit_code == 75
    with pytest.raises(TransientError, match=words):
        list(ray_cluster.map_units(Double(), [1, 2], Pool(2)))
    ray.kill(occupied)


@pytest.fixture
def add_nodes(ray_cluster: Workers) -> Iterator[Callable[[int], None]]:
    """Tell Ray, as its autoscaler does, that it can add nodes with two CPUs and a number of GPUs."""
    from ray._raylet import GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, GCS_AUTOSCALER_STATE_NAMESPACE
    from ray.core.generated.autoscaler_pb2 import ClusterConfig
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

    def add(gpus: int) -> None:
        cluster_config = ClusterConfig()
        group = cluster_config.node_group_configs.add(name="more", min_count=0, max_count=4)
        group.resources.update({"CPU": 2, "GPU": gpus} if gpus else {"CPU": 2})
        content = cluster_config.SerializeToString()
        _internal_kv_put(GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, content, namespace=GCS_AUTOSCALER_STATE_NAMESPACE)

    yield add
    _internal_kv_del(GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, namespace=GCS_AUTOSCALER_STATE_NAMESPACE)


@pytest.mark.usefixtures("restore_patience")
def test_waiting_for_a_new_node_ends_with_a_transient_error(
    ray_cluster: Workers, add_nodes: Callable[[int], None]
):
    add_nodes(1)
    set_patience(60.0, wait_s=2.0)
    words = (
        r"1 CPU and 1 GPU for one worker, within 2 s \(cluster\.wait_s\), found one node of .*no node came"
    )
    with pytest.raises(TransientError, match=words) as caught:
        ray_cluster.run(Double(), 1, Pool(1, gpus=1))
    assert caught.value.exit_code == 75


def test_a_worker_too_large_for_every_node_type_is_refused_at_once(
    ray_cluster: Workers, add_nodes: Callable[[int], None]
):
    add_nodes(0)
    words = (
        r"1 CPU and 1 GPU for one worker, found one node of .*can be added have 2 CPUs and 0 GPUs; "
        r"lower"
    )
    with pytest.raises(ConfigError, match=words) as caught:
        ray_cluster.run(Double(), 1, Pool(1, gpus=1))
    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("restore_patience")
def test_a_long_item_does_not_end_the_run(ray_cluster: Workers):
    assert dict(ray_cluster.map_units(Long(4.5, patience_s=3.0), [7], Pool(1, cpus=0.5))) == {0: 7}


@pytest.mark.slow
def test_a_slow_item_is_started_a_second_time_by_an_idle_worker(ray_cluster: Workers, tmp_path: Path):
    began = time.monotonic()
    made = dict(ray_cluster.map_units(SlowFirst(str(tmp_path), 600.0), list(range(6)), Pool(2, cpus=0.5)))
    first = int((tmp_path / "first").read_text())
    assert sorted(made) == list(range(6))
    assert made[0] != first
    assert time.monotonic() - began < 500
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(first).wait(timeout=60)  # it was killed, and would sleep for much longer


@pytest.mark.slow
@pytest.mark.usefixtures("restore_patience")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_hanging_worker_is_killed_and_its_item_repeated(
    ray_cluster: Workers, tmp_path: Path, capfd: pytest.CaptureFixture[str], stopped: bool
):
    set_patience(15.0)  # on a busy machine a worker needs some seconds to start
    assert dict(ray_cluster.map_units(HangOnce(str(tmp_path), stopped), [7], Pool(1, cpus=0.5))) == {0: 7}
    assert not psutil.pid_exists(int((tmp_path / "7").read_text()))
    assert ray_cluster.run(HangOnce(str(tmp_path), stopped), 8, Pool(1, cpus=0.5)) == 8
    assert capfd.readouterr().err.count("item 0 of HangOnce has shown no progress for ") == 2


_DIES_TWICE = """
import sys
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from tests.flows.tasks import DieOnce

with connect(ClusterSettings(address="local"), Stages()) as workers:
    print(dict(workers.map_units(DieOnce(sys.argv[1], deaths=2), [7, 8], Pool(1, cpus=0.5))))
"""


@pytest.mark.slow
def test_the_warning_about_a_killed_worker_names_no_infinite_retries(tmp_path: Path):
    """In a process of its own, because Ray reads its rules for repeated lines once, when it is imported."""
    command = [sys.executable, "-c", _DIES_TWICE, str(tmp_path)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_DEDUP_LOGS")}
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    output = ended.stdout + ended.stderr
    assert "{0: 7, 1: 8}" in output
    assert "A worker died or was killed" in output
    assert "retries" not in output


@pytest.mark.parametrize(
    ("count", "pool", "expected"),
    [
        (10, Pool(4), (4, 4, 4)),
        (2, Pool(4), (2, 2, 2)),
        (10, Pool(4, least=1, initial=2), (1, 4, 2)),
        (10, Pool(4, least=3, initial=2), (3, 4, 3)),
        (1, Pool(4, least=3, initial=2), (1, 1, 1)),
        (10, Pool(4, least=1, initial=0), (1, 4, 4)),
    ],
)
def test_a_pool_has_at_most_one_actor_per_item(count: int, pool: Pool, expected: tuple[int, int, int]):
    limited = pool.limited_to(count)
    assert (limited.least, limited.size, limited.initial) == expected


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m` with these arguments; the program starts a Ray of its own."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture(scope="module")
def gpus() -> dict[str, object]:
    """Return the observations of tests.flows.gpus on a Ray with two logical GPUs."""
    done = run_program("tests.flows.gpus")
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_two_workers_with_half_a_gpu_run_on_one_gpu_at_once(gpus):
    assert gpus["most"] == 4, "workers of half a GPU on two GPUs"
    assert gpus["workers by gpu"] == {"0": 2, "1": 2}
    assert gpus["at once"] == 4
    assert gpus["device"] == "cuda"


@pytest.mark.slow
def test_a_finished_stage_leaves_no_worker_and_frees_its_gpus(gpus):
    assert gpus["free between the stages"] == 2
    assert gpus["left over"] == 0
    assert gpus["next stage"] == 2, "a pool of whole GPUs follows"


@pytest.mark.slow
def test_a_pool_without_gpus_stays_on_the_cpu_of_a_cluster_with_gpus(gpus):
    assert gpus["device without"] == "cpu"


@pytest.mark.slow
def test_three_gpus_on_a_node_of_two_are_refused_before_anything_starts(gpus):
    assert (
        gpus["refused"]
        == "cluster: expected 1 CPU and 3 GPUs for one worker, found one node of 4 CPUs and 2 GPUs"
    )


def on_short_memory(part: float) -> dict[str, object]:
    """Run tests.flows.memory, whose workers may use `part` of the free memory. Returns its error."""
    return dict(json.loads(run_program("tests.flows.memory", str(part)).stdout.splitlines()[-1]))


@pytest.mark.alone
@pytest.mark.skipif(psutil.virtual_memory().available < 6 << 30, reason="6 GB of free memory are needed")
def test_an_item_that_exceeds_the_memory_ends_the_run_with_an_error():
    """Ray's memory monitor kills the worker at every attempt, and sometimes other processes, too, such as the
    actor that receives the reports of progress (`Board`).
    """
    ended = on_short_memory(0.5)
    assert ended["exit code"] == 75
    assert str(ended["said"]).startswith(
        "item 0 of Swell: expected a process that finishes it, found 2 that died while working on "
        "it; make more memory available (fewer workers"
    )


@pytest.mark.slow
def test_memory_used_by_other_processes_ends_the_run_with_an_error():
    ended = on_short_memory(0.0)
    assert ended["exit code"] == 75
    said = str(ended["said"])
    expected = "a running worker (1 CPU and 0 GPUs) within 30 s (cluster.patience_s), found none"
    if not said.startswith("item 0 of Swell: expected a process that finishes it, found 2 that died"):
        assert f"cluster: expected {expected}" in said  # no worker began before it was killed

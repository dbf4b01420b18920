"""Every item goes through the pool once, on several actors; errors of ours come out as raised, and nobody
waits for ever for what cannot come.
"""

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
from pipeline.flows.workers.heartbeat import PATIENCE_S, expect
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.workers import Workers
from tests.flows.conftest import ROOT
from tests.flows.tasks import Double, HangOnce, Long, Meet


def test_every_item_comes_back_once_with_its_number(ray_cluster: Workers):
    made = dict(ray_cluster.map_units(Double(), list(range(100, 112)), Pool(2, cpus=0.5)))
    assert {number: value for number, (value, _) in made.items()} == {
        number: 2 * (100 + number) for number in range(12)
    }


def test_an_error_of_ours_keeps_its_type_and_words(ray_cluster: Workers):
    with pytest.raises(DataError, match="item 13: expected luck") as caught:
        list(ray_cluster.map_units(Double(), [12, 13, 14], Pool(1)))
    assert caught.value.exit_code == 3
    with pytest.raises(DataError, match="item 13"):
        ray_cluster.run(Double(), 13, Pool(1))


def test_no_items_start_no_actor(ray_cluster: Workers):
    assert list(ray_cluster.map_units(Double(), [], Pool(1))) == []


def test_a_pool_grows_from_one_actor_while_there_is_work(ray_cluster: Workers, tmp_path: Path):
    made = dict(
        ray_cluster.map_units(Meet(str(tmp_path), 2), list(range(12)), Pool(2, cpus=0.5, least=1, now=1))
    )
    assert len(made) == 12
    assert len(set(made.values())) == 2, "the first actor waits at its item until there is a second one"


def test_processes_stay_for_the_next_stage(ray_cluster: Workers, tmp_path: Path):
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
    assert len(first) == 4, "more than the two that Ray keeps in any case for two CPUs"
    time.sleep(2.5)  # Ray's own rule ends idle processes after one second
    assert len(processes("second") & first) > 2


@pytest.fixture
def patient_again(ray_cluster: Workers) -> Iterator[None]:
    """Restore the patience that a test changed."""
    yield
    expect(PATIENCE_S)


def test_what_no_node_can_hold_is_refused_at_once_where_no_node_can_come(ray_cluster: Workers):
    words = (
        r"cluster: expected 1000 CPUs and 0 GPUs for one worker, found one node of .* CPUs and 0 GPUs; "
        r"lower cluster\.cpus_per_worker"
    )
    with pytest.raises(ConfigError, match=words) as caught:
        list(ray_cluster.map_units(Double(), [1, 2], Pool(2, cpus=1000)))
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="1 CPUs and 1 GPUs for one worker"):
        ray_cluster.run(Double(), 1, Pool(1, gpus=1))


@pytest.mark.usefixtures("patient_again")
def test_a_cluster_that_others_occupy_is_waited_for_and_given_up_with_a_sentence(ray_cluster: Workers):
    import ray

    expect(2.0)
    occupied = ray.remote(Double).options(num_cpus=ray_cluster.cpus).remote()
    ray.get(occupied.start.remote())
    words = (
        r"cluster: expected a running worker \(1 CPUs and 0 GPUs\) within 2 s \(cluster\.patience_s\), "
        r"found none, with 0 CPUs and 0 GPUs free on 1 nodes; add such"
    )
    with pytest.raises(TransientError, match=words) as caught:
        ray_cluster.run(Double(), 1, Pool(1))
    assert caught.value.exit_code == 75
    with pytest.raises(TransientError, match=words):
        list(ray_cluster.map_units(Double(), [1, 2], Pool(2)))
    ray.kill(occupied)


@pytest.fixture
def add_nodes(ray_cluster: Workers) -> Iterator[Callable[[int], None]]:
    """Tells Ray, as its autoscaler does, of nodes with two CPUs and so many GPUs that it can add."""
    from ray._raylet import GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, GCS_AUTOSCALER_STATE_NAMESPACE
    from ray.core.generated.autoscaler_pb2 import ClusterConfig
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

    def tell(gpus: int) -> None:
        told = ClusterConfig()
        group = told.node_group_configs.add(name="more", min_count=0, max_count=4)
        group.resources.update({"CPU": 2, "GPU": gpus} if gpus else {"CPU": 2})
        content = told.SerializeToString()
        _internal_kv_put(GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, content, namespace=GCS_AUTOSCALER_STATE_NAMESPACE)

    yield tell
    _internal_kv_del(GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, namespace=GCS_AUTOSCALER_STATE_NAMESPACE)


@pytest.mark.usefixtures("patient_again")
def test_a_node_that_can_come_and_does_not_is_waited_for_and_may_come_later(
    ray_cluster: Workers, add_nodes: Callable[[int], None]
):
    add_nodes(1)
    expect(60.0, wait_s=2.0)
    words = (
        r"1 CPUs and 1 GPUs for one worker, within 2 s \(cluster\.wait_s\), found one node of .*no node came"
    )
    with pytest.raises(TransientError, match=words) as caught:
        ray_cluster.run(Double(), 1, Pool(1, gpus=1))
    assert caught.value.exit_code == 75


def test_what_no_node_that_can_come_holds_is_refused_at_once(
    ray_cluster: Workers, add_nodes: Callable[[int], None]
):
    add_nodes(0)
    words = (
        r"1 CPUs and 1 GPUs for one worker, found one node of .*more to be added 2 CPUs and 0 GPUs each; "
        r"lower"
    )
    with pytest.raises(ConfigError, match=words) as caught:
        ray_cluster.run(Double(), 1, Pool(1, gpus=1))
    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("patient_again")
def test_a_long_item_is_no_reason_to_give_up(ray_cluster: Workers):
    assert dict(ray_cluster.map_units(Long(4.5, patience_s=3.0), [7], Pool(1, cpus=0.5))) == {0: 7}


@pytest.mark.slow
@pytest.mark.usefixtures("patient_again")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_that_hangs_is_killed_and_its_item_begins_again(
    ray_cluster: Workers, tmp_path: Path, capfd: pytest.CaptureFixture[str], stopped: bool
):
    expect(15.0)  # on a busy machine a worker needs some seconds to start
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
def test_a_killed_worker_is_told_without_a_word_of_infinite_retries(tmp_path: Path):
    """In a process of its own: Ray reads once, when it is imported, which lines it leaves out."""
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
    told = ended.stdout + ended.stderr
    assert "{0: 7, 1: 8}" in told
    assert "A worker died or was killed" in told
    assert "retries" not in told


@pytest.mark.parametrize(
    ("count", "pool", "expected"),
    [
        (10, Pool(4), (4, 4, 4)),
        (2, Pool(4), (2, 2, 2)),
        (10, Pool(4, least=1, now=2), (1, 4, 2)),
        (10, Pool(4, least=3, now=2), (3, 4, 3)),
        (1, Pool(4, least=3, now=2), (1, 1, 1)),
        (10, Pool(4, least=1, now=0), (1, 4, 4)),
    ],
)
def test_a_pool_has_never_more_actors_than_items(count: int, pool: Pool, expected: tuple[int, int, int]):
    assert pool.of_items(count) == expected


@pytest.fixture(scope="module")
def gpus() -> dict[str, object]:
    """What a process found that had a Ray of two GPUs to itself (logical ones: nothing computes on them)."""
    command = [sys.executable, "-m", "tests.flows.gpus"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_halves_of_gpus_hold_two_workers_each_at_the_same_time(gpus):
    assert gpus["most"] == 4, "two GPUs, half a GPU each"
    assert gpus["workers by gpu"] == {"0": 2, "1": 2}
    assert gpus["at once"] == 4
    assert gpus["device"] == "cuda"


@pytest.mark.slow
def test_gpus_are_free_and_workers_gone_when_a_stage_has_ended(gpus):
    assert gpus["free between the stages"] == 2
    assert gpus["left over"] == 0
    assert gpus["next stage"] == 2, "a pool of whole GPUs follows"


@pytest.mark.slow
def test_on_a_cluster_with_gpus_a_pool_without_them_stays_on_the_cpu(gpus):
    assert gpus["device without"] == "cpu"


@pytest.mark.slow
def test_three_gpus_on_a_node_of_two_are_refused_before_anything_starts(gpus):
    assert (
        gpus["refused"]
        == "cluster: expected 1 CPUs and 3 GPUs for one worker, found one node of 4 CPUs and 2 GPUs"
    )


def on_short_memory(part: float) -> dict[str, object]:
    """How a driver ended whose workers have that part of the free memory."""
    command = [sys.executable, "-m", "tests.flows.memory", str(part)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.alone
@pytest.mark.skipif(psutil.virtual_memory().available < 6 << 30, reason="6 GB of free memory are needed")
def test_an_item_that_takes_more_memory_than_there_is_ends_the_run_with_a_sentence():
    """Ray's memory monitor kills the worker each time, and whatever else it likes: also the board on which
    progress is told.
    """
    ended = on_short_memory(0.5)
    assert ended["exit code"] == 75
    assert str(ended["said"]).startswith(
        "item 0 of Swell: expected a process that finishes it, found 2 that died at it; free memory "
        "(fewer workers"
    )


@pytest.mark.slow
def test_memory_that_others_have_taken_ends_the_run_though_neither_workers_nor_the_board_live():
    ended = on_short_memory(0.0)
    assert ended["exit code"] == 75
    assert (
        "cluster: expected a running worker (1 CPUs and 0 GPUs) within 30 s (cluster.patience_s), found none"
        in str(ended["said"])
    )

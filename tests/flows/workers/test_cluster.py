"""The address of the cluster, the number of workers, and errors for wrong addresses. No Ray is started."""

import errno
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from typing import Any

import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError, TransientError
from pipeline.flows.workers.address import ClusterAddress
from pipeline.flows.workers.cluster import _abort_after, _discard_stderr, connect
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.nodes import Node, ResourceDemand
from pipeline.flows.workers.ray_workers import RayWorkers
from pipeline.log import Stages, ends_by
from pipeline.settings import ClusterSettings, EncodeSettings, Job

HEAD = ClusterAddress("10.0.0.1:6379", "cluster.address")
LOCAL = ClusterAddress("local", "local Ray")


@pytest.fixture
def not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connect() look for a cluster although another test of this process may have started Ray."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.mark.parametrize(
    ("setting", "variable", "expected"),
    [
        (None, None, ("local", "local Ray")),
        (None, "", ("local", "local Ray")),
        (None, "10.0.0.1:6379", ("10.0.0.1:6379", "RAY_ADDRESS")),
        (None, "http://127.0.0.1:8265", ("local", "local Ray")),
        (None, "https://127.0.0.1:8265", ("local", "local Ray")),
        ("auto", "10.0.0.1:6379", ("auto", "cluster.address")),
    ],
)
def test_the_setting_precedes_the_environment_and_dashboard_urls_are_ignored(
    monkeypatch, setting, variable, expected
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert ClusterAddress.of(ClusterSettings(address=setting)) == expected


@pytest.mark.usefixtures("not_connected")
@pytest.mark.parametrize(
    ("setting", "variable", "words"),
    [
        ("nonsense", None, r"^cluster\.address: .*found 'nonsense'.*set cluster\.address to null"),
        ("http://127.0.0.1:8265", None, r"^cluster\.address: .*found 'http://127\.0\.0\.1:8265'"),
        (None, "nonsense", r"^RAY_ADDRESS: .*found 'nonsense'.*unset RAY_ADDRESS"),
    ],
)
def test_a_malformed_address_is_refused_naming_its_source(monkeypatch, setting, variable, words):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(ConfigError, match=words), connect(ClusterSettings(address=setting), Stages()):
        pass


def test_an_address_that_ray_refuses_is_named():
    code = """
from pipeline.flows.workers.cluster import connect
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
with connect(ClusterSettings(address="host:port"), Stages()):
    pass
"""  # in a process of its own: this one may be connected to Ray
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert re.search(r"ConfigError: cluster\.address: .*found 'host:port'", ended.stderr)


@pytest.mark.slow
def test_a_second_local_ray_of_a_process_has_lost_no_node():
    code = """if True:
        from pipeline.flows.workers.cluster import connect
        from pipeline.flows.workers.nodes import nodes_alive, take_lost
        from pipeline.log import Stages
        from pipeline.settings import ClusterSettings

        for _ in range(2):
            with connect(ClusterSettings(), Stages()):
                print(len(nodes_alive()), take_lost(nodes_alive()))
        """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "1 []\n1 []\n", ended.stderr


@pytest.mark.usefixtures("not_connected")
@pytest.mark.parametrize("address", ["no-such-host.invalid:6379", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_unreachable_address_is_reported_at_once(address: str):
    words = r"^cluster\.address .*expected a Ray cluster that answers.*check host and port"
    with pytest.raises(TransientError, match=words), connect(settings(address=address), Stages()):
        pass


@pytest.mark.usefixtures("not_connected")
def test_a_port_that_sends_nothing_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        impatient = settings(address=address).model_copy(update={"patience_s": 0.3})
        words = (
            rf"^cluster\.address {address}: expected a Ray cluster that answers, found a port that accepts "
            r"connections but sends nothing for 0\.3 s; check"
        )
        with pytest.raises(TransientError, match=words), connect(impatient, Stages()):
            pass


def test_connecting_to_a_hanging_head_times_out():
    errors, over = list[Exception](), threading.Event()

    def end(error: Exception) -> None:
        errors.append(error)
        over.set()

    with ends_by(end), _abort_after(0.05, HEAD, lambda: None):
        assert over.wait(10)
    assert str(errors[0]).startswith(
        "cluster.address 10.0.0.1:6379: expected a Ray cluster that answers, found no answer within "
        "0.05 s (cluster.patience_s)"
    )
    with ends_by(end), _abort_after(60, HEAD, lambda: None):
        pass
    assert len(errors) == 1


def test_a_slow_start_of_ray_is_reported_although_standard_error_is_redirected(
    capfd: pytest.CaptureFixture[str],
):
    over = threading.Event()

    def end(error: Exception) -> None:
        os.write(2, f"error: {error}\n".encode())
        over.set()

    with ends_by(end), _discard_stderr(False) as reopen, _abort_after(0.05, LOCAL, reopen):
        os.write(2, b"a line of the native code of Ray\n")
        assert over.wait(10)
    written = capfd.readouterr().err
    assert "native code" not in written
    assert (
        "error: local Ray local: expected a Ray cluster that answers, found no answer within 0.05 s"
        in written
    )


SMALL = RayWorkers((Node(cpus=2), Node(cpus=2)))
GROWING = RayWorkers((Node(cpus=2),), grows=True)
GPUS = RayWorkers((Node(cpus=16), Node(cpus=8, gpus=2), Node(cpus=8, gpus=2)))


def settings(**values: Any) -> ClusterSettings:
    return ClusterSettings.model_validate(values)


@pytest.mark.parametrize(
    ("cluster", "values", "work", "expected"),
    [
        (SMALL, {}, 100, (4, 4, 4)),  # least, most, initial
        (SMALL, {}, 3, (3, 3, 3)),
        (SMALL, {"workers": 3}, 100, (3, 3, 3)),
        (SMALL, {"workers": {"max": 3}}, 100, (1, 3, 3)),
        (SMALL, {"workers": {"min": 2}}, 100, (2, 4, 4)),
        (SMALL, {"workers": {"min": 2, "max": 3}}, 100, (2, 3, 3)),
        (SMALL, {"workers": {"max": 100}}, 100, (1, 4, 4)),  # no more than there is room for
        (SMALL, {"cpus_per_worker": 2}, 100, (2, 2, 2)),
        (GROWING, {}, 100, (2, 2, 2)),
        (GROWING, {"workers": {"max": 8}}, 100, (1, 8, 2)),
        (GROWING, {"workers": {"min": 4, "max": 8}}, 100, (4, 8, 4)),
        (GROWING, {"workers": {"min": 4, "max": 8}}, 3, (3, 3, 3)),
        (GROWING, {"workers": 8, "gpus_per_worker": 1}, 100, (8, 8, 8)),  # nodes with GPUs have yet to come
        (GROWING, {"workers": {"min": 2}, "gpus_per_worker": 1}, 100, (2, 2, 2)),
        (GPUS, {"gpus_per_worker": 1}, 100, (4, 4, 4)),
        (GPUS, {"gpus_per_worker": 0.5}, 100, (8, 8, 8)),
        (GPUS, {"gpus_per_worker": 0.4}, 100, (8, 8, 8)),  # two to a GPU: a worker is on one GPU
        (
            GPUS,
            {"gpus_per_worker": 0.5, "cpus_per_worker": 4},
            100,
            (4, 4, 4),
        ),  # limited by the CPUs of the nodes with GPUs
        (GPUS, {"gpus_per_worker": 2}, 100, (2, 2, 2)),
        (GPUS, {}, 100, (32, 32, 32)),
    ],
)
def test_the_pool_size_follows_the_settings_the_work_and_the_resources(
    cluster: Workers, values: dict[str, Any], work: int, expected: tuple[int, int, int]
):
    pool = cluster.pool(settings(**values), work)
    limited = pool.limited_to(work)
    assert (limited.least, limited.size, limited.initial) == expected


IDLE = RayWorkers((Node(cpus=16), Node(cpus=6)), idle=True)


@pytest.mark.parametrize(
    ("cluster", "values", "work", "workers", "cpus"),
    [
        (IDLE, {}, 100, 22, 1),
        (IDLE, {}, 5, 5, 4),  # four on the first node, one on the second
        (IDLE, {}, 2, 2, 8),  # with 9, the first node would hold one, and the second none
        (IDLE, {}, 1, 1, 16),
        (IDLE, {"cpus_per_worker": 2}, 3, 3, 6),  # in multiples of cpus_per_worker
        (IDLE, {"workers": {"max": 2}}, 1, 1, 1),
        (replace(IDLE, idle=False), {}, 1, 1, 1),
        (replace(IDLE, grows=True), {}, 1, 1, 1),
        (RayWorkers((Node(cpus=16, gpus=2),), idle=True), {"gpus_per_worker": 1}, 1, 1, 1),
    ],
)
def test_few_workers_share_all_cpus_of_an_idle_cluster(
    cluster: Workers, values: dict[str, Any], work: int, workers: int, cpus: float
):
    pool = cluster.wide_pool(settings(**values), work)
    assert (pool.size, pool.cpus) == (workers, cpus)
    threads = cluster.encode_settings(EncodeSettings(threads=2), pool).threads
    assert threads == 2 * cpus / settings(**values).cpus_per_worker


@pytest.mark.parametrize(
    ("cluster", "values", "words"),
    [
        (
            SMALL,
            {"cpus_per_worker": 4},
            "4 CPUs and 0 GPUs for one worker, found 2 nodes of 2 CPUs and 0 GPUs; lower cluster",
        ),  # 4 CPUs in all, but on two nodes
        (SMALL, {"gpus_per_worker": 1, "workers": 2}, "1 CPU and 1 GPU for one worker"),
        (
            GPUS,
            {"gpus_per_worker": 3},
            "3 GPUs for one worker, found 3 nodes of 16 CPUs and 0 GPUs, 8 CPUs and 2 GPUs; lower",
        ),
        (GROWING, {"gpus_per_worker": 1}, "set cluster.workers.max, and the cluster's autoscaler"),
    ],
)
def test_a_worker_too_large_for_every_node_is_refused(cluster: Workers, values: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        cluster.pool(settings(**values), 100)


@pytest.mark.parametrize("workers", [5, {"min": 5}, {"min": 6, "max": 8}])
@pytest.mark.parametrize("work", [1, 100])
def test_a_minimum_above_the_size_of_a_fixed_cluster_is_refused(workers: object, work: int):
    with pytest.raises(
        ConfigError, match=r"^cluster\.workers\.min: .*room for 4 on 2 nodes of 2 CPUs"
    ) as caught:
        SMALL.pool(settings(workers=workers), work)
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="workers of 1 CPU and 0 GPUs"):
        SMALL.check(settings(workers=workers))


@pytest.mark.parametrize("cluster", [SMALL, GROWING, GPUS, LocalWorkers()])
def test_a_minimum_within_present_or_future_resources_is_accepted(cluster: Workers):
    cluster.check(settings())
    cluster.check(settings(workers={"min": 2}))
    cluster.check(settings(workers={"max": 100}))


def test_a_growing_cluster_must_provide_the_minimum():
    assert GROWING.pool(settings(workers={"min": 4, "max": 8}), 100).demand == ResourceDemand(1.0, 0.0, 4)
    assert GROWING.pool(settings(workers={"min": 4, "max": 8}), 3).demand.workers == 3
    assert GROWING.pool(settings(), 100).demand.workers == 1


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("cluster.workers=4", (4, 4)),
        ("cluster.workers=null", (None, None)),
        ("cluster.workers=", (None, None)),
        ("cluster.workers.max=4", (None, 4)),
        ("cluster.workers={min: 2, max: 5}", (2, 5)),
    ],
)
def test_a_plain_number_of_workers_is_minimum_and_maximum(
    override: str, expected: tuple[int | None, int | None]
):
    workers = load_settings(Job, None, (override,)).cluster.workers
    assert (workers.min, workers.max) == expected


@pytest.mark.parametrize(
    "override",
    [
        "cluster.workers=0",
        "cluster.workers={min: 3, max: 2}",
        "cluster.workers=true",
        "cluster.workers=2.5",
        "cluster.gpus_per_worker=1.5",
        "cluster.patience_s=0",
    ],
)
def test_invalid_numbers_of_workers_and_gpus_are_refused(override: str):
    with pytest.raises(ConfigError, match="cluster"):
        load_settings(Job, None, (override,))


@pytest.mark.usefixtures("not_connected")
def test_a_local_ray_is_not_started_if_its_shared_memory_is_read_only(monkeypatch: pytest.MonkeyPatch):
    def refuse(**_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with (
        pytest.raises(ConfigError, match=r"^/dev/shm: expected a writable folder"),
        connect(ClusterSettings(), Stages()),
    ):
        pass

"""The driver watches the workers of a call: it gives up at the end of its patience, not later, and continues
if Ray fails for a moment.
"""

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pipeline.errors import PipelineError, TransientError
from pipeline.flows.workers import heartbeat as boards
from pipeline.flows.workers import nodes as cluster_nodes
from pipeline.flows.workers import watch
from pipeline.flows.workers.heartbeat import PATIENCE_S, Call, open_board, set_patience
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import Node, ResourceDemand, nodes_alive
from pipeline.flows.workers.processes import WorkerProcess
from pipeline.flows.workers.tasks import Pool
from pipeline.flows.workers.watch import Watch
from tests.flows.tasks import Double

MakeWatch = Callable[[Call], Watch]


@pytest.fixture
def call(ray_cluster: Workers) -> Iterator[Call]:
    call = Call(open_board(), uuid.uuid4().hex)
    yield call
    call.close()
    set_patience(PATIENCE_S)


@pytest.fixture
def watching(call: Call) -> Iterator[MakeWatch]:
    """Start watches of workers with one CPU each; stop them when the test ends."""
    watches: list[Watch] = []

    def make(call: Call) -> Watch:
        watches.append(Watch(call, "Double", ResourceDemand(1.0, 0.0), 3, None))
        return watches[-1]

    yield make
    for started in watches:
        started.stop()


def given_up(watch: Watch, within_s: float) -> PipelineError:
    """Wait for the error with which the watch gives up."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            watch.check()
        except PipelineError as error:
            return error
        time.sleep(0.05)
    raise AssertionError(f"no error within {within_s:g} s")


def current_process() -> WorkerProcess:
    """Describe this process as a worker."""
    import ray

    return WorkerProcess.current(ray.get_runtime_context().get_node_id())


@pytest.mark.slow
def test_the_item_of_a_dead_worker_is_awaited_once(ray_cluster: Workers, call: Call, watching: MakeWatch):
    import ray

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ray_cluster.run(Double(), 1, Pool(1, cpus=0.5))  # leaves a process in which the node can answer at once
    set_patience(6.0)
    watch = watching(call)
    ray.get(call.board.record_start.remote(call.name, 0, replace(current_process(), pid=ended.pid)))
    start = time.monotonic()
    error = given_up(watch, within_s=30.0)
    assert isinstance(error, TransientError)
    assert "a running worker (1 CPU and 0 GPUs) within 6 s (cluster.patience_s)" in str(error)
    assert 5.0 < time.monotonic() - start < 12.0, "one patience and a node's answer, not two"


def test_a_second_attempt_counts_as_no_death(call: Call):
    assert call.record_start(3) == 1
    assert call.record_start(3, second=True) == 1
    assert call.start_counts() == {3: 1}
    assert call.record_start(3) == 2, "the first attempt died"


def test_a_short_silence_of_the_cluster_is_tolerated(
    call: Call, watching: MakeWatch, monkeypatch: pytest.MonkeyPatch
):
    import ray

    failed: list[float] = []
    answers = ray.nodes

    def nodes() -> Any:
        if len(failed) < 2:
            failed.append(time.monotonic())
            raise ray.exceptions.RaySystemError("the head is away")
        return answers()

    set_patience(2.0)
    watch_over = watching(call)
    monkeypatch.setattr(watch, "_NODES_S", 0.1)
    monkeypatch.setattr(ray, "nodes", nodes)
    assert isinstance(given_up(watch_over, within_s=20.0), TransientError)
    assert len(failed) == 2


@pytest.mark.parametrize(("demanded", "refused"), [(1, False), (10_000, True)])
def test_workers_that_cannot_be_scheduled_end_the_call_after_the_wait(
    call: Call, demanded: int, refused: bool
):
    set_patience(PATIENCE_S, 1.0)
    watch_of_call = Watch(call, "Double", ResourceDemand(1.0, 0.0, demanded), 3, None)
    try:
        if not refused:
            with pytest.raises(AssertionError, match="no error"):
                given_up(watch_of_call, within_s=3.0)
            return
        error = given_up(watch_of_call, within_s=20.0)
    finally:
        watch_of_call.stop()
    assert isinstance(error, TransientError)
    expected = (
        r"room for 10000 workers of 1 CPU and 0 GPUs \(cluster.workers.min\), within 1 s .*found room for \d"
    )
    assert re.search(expected, str(error))


class Lossy:
    """A board that loses the first heartbeats."""

    def __init__(self) -> None:
        self.sent = 0
        self.heard = threading.Event()
        self.record_heartbeat = self

    def remote(self, *arguments: Any) -> None:
        import ray

        self.sent += 1
        if self.sent < 3:
            raise ray.exceptions.RaySystemError("the board is away")
        self.heard.set()


@pytest.mark.usefixtures("ray_cluster")
def test_heartbeats_continue_after_a_lost_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(boards, "_HEARTBEAT_S", 0.05)
    board = Lossy()
    with Call(board, "call").heartbeats():
        assert board.heard.wait(10.0)


@pytest.fixture
def lost_gpu(ray_cluster: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this run believe that it has seen a node with a GPU, which is lost now."""
    import ray

    monkeypatch.setattr(cluster_nodes, "_seen_by_job", {})
    monkeypatch.setattr(cluster_nodes, "_addresses_by_job", {})
    lost = {
        "Alive": True,
        "NodeID": os.urandom(28).hex(),
        "NodeManagerAddress": "10.0.0.9",
        "Resources": {"CPU": 8.0, "GPU": 1.0},
    }
    with pytest.MonkeyPatch.context() as earlier:
        nodes = ray.nodes()
        earlier.setattr(ray, "nodes", lambda: [*nodes, lost])
        nodes_alive()


@pytest.mark.usefixtures("lost_gpu", "call")
@pytest.mark.parametrize("more", [(), (Node(1.0, 1.0),)])
def test_a_lost_node_is_a_transient_error_after_the_wait(
    ray_cluster: Workers, more: tuple[Node, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch, "addable_nodes", lambda: more)
    set_patience(60.0, wait_s=2.0)
    words = (
        r"cluster: expected 1 CPU and 1 GPU for one worker, within 2 s \(cluster\.wait_s\), found one "
        r"node of .* lost; start the lost node or one like it"
    )
    with pytest.raises(TransientError, match=words) as caught:
        ray_cluster.run(Double(), 1, Pool(1, gpus=1))
    assert caught.value.exit_code == 75


@pytest.mark.usefixtures("lost_gpu")
def test_a_node_lost_between_two_calls_is_reported_once_by_the_next(
    call: Call, watching: MakeWatch, capsys: pytest.CaptureFixture[str]
):
    watching(call)
    watching(call)
    message = "node 10.0.0.9 is lost; its unfinished work is repeated on the 1 that is left"
    assert capsys.readouterr().err.count(message) == 1

"""The child process that runs small nights keeps the guarantees of a Ray pool."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import heap
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.flows.workers import local as module
from pipeline.flows.workers.cluster import connect, local_workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.tasks import Pool
from pipeline.keep_alive import keep_alive
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from pipeline.store.files.cache import get_or_build
from pipeline.store.files.open_store import open_store
from tests.faults import Faults, FaultyProxy
from tests.flows.conftest import ROOT
from tests.flows.tasks import Compute, Count, DieOnce, Double, Fetch, HangOnce, Kept


def test_one_child_processes_items_in_order_and_raises_their_errors():
    with closing(LocalWorkers()) as process:
        made = list(process.map_units(Double(), [1, 2, 3], Pool(4)))
        assert [(number, value) for number, (value, _) in made] == [(0, 2), (1, 4), (2, 6)]
        workers = {worker for _, (_, worker) in made}
        assert len(workers) == 1
        assert os.getpid() not in workers
        assert process.run(Double(), 21, Pool(1))[0] == 42
        with pytest.raises(DataError) as caught:
            list(process.map_units(Double(), [5, 13], Pool(1)))
        assert caught.value.remedy == "take another number"
    assert not psutil.pid_exists(workers.pop())
    with local_workers(False, 1.0) as nothing:
        assert nothing is None


def test_a_killed_child_is_restarted_unless_it_always_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with closing(LocalWorkers()) as process:
        assert dict(process.map_units(DieOnce(str(tmp_path)), [1, 2], Pool(1))) == {0: 1, 1: 2}
        monkeypatch.setattr(module, "MAX_STARTS", 2)
        with pytest.raises(TransientError, match="2 that died while working on it"):
            process.run(DieOnce(str(tmp_path), deaths=5), 3, Pool(1))


@pytest.mark.parametrize("stopped", [False, True], ids=["sleeps", "stopped by SIGSTOP"])
def test_a_hanging_child_is_killed_and_its_item_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], stopped: bool
):
    with closing(LocalWorkers(2.5)) as process:
        assert dict(process.map_units(HangOnce(str(tmp_path), stopped), [7], Pool(1))) == {0: 7}
        hung = int((tmp_path / "7").read_text())
        assert not psutil.pid_exists(hung)
    said = capfd.readouterr().err
    assert said.count("item 0 of HangOnce has shown no progress for ") == 1


@pytest.mark.slow
def test_a_computing_child_without_reports_is_not_killed(capfd: pytest.CaptureFixture[str]):
    with closing(LocalWorkers(4.0)) as process:
        assert process.run(Compute(6.0), 7, Pool(1)) == 7
    assert "no progress" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_child_that_waits_for_the_copy_of_another_process_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path))
    cached, begun, over = tmp_path / "ab" / f"{7:064x}", threading.Event(), threading.Event()

    def download(copy: Path) -> None:
        begun.set()
        while not over.wait(0.2):
            keep_alive()
        copy.touch()

    with closing(LocalWorkers(4.0)) as process, ThreadPoolExecutor(1) as other:
        copied = other.submit(get_or_build, cached, download, Path.is_file)
        begun.wait()
        threading.Timer(7.0, over.set).start()
        assert process.run(Kept(str(cached)), 7, Pool(1)) == 7
        copied.result()
    assert "no progress" not in capfd.readouterr().err


@pytest.mark.usefixtures("faulty")
def test_a_child_that_waits_for_the_store_is_not_killed(
    s3: str, faulty: FaultyProxy, capfd: pytest.CaptureFixture[str]
):
    open_store(s3).write("slow", b"slow")
    faulty.faults = Faults(delayed=1.0, delay_s=4.5)
    with closing(LocalWorkers(3.0)) as process:
        assert process.run(Fetch(s3, "slow"), 0, Pool(1)) == 4
    assert "no progress" not in capfd.readouterr().err


def test_the_progress_bar_follows_the_current_item():
    stages = Stages()
    with closing(LocalWorkers()) as process, stages("count", 20) as bar:
        seen = [bar.stage.done for _ in process.map_units(Count(), [0, 1], Pool(1), bar)]
    assert 8 <= seen[0] <= 10
    assert 16 <= seen[1] <= 20


def test_the_child_ends_with_a_killed_driver():
    code = """
import time
from pipeline.flows.workers.local import LocalWorkers
from tests.flows.tasks import Double

if __name__ == "__main__":
    workers = LocalWorkers()
    print(*workers.run(Double(), 1, None), flush=True)  # the result, and the process id of the child
    time.sleep(60)
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert driver.stdout is not None
    child = int(driver.stdout.readline().split()[1])
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    deadline = time.monotonic() + 20
    while (
        psutil.pid_exists(child)
        and psutil.Process(child).status() != psutil.STATUS_ZOMBIE
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_closed_workers_start_a_new_child_on_demand():
    process = LocalWorkers()
    first = run_in(process)
    process.close()
    second = run_in(process)
    process.close()
    assert first != second


@pytest.mark.parametrize("cpus", [0.5, 1, 4])
def test_local_workers_have_one_process_for_any_cpus_per_worker(cpus: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 4)
    settings = ClusterSettings(cpus_per_worker=cpus)
    with connect(settings, Stages(), local=LocalWorkers()) as cluster:
        assert cluster.pool(settings, 10).size == 1


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"workers": 5}, r"room for 5 workers of 1 CPU .*found room for 4 on one node of 4 CPUs"),
        ({"workers": 3, "cpus_per_worker": 2}, r"room for 3 workers of 2 CPUs .*found room for 2"),
        ({"cpus_per_worker": 5}, r"5 CPUs .*for one worker, found one node of 4 CPUs"),
    ],
)
def test_local_workers_refuse_the_settings_that_a_local_ray_refuses(
    settings: dict[str, float], error: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 4)
    with closing(LocalWorkers()) as process, pytest.raises(ConfigError, match=error):
        process.check(ClusterSettings.model_validate(settings))


class InterruptedMemory(list[int]):
    """Simulation of the memory that parent and child share, while one of them reads or writes it.

    `interrupt`, the access of the other process, is called before read or write number `at`, counted from 1.
    """

    def __init__(self, at: int, interrupt: Callable[[], object]) -> None:
        super().__init__([0, 0, 0, 0])
        self._accesses_left, self._interrupt = at, interrupt

    def _count_access(self) -> None:
        self._accesses_left -= 1
        if self._accesses_left == 0:
            self._interrupt()

    def __getitem__(self, index: Any) -> Any:
        self._count_access()
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        pairs = zip(range(4)[index], value, strict=True) if isinstance(index, slice) else [(index, value)]
        for number, each in pairs:  # one after the other, as in shared memory
            self._count_access()
            super().__setitem__(number, each)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_read_during_a_report_returns_all_of_it_or_no_new_report(at: int, monkeypatch: pytest.MonkeyPatch):
    reads: list[tuple[int, int, bool]] = []
    shared = InterruptedMemory(at, lambda: reads.append(module._read_report(list(shared))))
    monkeypatch.setattr(module, "_counters", shared)
    module._report(7, more=False)
    (read,) = reads
    assert read[0] == 0 or read == (1, 7, False)


@pytest.mark.parametrize("at", range(1, 4))
def test_a_report_during_a_read_is_returned_whole_by_this_read_or_the_next(
    at: int, monkeypatch: pytest.MonkeyPatch
):
    shared = InterruptedMemory(at, lambda: module._report(7, more=False))
    monkeypatch.setattr(module, "_counters", shared)
    read = module._read_report(shared)
    assert read[0] == 0 or read == (1, 7, False)
    assert module._read_report(shared) == (1, 7, False)


def run_in(process: LocalWorkers) -> int:
    return int(process.run(Double(), 1, Pool(1))[1])


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EROFS, ConfigError), (errno.EACCES, ConfigError), (errno.ENOSPC, TransientError)],
)
def test_shared_memory_that_cannot_be_written_is_named(monkeypatch, number, error):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(heap.BufferWrapper, "_heap", heap.Heap())  # without room for the array
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(error, match=r"^/dev/shm: expected"):
        LocalWorkers()

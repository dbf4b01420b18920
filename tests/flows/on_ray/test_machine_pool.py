"""Training an index takes a whole machine of a Ray cluster if nothing else uses it."""

from dataclasses import dataclass

import pytest
import ray

from pipeline.flows.workers import ray_workers
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import PlainTask
from pipeline.flows.workers.worker_encoder import assigned_cpus
from pipeline.settings import ClusterSettings


@dataclass(frozen=True)
class CountCpus(PlainTask[None, int]):
    """Return the CPUs that Ray reserved for the worker."""

    def work(self, _: None) -> int:
        return assigned_cpus()


def test_an_idle_machine_is_taken_whole(ray_cluster: Workers):
    pool = ray_cluster.machine_pool(ClusterSettings())
    assert pool.cpus == max(node.cpus for node in ray_cluster.nodes)
    assert ray_cluster.run(CountCpus(), None, pool) == pool.cpus


def test_a_machine_in_use_is_shared(ray_cluster: Workers, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_workers, "_IDLE_WITHIN_S", 0.0)

    class Busy:
        def ready(self) -> bool:
            return True

    other = ray.remote(Busy).options(num_cpus=1).remote()
    assert ray.get(other.ready.remote())
    try:
        pool = ray_cluster.machine_pool(ClusterSettings())
        assert pool.cpus == ClusterSettings().cpus_per_worker
        assert ray_cluster.run(CountCpus(), None, pool) == 1
    finally:
        ray.kill(other)

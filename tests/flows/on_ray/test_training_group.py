"""Messages and errors of training workers reach the driver unchanged; the worker that died is distinguished
from workers that lost their connection to it.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.flows.train.ranks import LostPeer, RankGroup, describe_loss, is_lost_peer, nccl_refusal
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import Node
from pipeline.flows.workers.ray_workers import RayWorkers
from pipeline.log import Stages, announce, listening
from pipeline.settings import ClusterSettings
from pipeline.settings.training import TrainSettings
from pipeline.text.rows.batches import RankSlice
from tests.flows.tasks import Double

GROUP = RankGroup(TrainSettings(workers=2, failures=1), ClusterSettings(cpus_per_worker=0.5))


def refusal() -> DataError:
    return DataError("step 7", "a finite loss", "nan", "look at the batch")


@dataclass(frozen=True)
class Sum:
    """Add the numbers of all ranks; one of the ranks may fail, or die at its first start."""

    folder: Path
    fails: int | None = None
    dies: int | None = None

    def __call__(self, rank_slice: RankSlice, device: str, tell: Callable[[int, str], None]) -> None:
        if rank_slice.rank == self.fails:
            raise refusal()
        starts = len(list(self.folder.glob(f"started-{rank_slice.rank}-*")))
        (self.folder / f"started-{rank_slice.rank}-{starts}").touch()
        total = torch.tensor([rank_slice.rank + 1.0])
        dist.all_reduce(total)
        if rank_slice.rank == self.dies and starts == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(total)
        announce(
            f"{rank_slice.rank} of {rank_slice.world} on {device} with {torch.get_num_threads()} threads"
        )
        tell(7, "all is well")
        (self.folder / f"sum-{rank_slice.rank}").write_text(str(total.item()))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_ranks_train_together_and_a_killed_one_is_replaced(tmp_path: Path):
    stages = Stages()
    with listening() as messages, stages("training", 7, "steps") as bar:
        GROUP.run(Sum(tmp_path, dies=1), bar)
    assert [(tmp_path / f"sum-{rank}").read_text() for rank in range(2)] == ["6.0", "6.0"]
    assert len(list(tmp_path.glob("started-*"))) == 4, "all ranks were started again, once"
    assert sum(sentence.startswith("a training worker is lost (rank 1: ") for sentence in messages) == 1
    assert messages.count("0 of 2 on cpu with 1 threads") == 1, "the message of the first rank"
    assert (stages.finished[0].done, stages.finished[0].note) == (7, "all is well")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_an_error_on_one_rank_is_raised_without_waiting_or_retrying(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        GROUP.run(Sum(tmp_path, fails=1))
    assert (str(caught.value), caught.value.exit_code) == (str(refusal()), 3)
    assert len(list(tmp_path.glob("started-*"))) == 1


def test_an_error_of_manta_takes_precedence_over_lost_connections():
    with pytest.raises(DataError, match="step 7"):
        describe_loss({0: LostPeer("connection closed"), 1: refusal()}, Exception("whole"))


def test_the_dead_rank_is_reported_rather_than_its_peers():
    from ray.exceptions import WorkerCrashedError

    assert describe_loss(
        {0: LostPeer("connection closed"), 1: WorkerCrashedError()}, Exception("whole")
    ).startswith("rank 1: WorkerCrashedError")
    assert (
        describe_loss({0: LostPeer("connection closed")}, Exception("whole"))
        == "rank 0: LostPeer: connection closed"
    )


def test_a_defect_is_raised_as_the_error_of_the_whole_group():
    with pytest.raises(RuntimeError, match="whole"):
        describe_loss({0: TypeError("a defect"), 1: LostPeer("connection closed")}, RuntimeError("whole"))


def test_a_full_cluster_is_refused_unless_it_can_grow():
    small = (Node(1.0), Node(0.5))
    GROUP.check(RayWorkers(small))
    four = RankGroup(TrainSettings(workers=4), ClusterSettings(cpus_per_worker=0.5))
    with pytest.raises(
        ConfigError,
        match=r"room for 4 workers of 0.5 CPUs and 0 GPUs .* room for 3 on 2 nodes of 1 CPU .*; lower",
    ):
        four.check(RayWorkers(small))
    four.check(RayWorkers(small, grows=True))
    with pytest.raises(ConfigError, match=r"1 CPU and 1 GPU for one worker, .*lower .*gpus_per_worker"):
        RankGroup(TrainSettings(), ClusterSettings(gpus_per_worker=1)).check(RayWorkers(small))


@pytest.mark.parametrize(("workers", "gpus"), [(2, 0.5), (4, 0.25)])
def test_workers_that_train_together_have_whole_gpus(workers: int, gpus: float):
    with pytest.raises(ConfigError, match=rf"gpus_per_worker: expected a whole number.*found {gpus:g}"):
        RankGroup(TrainSettings(workers=workers), ClusterSettings(gpus_per_worker=gpus))
    RankGroup(TrainSettings(), ClusterSettings(gpus_per_worker=gpus))
    RankGroup(TrainSettings(workers=workers), ClusterSettings(gpus_per_worker=1))


# as torch raises it
DUPLICATE_GPU = """NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage (run with NCCL_DEBUG=WARN)
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"""
LOST_NODE = """NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgress: Connection closed by remote peer"""


def test_what_nccl_refuses_is_not_a_lost_peer():
    assert nccl_refusal(RuntimeError(DUPLICATE_GPU)) == DUPLICATE_GPU.splitlines()[-1]
    assert nccl_refusal(RuntimeError(LOST_NODE)) is None
    assert is_lost_peer(RuntimeError(LOST_NODE))


@dataclass(frozen=True)
class Refused:
    """Fail as NCCL does if two ranks have the same GPU."""

    def __call__(self, rank_slice: RankSlice, device: str, tell: Callable[[int, str], None]) -> None:
        raise RuntimeError(DUPLICATE_GPU)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_what_nccl_refuses_is_not_tried_again():
    with listening() as messages, pytest.raises(ConfigError, match=r"train.workers.* Duplicate GPU detected"):
        GROUP.run(Refused())
    assert not [sentence for sentence in messages if "is lost" in sentence]


def test_workers_that_fit_no_node_are_refused_at_once(ray_cluster: Workers, tmp_path: Path):
    with pytest.raises(ConfigError, match="500 CPUs and 0 GPUs for one worker, found one node of"):
        RankGroup(TrainSettings(), ClusterSettings(cpus_per_worker=500)).run(Sum(tmp_path))


def test_waiting_for_occupied_resources_ends_with_an_error(ray_cluster: Workers, tmp_path: Path):
    import ray

    occupied = ray.remote(Double).options(num_cpus=ray_cluster.cpus).remote()
    ray.get(occupied.start.remote())
    with pytest.raises(TransientError, match=r"room for 1 worker of 1 CPU and 0 GPUs within 1 s"):
        RankGroup(TrainSettings(), ClusterSettings().model_copy(update={"patience_s": 1})).run(Sum(tmp_path))
    ray.kill(occupied)

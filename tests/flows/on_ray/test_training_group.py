"""Workers of a training: what they say and raise comes home as it was; who died and who only noticed is told
apart.
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
from pipeline.flows.train.ranks import LostPeer, RankGroup, describe_loss
from pipeline.flows.workers.ray_workers import RayWorkers
from pipeline.flows.workers.room import Node
from pipeline.flows.workers.workers import Workers
from pipeline.log import Stages, listening, say
from pipeline.text.rows.batches import RankSlice
from tests.flows.tasks import Double

GROUP = RankGroup(2, cpus=0.5, failures=1)


def refusal() -> DataError:
    return DataError("step 7", "a finite loss", "nan", "look at the batch")


@dataclass(frozen=True)
class Sum:
    """Ranks add up what they are; one of them may fail, or die at its first start."""

    folder: Path
    fails: int | None = None
    dies: int | None = None

    def __call__(self, share: RankSlice, device: str, tell: Callable[[int, str], None]) -> None:
        if share.rank == self.fails:
            raise refusal()
        started = (
            self.folder / f"started-{share.rank}-{len(list(self.folder.glob(f'started-{share.rank}-*')))}"
        )
        started.touch()
        total = torch.tensor([share.rank + 1.0])
        dist.all_reduce(total)
        if share.rank == self.dies and started.name.endswith("-0"):
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(total)
        say(f"{share.rank} of {share.world} on {device} with {torch.get_num_threads()} threads")
        tell(7, "all is well")
        (self.folder / f"sum-{share.rank}").write_text(str(total.item()))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_workers_work_together_and_one_that_dies_is_replaced(tmp_path: Path):
    stages = Stages()
    with listening() as heard, stages("training", 7, "steps") as bar:
        GROUP.run(Sum(tmp_path, dies=1), bar)
    assert [(tmp_path / f"sum-{rank}").read_text() for rank in range(2)] == ["6.0", "6.0"]
    assert len(list(tmp_path.glob("started-*"))) == 4, "all began anew, once"
    assert sum(sentence.startswith("a training worker is lost (rank 1: ") for sentence in heard) == 1
    assert heard.count("0 of 2 on cpu with 1 threads") == 1, "what the first rank said"
    assert (stages.finished[0].done, stages.finished[0].note) == (7, "all is well")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_an_error_of_ours_comes_home_while_others_wait_and_is_not_tried_again(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        GROUP.run(Sum(tmp_path, fails=1))
    assert (str(caught.value), caught.value.exit_code) == (str(refusal()), 3)
    assert len(list(tmp_path.glob("started-*"))) == 1


def test_an_error_of_ours_goes_before_what_others_met():
    with pytest.raises(DataError, match="step 7"):
        describe_loss({0: LostPeer("connection closed"), 1: refusal()}, Exception("whole"))


def test_who_died_is_told_rather_than_who_noticed():
    from ray.exceptions import WorkerCrashedError

    assert describe_loss(
        {0: LostPeer("connection closed"), 1: WorkerCrashedError()}, Exception("whole")
    ).startswith("rank 1: WorkerCrashedError")
    assert (
        describe_loss({0: LostPeer("connection closed")}, Exception("whole"))
        == "rank 0: LostPeer: connection closed"
    )


def test_a_defect_is_raised_with_all_that_is_known_of_it():
    with pytest.raises(RuntimeError, match="whole"):
        describe_loss({0: TypeError("a defect"), 1: LostPeer("connection closed")}, RuntimeError("whole"))


def test_a_cluster_without_room_is_refused_unless_it_grows():
    small = (Node(1.0), Node(0.5))
    GROUP.check(RayWorkers(small))
    with pytest.raises(
        ConfigError,
        match=r"room for 4 workers of 0.5 CPUs and 0 GPUs .* room for 3 on 2 nodes; lower train.workers",
    ):
        RankGroup(4, cpus=0.5).check(RayWorkers(small))
    RankGroup(4, cpus=0.5).check(RayWorkers(small, grows=True))


def test_workers_that_fit_no_node_are_refused_at_once(ray_cluster: Workers, tmp_path: Path):
    with pytest.raises(ConfigError, match="500 CPUs and 0 GPUs for one worker, found one node of"):
        RankGroup(1, cpus=500).run(Sum(tmp_path))


def test_workers_whose_room_others_take_are_waited_for_and_then_given_up(
    ray_cluster: Workers, tmp_path: Path
):
    import ray

    occupied = ray.remote(Double).options(num_cpus=ray_cluster.cpus).remote()
    ray.get(occupied.start.remote())
    with pytest.raises(TransientError, match=r"room for 1 workers of 1 CPUs and 0 GPUs within 3 s"):
        RankGroup(1, cpus=1, patience_s=3).run(Sum(tmp_path))
    ray.kill(occupied)

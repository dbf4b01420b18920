"""Trainings in this process, without Ray."""

from pipeline.flows.train.plan import open_dev, plan_of
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.run_folder import ResultRecord, RunFolder
from pipeline.flows.train.train import open_training, record_start
from pipeline.models.layers.numerics import use_threads
from pipeline.settings import Job
from pipeline.text.rows.batches import RankSlice


def train_alone(job: Job, device: str = "cpu") -> tuple[RunFolder, ResultRecord]:
    """Train as `manta train` with one worker does, to the same bits, but in this process, without Ray."""
    job, run = open_training(job)
    if run.result() is None:
        plan = plan_of(job.train)
        done = record_start(run, plan, job.encoder.path)
        rank = TrainRank(run, job.encoder, job.train, plan, open_dev(job.train), done)
        with use_threads(job.train.threads):
            rank(RankSlice(), device, lambda *_: None)
    return run, run.final_result()

"""The training of an encoder: checked, given to workers on the cluster, and gone on with wherever an earlier command was stopped."""

from dataclasses import dataclass
from typing import Literal

from pipeline.flows.cluster import connect
from pipeline.flows.encoders import for_workers
from pipeline.flows.training_group import group_of
from pipeline.flows.training_plan import Plan, open_dev, plan_of
from pipeline.flows.training_rank import TrainRank
from pipeline.flows.training_run import CHECKPOINTS, ResultRecord, RunFolder, RunRecord, open_run
from pipeline.log import Stages, say
from pipeline.models.folder import open_folder
from pipeline.settings import Job
from pipeline.store.store import open_store


@dataclass(frozen=True)
class Trained:
    """A training that has ended. unchanged: by an earlier command."""

    status: Literal["trained", "unchanged"]
    run: RunFolder
    result: ResultRecord


def train(job: Job, stages: Stages, *, verbose: bool = False) -> Trained:
    """The encoder of the job, trained; an equal command goes on where an earlier one stopped, and one that is done does nothing.

    Before any worker starts: ConfigError for settings that cannot be, a name that another training has, or a cluster without room; DataError for rows that cannot be
    trained on; ModelError for the encoder. Later: DataError where numbers are not finite any more; TransientError when workers died more often than train.failures.
    """
    run = open_run(job.train, open_folder(job.encoder))
    run.check()
    if (result := run.result()) is not None:
        return Trained("unchanged", run, result)
    with stages("data") as reading:
        plan, dev = plan_of(job.train), open_dev(job.train.dev)
        reading.add(sum(counts["rows"] for counts in plan.counts))
    _begin(run, plan)
    with connect(job.cluster, stages, verbose=verbose) as cluster:
        group = group_of(job.train, job.cluster)
        group.check(cluster)
        begun = _begun(run, plan)
        work = TrainRank(run, for_workers(job.encoder, open_store(job.train.root)), job.train, plan, dev, begun)
        with stages("training", plan.steps - begun, "steps") as bar:
            group.run(work, bar)
            bar.reach(plan.steps - begun)
    result = run.result()
    assert result is not None, "the first rank ends with it"
    return Trained("trained", run, result)


def _begin(run: RunFolder, plan: Plan) -> None:
    counts = tuple(dict(each) for each in plan.counts)
    run.begin(RunRecord(name=run.name, digest=run.digest, definition=run.definition, counts=counts, steps_per_epoch=plan.steps_per_epoch, steps=plan.steps))


def _begun(run: RunFolder, plan: Plan) -> int:
    """Steps that are done; says where a training goes on."""
    done = max((int(entry.path.rpartition("/")[2].split("-")[1]) for entry in run.store.list(CHECKPOINTS, ".json")), default=0)
    if done:
        say(f"training {run.name} goes on after step {done:,} of {plan.steps:,}")
    return done

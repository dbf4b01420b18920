"""The training of an encoder: check it, run it on the cluster, continue after an interruption."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import DataError
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.run import Run
from pipeline.flows.train.mine import check_mining, mine
from pipeline.flows.train.plan import Plan, check_length, check_settings, open_dev, plan_of
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.ranks import RankGroup
from pipeline.flows.train.run_folder import CHECKPOINTS, RUN, ResultRecord, RunFolder, RunRecord, open_run
from pipeline.flows.train.sources import pinned
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.workers import Workers
from pipeline.log import Stages, say
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.settings.training import TrainSettings
from pipeline.store.lease import holders, lease
from pipeline.store.store import open_store

_LEASES = "leases"  # folder below that of a training
_MINED = "mined"  # folder below train.root, shared by trainings with the same encoder and rows


@dataclass(frozen=True)
class Trained:
    """A complete training; its status is "unchanged" if an earlier command completed it."""

    status: Literal["trained", "unchanged"]
    run: RunFolder
    result: ResultRecord


def train(job: Job, stages: Stages, *, verbose: bool = False) -> Trained:
    """Train the encoder of the job. An equal command continues where an earlier one stopped.

    Raises:
        ConfigError: before any worker starts, for invalid settings, a name that another training has, or a
            cluster without room.
        DataError: before any worker starts for unusable rows; later if a value is not finite.
        ModelError: before any worker starts, for the encoder.
        TransientError: workers died more often than train.failures.
    """
    job, run = opened(job)
    check_length(job.train, open_folder(job.encoder))
    run.check()
    if (result := run.result()) is not None:
        return Trained("unchanged", run, result)
    dev, plan = open_dev(job.train), None if _mines(job) else _planned(job.train, stages)
    with connect(job.cluster, stages, verbose=verbose) as workers:
        group = RankGroup.of(job.train, job.cluster)
        group.check(workers)
        plan = plan or _planned(_with_negatives(job, workers, stages), stages)
        begun = begin(run, plan, _named(job), [source.uri for source in job.train.data])
        for other in holders(run.store, _LEASES):
            say(f"another command runs this training ({other}): each does all of it, with the same result")
        encoder = encoder_for_workers(job.encoder, open_store(job.train.root), workers)
        with lease(run.store, _LEASES), stages("training", plan.steps - begun, "steps") as bar:
            group.run(TrainRank(run, encoder, job.train, plan, dev, begun), bar)
            result = run.ended()
            bar.reach(max(result.steps - begun, 0))
    return Trained("trained", run, result)


def opened(job: Job) -> tuple[Job, RunFolder]:
    """Return the job with its starting encoder and its manifests resolved, and the folder of its training.

    An unfinished training continues with the manifests that it began with.
    """
    *begun, newest = pinned(job.train)
    for settings in begun:
        try:
            one, run = _opened(job, settings)
            record = RunRecord.load_intact(run.store, RUN)
        except DataError:  # a unit of that training is missing, or its record has another version
            continue
        if record is not None and record.digest == run.digest and run.result() is None:
            if settings != newest:
                say(
                    f"training {run.name} continues with {', '.join(record.sources)}, though there is a "
                    "later manifest"
                )
            return one, run
    return _opened(job, newest)


def _opened(job: Job, settings: TrainSettings) -> tuple[Job, RunFolder]:
    job = job.model_copy(update={"train": settings})
    if settings.recurrent.cell is not None:
        from pipeline.train.start import starting_encoder

        job = job.model_copy(update={"encoder": starting_encoder(settings, job.encoder)})
    return job, open_run(settings, open_folder(job.encoder))


def _named(job: Job) -> str:
    """Return a readable name of the encoder that training starts from."""
    new = job.train.recurrent
    if new.cell is None:
        return job.encoder.path
    return f"new {new.cell} ({new.directions} x {new.width}, {new.readout})"


def _planned(settings: TrainSettings, stages: Stages) -> Plan:
    with stages("data") as reading:
        plan = plan_of(settings)
        reading.add(sum(counts["rows"] for counts in plan.counts))
    return plan


def _mines(job: Job) -> bool:
    """Return whether hard negatives are mined first. Raises ConfigError if they cannot be."""
    if job.train.mine.enabled:
        check_settings(job.train)  # now, because mining may take long
        check_mining(job)
    return job.train.mine.enabled


def _with_negatives(job: Job, workers: Workers, stages: Stages) -> TrainSettings:
    """Mine hard negatives, and return the training settings with the mined rows as data."""
    kept = open_store(f"{open_store(job.train.root).uri}/{_MINED}")
    return job.train.model_copy(update={"data": mine(Run(job, kept, workers, stages), job.train.data)})


def begin(run: RunFolder, plan: Plan, encoder: str, sources: Sequence[str] = ()) -> int:
    """Record the training. Returns the number of steps that are already done, and logs it if there are any.

    Args:
        run: folder of the training.
        plan: rows and steps.
        encoder: name of the encoder that training starts from.
        sources: URIs of the rows.
    """
    run.begin(
        RunRecord(
            name=run.name,
            digest=run.digest,
            definition=run.definition,
            encoder=encoder,
            counts=tuple(dict(each) for each in plan.counts),
            steps_per_epoch=plan.order.steps_per_epoch,
            steps=plan.steps,
            sources=tuple(sources),
        )
    )
    done = max(
        (int(entry.path.rpartition("/")[2].split("-")[1]) for entry in run.store.list(CHECKPOINTS, ".json")),
        default=0,
    )
    if done:
        say(f"training {run.name} continues after step {done:,} of {plan.steps:,}")
    return done

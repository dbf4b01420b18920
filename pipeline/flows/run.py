"""The context of a running command."""

from dataclasses import dataclass

from pipeline.flows.workers.workers import Workers
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.base import Store


@dataclass(frozen=True)
class Run:
    """A job with everything its stages need: the store of its results, workers, and the progress that is
    shown.
    """

    job: Job
    store: Store
    workers: Workers
    stages: Stages

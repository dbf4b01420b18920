"""Choose where a night reads its corpus: in this process, or on the workers of a cluster."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.flows.night.previous_release import PreviousRelease, changed_files
from pipeline.flows.workers.address import ClusterAddress
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.text.sources.listing import local_path
from pipeline.text.sources.sources import list_files
from pipeline.text.task_map import IngestTask, TaskMap, map_here

# Bytes of changed files that one process reads in about the time that Ray takes to start.
SMALL_INPUT = 1 << 30


@contextmanager
def ingest_workers(
    job: Job, previous: PreviousRelease, stages: Stages, *, verbose: bool = False
) -> Iterator[TaskMap]:
    """Yield the function that runs the tasks of tonight's ingestion.

    The tasks run in this process. If many bytes of the input changed, they run on workers that are connected
    for the duration of the block.
    """
    is_remote = local_path(job.corpus.uri) is None
    # workers of another cluster do not see the files of this machine
    visible = is_remote or ClusterAddress.of(job.cluster).is_local
    if not visible or _changed_bytes(job, previous) <= SMALL_INPUT:
        yield map_here
        return
    with connect(job.cluster, stages.under("ingest"), verbose=verbose) as workers:
        workers.check(job.cluster)

        def map_on_workers(task: IngestTask, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
            return workers.map_units(task, items, Pool(workers.index_workers(job.cluster, len(items))))

        yield map_on_workers


def _changed_bytes(job: Job, previous: PreviousRelease) -> int:
    """Return the total size of the files to read tonight, which are found by size and time alone."""
    files = list_files(job.corpus.model_copy(update={"fingerprint": "fast"}))
    return sum(file.size for file in changed_files(files, previous.corpus))

"""The workers of a night: local workers as long as its work may be small, else workers of a Ray cluster."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encode import count_unencoded_rows
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.trial_encode import EncodeTexts
from pipeline.flows.night.gates.as_searcher import prepare_trials
from pipeline.flows.night.ingest_workers import ingest_workers
from pipeline.flows.night.previous_release import PreviousRelease
from pipeline.flows.workers import metrics
from pipeline.flows.workers.address import ClusterAddress
from pipeline.flows.workers.cluster import connect, is_local, local_workers
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.tasks import Pool
from pipeline.index.search.open_in_child import end_idle_child
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import with_absolute_paths
from pipeline.settings import Job
from pipeline.store.files.base import Store
from pipeline.store.records.units import Corpus
from pipeline.text.task_map import TaskMap

# Local workers extend an index of at most this many rows; for more, starting Ray pays off.
_SMALL_INDEX_ROWS = 500_000
_TRIED_TEXT = "A sentence."


@dataclass
class NightWorkers:
    """Connections to workers that stay open until the end of the night."""

    job: Job
    store: Store
    previous: PreviousRelease
    stages: Stages
    verbose: bool
    local: LocalWorkers | None
    """local workers, which load the encoder while the corpus is read; None if tonight's work cannot be
    small"""
    connections: ExitStack
    """open connections; closed in reverse order"""

    def for_ingest(self) -> TaskMap:
        """Return the function that runs the tasks of the ingestion.

        If the encoder's space is new, a worker first loads the encoder and encodes a text, so that an encoder
        that cannot be used is noticed before the corpus is read.

        Raises:
            ModelError: the encoder cannot be loaded, or gives no usable vector of a plain sentence.
            ConfigError: the cluster cannot have as many workers as the settings ask for.
        """
        if not ClusterAddress.of(self.job.cluster).is_local:
            self._connect(self.stages)  # checks its nodes before any work
        if not self.previous.has_space(open_folder(self.job.encoder).space_id):
            self._try_encoder()
        return self.connections.enter_context(
            ingest_workers(self.job, self.previous, self.stages, verbose=self.verbose)
        )

    def for_corpus(self, corpus: Corpus) -> FlowContext:
        """Connect to the workers that encode and index the corpus."""
        if self.local is not None and not self._is_small(corpus):
            self.local.close()
            self.local = None
            end_idle_child()  # its libraries would stay in memory until the end of the night
        workers = self._connect(self.stages)
        self.connections.enter_context(metrics.count_failures())
        return FlowContext(self.job, self.store, workers, self.stages)

    def _try_encoder(self) -> None:
        """Encode a text on one worker.

        Without local workers this connects a cluster, which stays connected.
        """
        workers = self.local or self._connect(self.stages.under("encoder"))
        workers.check(self.job.cluster)
        with self.stages("encoder"):
            settings = encoder_for_workers(self.job.encoder, self.store, workers)
            task = EncodeTexts(settings, workers.encode_settings(self.job.encode))
            workers.run(task, (_TRIED_TEXT,), Pool.of_one(self.job.cluster))

    def _connect(self, stages: Stages) -> Workers:
        """Connect to local workers if there are any, else to a cluster, until the end of the night."""
        stores = {"release.root": self.store}
        return self.connections.enter_context(
            connect(self.job.cluster, stages, verbose=self.verbose, local=self.local, stores=stores)
        )

    def _is_small(self, corpus: Corpus) -> bool:
        """Return whether local workers finish tonight's work before Ray would have started."""
        if corpus.rows > _SMALL_INDEX_ROWS:
            return False
        rows = count_unencoded_rows(corpus, self.job, self.store, self.previous.release)
        return rows <= self.job.cluster.small_rows


@contextmanager
def night_workers(
    job: Job, store: Store, previous: PreviousRelease, stages: Stages, *, verbose: bool = False
) -> Iterator[NightWorkers]:
    """Start local workers if the previous release shows that they may suffice.

    They, and all workers that are connected later, stay until the end of the block.
    """
    release = previous.release
    may_suffice = job.cluster.small_rows > 0 and (release is None or release.rows <= _SMALL_INDEX_ROWS)
    with (
        local_workers(may_suffice and is_local(job.cluster), job.cluster.patience_s) as local,
        ExitStack() as connections,
    ):
        if local is not None and release is not None:
            local.warm(EncodeTexts(with_absolute_paths(job.encoder), local.encode_settings(job.encode)))
        if local is not None:
            prepare_trials(encoder=release is None)
        yield NightWorkers(job, store, previous, stages, verbose, local, connections)

"""The releases of a root from which rows are erased, and the workers that do it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from pipeline.errors import DataError
from pipeline.flows.context import FlowContext
from pipeline.flows.erase.find import UnitToSearch, other_units
from pipeline.flows.erase.releases import StoredRelease
from pipeline.flows.workers.cluster import connect, is_local, local_workers
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.base import in_threads
from pipeline.store.records.units import Corpus
from pipeline.store.releases.release import Releases, no_release
from pipeline.store.releases.verify import check_sizes

_SMALL_ROWS = 500_000  # rows of a release up to which one process of this machine does the work


@dataclass(frozen=True)
class Root:
    """The releases of a root, with their corpora."""

    releases: Releases
    stored: tuple[StoredRelease, ...]
    """in the order of their numbers"""
    current: StoredRelease
    next_commit: int

    @classmethod
    def load(cls, releases: Releases) -> "Root":
        """Load the releases.

        Raises:
            DataError: a commit or a file of a release is missing or damaged.
        """
        next_commit, store = releases.commits.next_number(), releases.store
        for number in releases.commits.unreadable():
            releases.commits.read_or_raise(number)
        if (newest := releases.current()) is None:
            raise no_release(store)
        manifests = in_threads(releases.get, releases.numbers())
        for manifest in manifests:
            check_sizes(store, manifest)
        corpora = in_threads(lambda manifest: Corpus.read(store, manifest.corpus), manifests)
        stored = tuple(StoredRelease(*each) for each in zip(manifests, corpora, strict=True))
        current = next(each for each in stored if each.manifest.release == newest.release)
        return cls(releases, stored, current, next_commit)

    def units(self) -> list[UnitToSearch]:
        """Return all corpus units below the root, also those that no release names."""
        found = {
            unit.path: UnitToSearch(unit.path, unit.sha256, each.corpus.is_chunked)
            for each in self.stored
            for unit in each.corpus.units
        }
        return [*found.values(), *other_units(self.releases.store, set(found))]

    def job(self) -> Job:
        """Return the settings of the current release, with the cluster that they name."""
        settings = self.current.manifest.settings
        try:
            return Job.model_validate(settings)
        except ValidationError:  # written by another version, or on another machine
            known = {name: settings[name] for name in ("corpus", "index", "gates") if name in settings}
            try:
                return Job.model_validate({**known, "cluster": ClusterSettings()})
            except ValidationError as error:
                raise DataError(
                    f"the settings of release {self.current.manifest.release}",
                    "settings that this version can read",
                    " ".join(str(error).split())[:300],
                    "run manta nightly with this version first",
                ) from None


@contextlib.contextmanager
def connected(root: Root, stages: Stages, *, verbose: bool) -> Iterator[FlowContext]:
    """Connect to the workers: a process of this machine, or the cluster of a large release."""
    job = root.job()
    is_small = max(each.manifest.rows for each in root.stored) <= _SMALL_ROWS
    cluster = job.cluster
    with (
        local_workers(is_small or is_local(cluster), cluster.patience_s) as local,
        connect(cluster, stages, verbose=verbose, local=local) as workers,
    ):
        yield FlowContext(job, root.releases.store, workers, stages)

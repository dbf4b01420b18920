"""The current release with its corpus, and the comparison of tonight's job with it.

This module imports neither torch nor Ray.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.errors import DataError
from pipeline.flows.corpus import corpus_of
from pipeline.log import Stages, announce
from pipeline.models.folder.folder import open_folder
from pipeline.settings import CorpusSettings, EncoderSettings, GateSettings, Job
from pipeline.store.files.base import Store
from pipeline.store.records.units import Corpus
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import Fault, bytes_to_read, content_faults, size_faults
from pipeline.store.releases.waiting import WaitingRelease, load_waiting_release
from pipeline.text.ingest.corpus_record import corpus_digest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.text.sources.sources import SourceFile, list_corpus


@dataclass(frozen=True)
class PreviousRelease:
    """The current release, from which the night starts, with its corpus; both None before the first night."""

    release: ReleaseManifest | None = None
    corpus: Corpus | None = None
    corpus_problem: str | None = None
    """why the corpus cannot be read; None if it was read, or before the first night"""
    next_ordinal: int = 0
    """lowest ordinal that no unit of any release has used"""
    last_commit: int = 0
    """highest commit when the night began; 0 without commits"""
    waiting: WaitingRelease | None = None
    """the candidate that waits for its approval"""

    def has_space(self, space_id: str) -> bool:
        """Return whether the current release has vectors of this space."""
        return self.release is not None and self.release.space_id == space_id

    def parent_corpus(self, job: Job) -> PreviousCorpus:
        """Return the corpus that tonight's ingestion continues from."""
        waiting = self.waiting.corpus if self.waiting else None
        return PreviousCorpus(self.corpus, self.next_ordinal, self._rebuild_reason(job), waiting)

    def _rebuild_reason(self, job: Job) -> str | None:
        """Return why tonight's release cannot reuse units of the current release; None if it can."""
        if self.release is None or self.corpus_problem:
            return self.corpus_problem
        number, settings = self.release.release, self.release.settings
        if (space_id := open_folder(job.encoder).space_id) != self.release.space_id:
            previous_encoder = settings.get("encoder", {})
            changed = [
                f"encoder.{name}"
                for name, value in job.encoder.model_dump(mode="json").items()
                if name != "query_prompt"
                and value != previous_encoder.get(name, EncoderSettings.model_fields[name].default)
            ]
            same_settings = "the settings are the same: a file of the encoder changed"
            why = f"{', '.join(changed)} changed" if changed else same_settings
            spaces = f"the encoder's space is {space_id}, that of release {number} is {self.release.space_id}"
            return f"{spaces} ({why})"
        id_column = settings.get("corpus", {}).get("id")
        if id_column != job.corpus.id:
            return f"corpus.id is {job.corpus.id!r}, in release {number} it was {id_column!r}"
        return None


def load_previous(releases: Releases) -> PreviousRelease:
    """Load the current release and its corpus.

    Raises:
        DataError: the corpus record was changed after it was published.
    """
    last_commit = max(releases.commits.numbers(), default=0)  # before the release of that commit is read
    release, next_ordinal = releases.current(), releases.next_ordinal()
    previous = PreviousRelease(
        release,
        next_ordinal=next_ordinal,
        last_commit=last_commit,
        waiting=load_waiting_release(releases.store, releases.commits, next_ordinal),
    )
    if release is None:
        return previous
    where = releases.store.uri_of(release.corpus.path)
    try:
        content = release.corpus.read(releases.store)
    except FileNotFoundError:
        return replace(previous, corpus_problem=f"{where} is gone")
    try:
        return replace(previous, corpus=Corpus.from_json(content, where))
    except DataError:  # its sha256 is right, so it is not damaged; it was written by another version
        return replace(previous, corpus_problem=f"{where} was written by another version")


def find_damage(store: Store, previous: PreviousRelease, stages: Stages, *, by_content: bool) -> str | None:
    """Describe files of the current release that are missing or have the wrong size; None if there are none.

    Tonight's stages make such files again.

    Args:
        by_content: read every file and compare its sha256.

    Raises:
        DataError: a file has the right size but the wrong content, which later stages would not notice.
    """
    if (release := previous.release) is None:
        return None
    faults = _content_faults(store, release, stages) if by_content else size_faults(store, release)
    return f"release {release.release} is damaged: {faults[0]}{_and_more(faults)}" if faults else None


def _content_faults(store: Store, release: ReleaseManifest, stages: Stages) -> list[Fault]:
    """Find faults by reading every file. Raises DataError if a file has the right size but wrong content."""
    with stages("verify", bytes_to_read(store, release), "bytes") as bar:
        faults = content_faults(store, release, bar.add)
    if changed := [fault for fault in faults if fault.is_content_changed]:
        raise DataError(
            store.uri_of(changed[0].path),
            changed[0].expected,
            f"{changed[0].found}{_and_more(changed)}",
            "restore it, or delete it and run again: the night makes it again; or roll back",
        )
    return faults


def _and_more(faults: Sequence[Fault]) -> str:
    return f" and {len(faults) - 1:,} more" if len(faults) > 1 else ""


def same_release(job: Job, previous: PreviousRelease, encoder_path: str) -> ReleaseManifest | None:
    """Return the current release if it was made with the same encoder and settings, else None.

    The corpus is not compared.

    Args:
        encoder_path: path of the encoder's copy in the store.
    """
    release = previous.release
    equal = (
        release is not None
        and release.space_id == open_folder(job.encoder).space_id
        and release.encoder.path == encoder_path
        and _release_settings(job) == _stored_release_settings(release)
    )
    return release if equal else None


def has_same_files(job: Job, previous: PreviousRelease) -> bool:
    """Return whether the corpus's listing equals the current release's. Opens no file."""
    if previous.corpus is None:
        return False
    listed = list_corpus(job.corpus)
    is_same = previous.corpus.digest == corpus_digest(corpus_of(job), listed.files)
    if is_same and listed.warning:  # otherwise the ingestion says it
        announce(f"warning: {listed.warning}")
    return is_same


def changed_files(files: Iterable[SourceFile], corpus: Corpus | None) -> list[SourceFile]:
    """Return the files that are new or changed since a corpus was read; all files if `corpus` is None."""
    known = {(file.name, file.size, file.stamp) for file in corpus.files} if corpus is not None else set()
    return [file for file in files if (file.name, file.size, file.stamp) not in known]


# Settings, by section, that are not compared to find out whether the published files would be the same: the
# files do not depend on them, or something else is compared. All other settings of these sections count.
NOT_PUBLISHED: dict[str, frozenset[str]] = {
    "corpus": frozenset(CorpusSettings.model_fields) - {"id"},  # compared by the digest of the corpus
    "encoder": frozenset(  # compared by the space
        (
            *("path", "pooling", "template", "ensure_final_punctuation", "prompt", "max_length"),
            *("normalize", "dim", "exclude", "frequent", "frequencies", "sif"),
        )
    ),
    "encode": frozenset(  # change only bits of vectors, or units: nothing is computed again for that
        ("unit_rows", "max_tokens", "window_rows", "dtype", "compile", "threads", "device")
    ),
    "whiten": frozenset(("write_vectors", "flow")),  # an index never contains a flow
    "index": frozenset(("shards",)),
    "gates": frozenset(GateSettings.model_fields)  # the search effort is chosen by these
    - {"recall_at_10", "recall_at_10_queries", "queries"},
}


def _release_settings(job: Job) -> dict[str, object]:
    """Return the settings on which the published files depend."""
    settings = {
        section: getattr(job, section).model_dump(mode="json", exclude=names)
        for section, names in NOT_PUBLISHED.items()
    }
    if job.whiten.mode == "off":
        settings["whiten"] = {"mode": "off"}
    return settings


def _stored_release_settings(release: ReleaseManifest) -> dict[str, object]:
    try:
        return _release_settings(Job.model_validate(release.settings))
    except ValueError:  # written by a version with other settings, so not the same release
        return {}

"""The live release with its corpus, and whether tonight would make anything else.

Imports neither torch nor Ray.
"""

from dataclasses import dataclass

from pipeline.errors import DataError
from pipeline.log import Stages, say
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, Job
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release import Releases
from pipeline.store.units import Corpus
from pipeline.store.verify import Fault, bytes_to_read, content_faults, size_faults
from pipeline.text.corpus.corpus_record import corpus_digest
from pipeline.text.corpus.ingest import ParentCorpus
from pipeline.text.corpus.sources import list_files


@dataclass(frozen=True)
class PreviousRelease:
    """The live release with its corpus; both None before the first night. lost: why there is no corpus though
    there is a release.
    """

    release: ReleaseManifest | None = None
    corpus: Corpus | None = None
    lost: str = ""

    def parent(self, job: Job, next_ordinal: int) -> ParentCorpus:
        """The corpus to go on from, and why its units cannot live on where they cannot."""
        if self.release is None:
            return ParentCorpus(next_ordinal=next_ordinal)
        return ParentCorpus(
            self.corpus, next_ordinal, self.lost or self._parted(job, open_folder(job.encoder))
        )

    def _parted(self, job: Job, folder: EncoderFolder) -> str:
        """Why vectors of tonight cannot stand in one unit or index with those of the release."""
        assert self.release is not None
        then = self.release.settings.get("corpus", {}).get("id")
        if self.release.space_id != folder.space_id:
            spaces = (
                f"the encoder's space is {folder.space_id}, that of release {self.release.release} is "
                f"{self.release.space_id}"
            )
            return f"{spaces} ({self._reset(job)})"
        return (
            f"corpus.id is {job.corpus.id!r}, in release {self.release.release} it was {then!r}"
            if then != job.corpus.id
            else ""
        )

    def _reset(self, job: Job) -> str:
        """Name the encoder settings that differ from the release's; if none does, say that a file changed."""
        assert self.release is not None
        then, now = self.release.settings.get("encoder", {}), job.encoder.model_dump(mode="json")
        other = [
            f"encoder.{name}"
            for name, value in now.items()
            if name != "query_prompt" and value != then.get(name, EncoderSettings.model_fields[name].default)
        ]
        return (
            f"{', '.join(other)} changed"
            if other
            else "the settings are the same: a file of the encoder changed"
        )


def load_previous(releases: Releases) -> PreviousRelease:
    """The live release and its corpus.

    DataError for a corpus record that was changed after it was published.
    """
    release = releases.current()
    if release is None:
        return PreviousRelease()
    where = releases.store.uri_of(release.corpus.path)
    try:
        content = release.corpus.read(releases.store)
    except FileNotFoundError:
        return PreviousRelease(release, lost=f"{where} is gone")
    try:
        return PreviousRelease(release, Corpus.from_json(content, where))
    except DataError:  # its content is the one that was published, so another version wrote it
        return PreviousRelease(release, lost=f"{where} was written by another version")


def is_damaged(store: Store, before: PreviousRelease, stages: Stages, *, by_content: bool) -> bool:
    """True if files of the live release are missing or of another size; the first is reported.

    Tonight's stages make them again.

    by_content: read every file. DataError for one of the right size and another content: later stages would
    take it for whole.
    """
    release = before.release
    if release is None:
        return False
    faults = _read_through(store, release, stages) if by_content else size_faults(store, release)
    if not faults:
        return False
    more = f" and {len(faults) - 1:,} more" if len(faults) > 1 else ""
    then = "this night makes again what is missing, and publishes it as a new release"
    say(f"release {release.release} is damaged: {faults[0]}{more}; {then}")
    return True


def _read_through(store: Store, release: ReleaseManifest, stages: Stages) -> list[Fault]:
    with stages("verify", bytes_to_read(store, release), "bytes") as bar:
        faults = content_faults(store, release, bar.add)
    if changed := [fault for fault in faults if fault.content]:
        first, more = changed[0], f", and {len(changed) - 1:,} more files" if len(changed) > 1 else ""
        remedy = "restore it, or delete it and run again: the night makes it again; or roll back"
        raise DataError(store.uri_of(first.path), first.expected, f"{first.found}{more}", remedy)
    return faults


def unchanged(job: Job, previous: PreviousRelease, place: str) -> bool:
    """True if the live release is what the job would make: same files, same encoder, same settings.

    place: of the encoder's copy. Opens no unit.
    """
    release, corpus = previous.release, previous.corpus
    if release is None or corpus is None or not same_making(job, previous, place):
        return False
    return corpus.digest == corpus_digest(job.corpus, list_files(job.corpus))


def same_making(job: Job, previous: PreviousRelease, place: str) -> bool:
    """True if equal rows would become an equal release."""
    release = previous.release
    return (
        release is not None
        and release.space_id == open_folder(job.encoder).space_id
        and release.encoder.path == place
        and _shaping(job) == _shaping_of(release)
    )


def _shaping(job: Job) -> dict[str, object]:
    """Settings that change what is published."""
    settings = job.model_dump(mode="json")
    whiten = {
        name: value for name, value in settings["whiten"].items() if name not in ("write_vectors", "flow")
    }  # no index holds a flow
    if job.whiten.mode == "off":
        whiten = {"mode": "off"}
    index = {name: value for name, value in settings["index"].items() if name != "shards"}
    return {
        "whiten": whiten,
        "index": index,
        "vectors": settings["encode"]["vectors"],
        "nprobe for": settings["gates"]["recall_at_10"],
        "query_prompt": settings["encoder"]["query_prompt"],
        "id": settings["corpus"]["id"],
    }


def _shaping_of(release: ReleaseManifest) -> dict[str, object]:
    try:
        return _shaping(Job.model_validate(release.settings))
    except ValueError:  # written by a version with other settings: build anew
        return {}

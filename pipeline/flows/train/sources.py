"""Choice of the manifests that a training reads: those that it began with, else the newest ones.

A source of `train.data` may be a folder to which each run of an augmentation adds a manifest. A training that
resumes must read the same rows as before, although the folder may have a newer manifest by then.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pipeline.errors import DataError
from pipeline.flows.train.run_folder import RESULT, RUN, RunRecord
from pipeline.settings.training import SourceSettings, TrainSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.rows.augmented import is_manifest_in, newest_manifest


def resolve_manifests(settings: TrainSettings) -> Iterator[TrainSettings]:
    """Yield variants of the settings in which each folder of manifests is replaced by one of its manifests.

    The first variants have the manifests of the unfinished trainings below train.root, the latest training
    first; other settings of these trainings are not compared. The last variant has the newest manifests.
    Without any folder of manifests, the settings are yielded once, unchanged.

    Raises:
        DataError: manifests cannot be listed.
    """
    newest = [newest_manifest(source.uri) for source in settings.data]  # None for other sources
    if not any(newest):
        yield settings
        return
    for recorded in _sources_of_unfinished(settings):
        if _match(settings.data, newest, recorded):
            yield _replace_uris(
                settings, [uri if manifest else None for manifest, uri in zip(newest, recorded, strict=True)]
            )
    yield _replace_uris(settings, newest)


def _replace_uris(settings: TrainSettings, uris: Sequence[str | None]) -> TrainSettings:
    """Return the settings with other URIs of their data; None keeps the URI of a source."""
    sources = tuple(
        source.model_copy(update={"uri": uri or source.uri})
        for source, uri in zip(settings.data, uris, strict=True)
    )
    return settings.model_copy(update={"data": sources})


def _match(data: Sequence[SourceSettings], newest: Sequence[str | None], recorded: Sequence[str]) -> bool:
    """Return whether a training could have recorded these URIs for the sources of the settings.

    For each source that is a folder of manifests, the recorded URI must be a manifest of that folder. Other
    sources are not compared.

    Args:
        data: sources of the settings.
        newest: newest manifest of each source; None for a source that is not a folder of manifests.
        recorded: URIs that a training recorded for its sources.
    """
    return len(data) == len(recorded) and all(
        manifest is None or is_manifest_in(uri, source.uri)
        for source, manifest, uri in zip(data, newest, recorded, strict=True)
    )


def _sources_of_unfinished(settings: TrainSettings) -> Iterator[tuple[str, ...]]:
    """Yield the recorded sources of unfinished trainings, the latest training first.

    These are all trainings below train.root, or only that of train.name if it is set. A training whose record
    has another version or is truncated is skipped.
    """
    store = open_store(settings.root)
    files = {
        entry.path: entry
        for entry in store.list("", ".json")
        if settings.name in (None, entry.path.partition("/")[0])
    }
    unfinished = [
        entry
        for path, entry in files.items()
        if path.count("/") == 1 and path.endswith(f"/{RUN}") and path.removesuffix(RUN) + RESULT not in files
    ]
    for entry in sorted(unfinished, key=lambda entry: -entry.modified):
        with suppress(DataError):
            if (record := RunRecord.load_intact(store, entry.path)) is not None:
                yield record.sources

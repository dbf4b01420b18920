"""Choice of the manifest that a training reads: the one that it began with, else the newest of the folder."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pipeline.errors import DataError
from pipeline.flows.train.run_folder import RESULT, RUN, RunRecord
from pipeline.settings.training import PairSettings, TrainSettings
from pipeline.store.store import open_store
from pipeline.text.rows.augmented import manifest_folder, newest_manifest, same_folder


def pinned(settings: TrainSettings) -> Iterator[TrainSettings]:
    """Yield the settings with every folder of manifests replaced by one of its manifests.

    First come the manifests of unfinished trainings below train.root, latest training first, whatever their
    other settings; last come the newest manifests. Without any folder of manifests the settings are yielded
    unchanged.

    Raises:
        DataError: manifests cannot be listed.
    """
    newest = [newest_manifest(source.uri) for source in settings.data]
    for sources in _sources_of_unfinished(settings) if any(newest) else ():
        if _fit(settings.data, newest, sources):
            yield _reading(
                settings, [then if now else None for now, then in zip(newest, sources, strict=True)]
            )
    yield _reading(settings, newest) if any(newest) else settings


def _reading(settings: TrainSettings, uris: Sequence[str | None]) -> TrainSettings:
    """Return the settings with other URIs of their data; None keeps a URI."""
    sources = tuple(
        source.model_copy(update={"uri": uri or source.uri})
        for source, uri in zip(settings.data, uris, strict=True)
    )
    return settings.model_copy(update={"data": sources})


def _fit(given: Sequence[PairSettings], newest: Sequence[str | None], sources: Sequence[str]) -> bool:
    """Return whether `sources` name a manifest of the same folder for every folder that is given."""
    return len(given) == len(sources) and all(
        now is None or ((folder := manifest_folder(then)) is not None and same_folder(folder, source.uri))
        for source, now, then in zip(given, newest, sources, strict=True)
    )


def _sources_of_unfinished(settings: TrainSettings) -> Iterator[tuple[str, ...]]:
    """Yield the sources of unfinished trainings: of the one in train.name, or of all below train.root.

    Trainings whose record has another version or is truncated are skipped.
    """
    store = open_store(settings.root)
    files = {
        entry.path: entry
        for entry in store.list("", ".json")
        if settings.name in (None, entry.path.partition("/")[0])
    }
    begun = [
        entry
        for path, entry in files.items()
        if path.count("/") == 1 and path.endswith(f"/{RUN}") and path.removesuffix(RUN) + RESULT not in files
    ]
    for entry in sorted(begun, key=lambda entry: -entry.modified):
        with suppress(DataError):
            if (record := RunRecord.load_intact(store, entry.path)) is not None:
                yield record.sources

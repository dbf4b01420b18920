"""The manifest that a training reads from a folder of manifests: the one it began with, else the newest."""

from collections.abc import Iterator, Sequence

from pipeline.errors import DataError
from pipeline.flows.train.run_folder import RESULT, RUN, RunRecord
from pipeline.settings.training import PairSettings, TrainSettings
from pipeline.store.base import Store
from pipeline.store.store import open_store
from pipeline.text.rows.augmented import manifest_folder, newest_manifest, same_folder


def pinned(settings: TrainSettings) -> Iterator[TrainSettings]:
    """Yield the settings with every folder of manifests replaced by one of its manifests.

    First come the manifests of unfinished trainings below train.root, latest training first, whatever else
    these trainings are about; last come the newest manifests. Without any such folder the settings are
    yielded as they are.

    Raises:
        DataError: manifests cannot be listed.
    """
    last = [newest_manifest(source.uri) for source in settings.data]
    if not any(last):
        yield settings
        return
    for sources in _open_trainings(settings):
        if _fit(settings.data, last, sources):
            yield _reading(
                settings, [None if now is None else then for now, then in zip(last, sources, strict=True)]
            )
    yield _reading(settings, last)


def _reading(settings: TrainSettings, uris: Sequence[str | None]) -> TrainSettings:
    """Return the settings with other URIs of their data; None keeps a URI."""
    sources = (
        source if uri is None else source.model_copy(update={"uri": uri})
        for source, uri in zip(settings.data, uris, strict=True)
    )
    return settings.model_copy(update={"data": tuple(sources)})


def _fit(given: Sequence[PairSettings], last: Sequence[str | None], sources: Sequence[str]) -> bool:
    """Return whether `sources` name a manifest of the same folder for every folder that is given."""
    return len(given) == len(sources) and all(
        now is None or ((folder := manifest_folder(then)) is not None and same_folder(folder, source.uri))
        for source, now, then in zip(given, last, sources, strict=True)
    )


def _open_trainings(settings: TrainSettings) -> Iterator[tuple[str, ...]]:
    """Yield the sources of unfinished trainings: of the one in train.name, or of all below train.root."""
    store = open_store(settings.root)
    there = {
        entry.path: entry
        for entry in store.list("", ".json")
        if settings.name in (None, entry.path.partition("/")[0])
    }
    begun = [
        entry
        for path, entry in there.items()
        if path.count("/") == 1 and path.endswith(f"/{RUN}") and path.removesuffix(RUN) + RESULT not in there
    ]
    for entry in sorted(begun, key=lambda entry: -entry.modified):
        yield _sources(store, entry.path)


def _sources(store: Store, path: str) -> tuple[str, ...]:
    """Return the sources of one training; empty if its record has another version or is truncated."""
    try:
        record = RunRecord.load_intact(store, path)
    except DataError:
        return ()
    return record.sources if record is not None else ()

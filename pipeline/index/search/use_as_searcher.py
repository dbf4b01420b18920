"""Use an open release as searchers do: a night before it publishes, and `manta releases verify`."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pipeline.errors import DataError
from pipeline.index.search.search import OpenRelease
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import IndexPart
from pipeline.store.rows.address import ordinal_of

Reading = Callable[[Iterable[str]], None]
"""called with the URIs of files before they are read"""
_ROWS = 3  # newest rows that are looked up
_ANSWERS = 5  # for each query


def try_release(
    release: OpenRelease,
    parts: Sequence[IndexPart],
    reading: Reading,
    *,
    encoder: bool = False,
    filters: bool = True,
) -> None:
    """Read every id, look up the newest rows with their texts, and search for the vector of one of them.

    Args:
        parts: the parts of the index that are open.
        encoder: also load the release's encoder, and search for these texts.
        filters: also search with a filter on the id of that row, which reserves half a GiB of address space
            for each ordinal of a unit so far.

    Raises:
        DataError: a file cannot be used, or a search has no answer.
    """

    def reads(*files: FileRef) -> None:
        reading(release.releases.store.uri_of(file.path) for file in files)

    index = [file for part in parts for file in part.files]
    ids_files = [file for part in parts for file in part.ids]
    reads(*ids_files)
    release.validate()
    reads(*index, *ids_files)
    addresses = release.newest_rows(_ROWS)
    if not len(release.manifest.units):  # a release that was made without units has neither texts nor vectors
        release.search(np.ones((1, release.manifest.index.dim), np.float32), 1)
        return
    release.rows(addresses)
    newest = set(ordinal_of(addresses).tolist())
    units = [unit for unit in release.manifest.units if unit.ordinal in newest]
    reads(*(file for unit in units for file in (unit.corpus, unit.file)))
    rows = release.rows(addresses, texts=True)
    ids, texts = rows["id"].to_pylist(), rows["text"].to_pylist()
    vectors = release.vector(ids[0])[np.newaxis]  # one row only, because a whole unit is read for it
    reads(*index)
    _search(release, vectors)
    by_id = release.where_id(ids[0])
    if filters and release.search(vectors, 1, where=by_id)["id"].to_pylist() != ids[:1]:
        raise _no_answer(release, f"the row with id {ids[0]!r} when it is searched for by this id", "none")
    if encoder:
        reads(*release.manifest.encoder.references())
        queries = release.encode(texts)
        if not np.isfinite(queries).all():
            raise _no_answer(release, "finite vectors of its own texts as queries", "NaN or infinity")
        queries = queries[queries.any(axis=1)]  # a text without a word of a vocabulary has a zero vector
        if len(queries):
            _search(release, queries)


def _search(release: OpenRelease, vectors: np.ndarray) -> None:
    """Search; raise DataError if a query has no answer, or a score that is not finite."""
    answers = release.search(vectors, _ANSWERS)
    if len(answers["query"].unique()) < len(vectors):
        raise _no_answer(release, f"answers to {len(vectors)} queries", "none to some of them")
    if not np.isfinite(answers["score"].to_numpy()).all():
        raise _no_answer(release, "finite scores", "NaN or infinity")


def _no_answer(release: OpenRelease, expected: str, found: str) -> DataError:
    index = release.manifest.index.files[0].path
    uri = release.releases.store.uri_of(index)
    return DataError(uri, expected, found, "keep the candidate, and report it")

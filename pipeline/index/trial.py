"""Use an open release as searchers do: a night before it publishes, and `manta releases verify`."""

import numpy as np

from pipeline.errors import DataError
from pipeline.index.search import OpenRelease

_ROWS = 3  # newest rows that are looked up
_ANSWERS = 5  # for each query


def try_release(release: OpenRelease, *, encoder: bool = False, filters: bool = True) -> None:
    """Read every id, look up the newest rows, and search for one by vector and id, and for their texts.

    Args:
        encoder: also load the release's encoder, and encode the texts with it.
        filters: also search with a filter, for which 2 GiB of addresses are reserved.

    Raises:
        DataError: a file cannot be used, or a search has no answer.
    """
    release.validate()
    addresses = release.newest_rows(_ROWS)
    if not len(release.manifest.units):  # a release that was made without units has neither texts nor vectors
        release.search(np.ones((1, release.manifest.index.dim), np.float32), 1)
        return
    rows = release.rows(addresses, texts=True)
    ids, texts = rows["id"].to_pylist(), rows["text"].to_pylist()
    vectors = release.vector(ids[0])[np.newaxis]  # of one row, since its unit is read for it
    _search(release, vectors)
    by_id = release.where_id(ids[0])
    if filters and release.search(vectors, 1, where=by_id)["id"].to_pylist() != ids[:1]:
        raise _no_answer(release, f"the row with id {ids[0]!r} when it is searched for by this id", "none")
    if encoder:
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

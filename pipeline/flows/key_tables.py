"""Read the key tables of releases bucket by bucket, so that their rows can be matched by id."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.store.files.base import Store
from pipeline.store.records.units import Corpus, TableBucket
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.text.key_tables.buckets import read_key_bucket


def live_rows_by_bucket(
    store: Store, manifests: Sequence[ReleaseManifest], columns: Sequence[str], first: int = 0
) -> Iterator[tuple[pa.Table, ...]]:
    """Yield, for each bucket of ids, the rows of each release that are in the bucket and have an address.

    Args:
        columns: columns of the key tables, `id` and `address` among them.
        first: number of buckets to skip at the beginning.

    Raises:
        DataError: a key table is missing or damaged.
    """
    key_tables = [_key_table(store, manifest) for manifest in manifests]
    buckets = max(map(len, key_tables), default=0)
    for bucket in range(first, buckets):
        try:
            tables = [read_key_bucket(store, table, bucket, buckets, columns) for table in key_tables]
        except FileNotFoundError as error:
            raise DataError(
                str(error.filename or error),
                "a key table of the release",
                "no such file",
                "restore it; if it belongs to the current release, manta nightly makes it again",
            ) from None
        yield tuple(table.filter(table["address"].is_valid()) for table in tables if table is not None)


def _key_table(store: Store, manifest: ReleaseManifest) -> tuple[TableBucket, ...]:
    """Return the buckets of a release's key table."""
    try:
        corpus = Corpus.read(store, manifest.corpus)
    except FileNotFoundError:
        raise DataError(
            store.uri_of(manifest.corpus.path),
            "the corpus record of the release",
            "no such file",
            "restore it",
        ) from None
    if not corpus.keys:
        raise DataError(
            f"release {manifest.release}",
            "a key table",
            "none",
            "a version that wrote no key tables published it: compare later releases",
        )
    return corpus.keys

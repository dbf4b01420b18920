"""Rows that nights leave out for good, since an erasure: keyed hashes of their ids, in a file of the root.

The file does not say whose rows they are. Whoever reads it, with its key, can find out whether a given id is
among them.
"""

import secrets
from collections.abc import Iterable
from hashlib import blake2b

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import Settings
from pipeline.errors import DataError
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import store_table_by_content
from pipeline.store.releases.commits import ERASURES, Commits

_KEY = b"manta.key"
_KEY_BYTES, _HASH_BYTES = 32, 16
_SCHEMA = pa.schema([pa.field("hash", pa.binary(_HASH_BYTES), nullable=False)])


class LeftOutIds(Settings):
    """Ids that can only be recognized: `name in ids`."""

    key: bytes
    hashes: frozenset[bytes]
    digest: str
    """sha256 of the file"""

    def __contains__(self, name: object) -> bool:
        """Return whether the row with this id, a string, is left out; False for None."""
        return isinstance(name, str) and _hash(self.key, name) in self.hashes

    def __len__(self) -> int:
        return len(self.hashes)


def load_left_out(commits: Commits, store: Store) -> LeftOutIds | None:
    """Load the ids that the last erasure with `--forever` names; None without such an erasure.

    Args:
        store: store of the root; commits may be in another store.

    Raises:
        DataError: the file is missing or damaged, so that erased rows could come back.
    """
    if next(iter(store.list(ERASURES)), None) is None:
        return None
    reference = commits.left_out()
    return None if reference is None else _read(store, reference)


def add_left_out(store: Store, before: FileRef | None, ids: Iterable[str]) -> FileRef:
    """Store the hashes of `before` and of further ids, with the same key. It counts once a commit names it.

    Args:
        before: `Commits.left_out`.
        ids: ids as strings; of documents, if the corpus is cut into chunks.
    """
    known = _read(store, before) if before is not None else None
    key = secrets.token_bytes(_KEY_BYTES) if known is None else known.key
    hashes = {_hash(key, each) for each in ids} | (frozenset() if known is None else known.hashes)
    schema = _SCHEMA.with_metadata({_KEY: key.hex()})
    table = pa.table({"hash": pa.array(sorted(hashes), _SCHEMA.field("hash").type)}, schema=schema)
    return store_table_by_content(store, table, f"{ERASURES}/left-out", compression="zstd")


def _read(store: Store, reference: FileRef) -> LeftOutIds:
    try:
        table = pq.read_table(pa.BufferReader(reference.read(store)))
    except FileNotFoundError:
        raise DataError(
            store.uri_of(reference.path),
            "the ids that an erasure leaves out for good",
            "no file",
            "restore it from a copy of the root; without it, erased rows would come back",
        ) from None
    key = bytes.fromhex(table.schema.metadata[_KEY].decode())
    return LeftOutIds(key=key, hashes=frozenset(table["hash"].to_pylist()), digest=reference.sha256)


def _hash(key: bytes, name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES, key=key).digest()

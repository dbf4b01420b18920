"""A published release, opened for searching: checked, mapped, encoding queries with its own encoder, and
swapped for a newer one on request.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from pipeline.errors import ConfigError, DataError, SpaceMismatch
from pipeline.index.ids import open_ids
from pipeline.index.parts import folder_of, open_parts
from pipeline.index.texts import Texts
from pipeline.index.truth import NOBODY
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.arrays import arrow_of, strings_of
from pipeline.store.base import Store, checked
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.store.units import FileRef
from pipeline.text.corpus.normalize import normalize, replace_surrogates

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder


def open_release(
    uri: str | Path,
    number: int | None = None,
    *,
    verify: bool = True,
    device: str = "cpu",
    commits: str | Path | None = None,
) -> "OpenRelease":
    """The current release below the root `uri`, or release `number`, ready to search.

    verify: compare every file with its sha256 first (reads them once; remote files are always checked when
        they are fetched). device: where queries are encoded. commits: the root of the commits where that is
        another store. DataError when there is no release, or a file was changed.
    """
    releases = Releases(open_store(uri), open_store(commits) if commits is not None else None)
    return open_chosen(releases, number, verify=verify, device=device)


def open_chosen(
    releases: Releases, number: int | None, *, verify: bool = True, device: str = "cpu"
) -> "OpenRelease":
    """As `open_release`, below a root that is open already."""
    opened = _Opened(releases.store, releases.chosen(number), verify, device)
    return OpenRelease(releases, opened, follows=number is None)


class OpenRelease:
    """What `open_release` gives.

    Threads may share it: a swap replaces the whole release at once, and a search under way keeps the one it
    began with.
    """

    def __init__(self, releases: Releases, opened: "_Opened", follows: bool) -> None:
        self._releases, self._opened, self._follows = releases, opened, follows

    def __repr__(self) -> str:
        manifest = self._opened.manifest
        return (
            f"OpenRelease({self._releases.store.uri!r}, release {manifest.release}: {manifest.rows:,} "
            f"rows, index {manifest.index.kind})"
        )

    @property
    def number(self) -> int:
        return self._opened.manifest.release

    @property
    def space_id(self) -> str:
        return self._opened.manifest.space_id

    @property
    def manifest(self) -> ReleaseManifest:
        return self._opened.manifest

    def __len__(self) -> int:
        """Live rows."""
        return self._opened.manifest.rows

    def validate(self) -> None:
        """Read every row of the ids, as opening with `verify` does.

        DataError for a file that could not be searched safely.
        """
        self._opened.validate()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(n, d) float32: the texts as queries, by the release's own encoder.

        Loaded at the first call; SpaceMismatch if it is not the one that the rows have.
        """
        return self._opened.encode(texts)

    def search(
        self,
        queries: str | Sequence[str] | np.ndarray,
        k: int = 10,
        *,
        space_id: str | None = None,
        texts: bool = False,
    ) -> pa.Table:
        """The k nearest rows of each query, best first: query (int32, from 0), rank (int32, from 1), id,
        score (float32, cosine), and the kept columns.

        queries: texts, or raw vectors (q, d) of the release's encoder; give their `space_id`, and vectors of
            another space are refused.
        texts: also a column text, as it was encoded, read from the corpus units; where corpus.keep names
            text, that column is the one. Where the lists that a query visits hold fewer than k live rows, it
            visits more of them (nprobe is doubled); so fewer than k rows come back only where the release has
            fewer, or where an index without exact lists (HNSW, PQ fast-scan) leads to no more. DataError for
            vectors of another dimension, non-finite or zero ones; MissingTexts, one too, where a corpus unit
            is not there.
        """
        if k < 1:
            raise ConfigError("search: k", "at least 1", str(k), "ask for one answer or more")
        opened = self._opened
        if space_id is not None and space_id != opened.manifest.space_id:
            raise SpaceMismatch(
                "search",
                f"vectors of space {opened.manifest.space_id}",
                f"space {space_id}",
                "encode the queries with the release's encoder",
            )
        if not isinstance(queries, np.ndarray):
            queries = _known([queries] if isinstance(queries, str) else queries, opened)
        return opened.search(queries, k, texts)

    def refresh(self, *, verify: bool = True) -> bool:
        """Swap to the release that is current now; whether there was another.

        One that was opened by number stays.
        """
        if not self._follows:
            return False
        manifest = self._releases.current()
        if manifest is None or manifest.id == self._opened.manifest.id:
            return False
        self._opened = self._opened.successor(manifest, verify)
        return True


class _Opened:
    """One release's files, open."""

    def __init__(self, store: Store, manifest: ReleaseManifest, verify: bool, device: str) -> None:
        self.manifest, self._store, self._device = manifest, store, device
        local = functools.partial(_local, store, verify=verify)
        self._ids = open_ids([local(reference) for reference in manifest.ids])
        if verify:
            self._ids.validate()
        tombstones = _read_addresses(local(manifest.tombstones)) if manifest.tombstones else None
        self._texts = Texts(store, manifest.units, verify)
        self._parts = open_parts(manifest.index.files, local, tombstones)
        if self._parts.ntotal != manifest.rows:
            found = f"{self._parts.ntotal:,}"
            raise DataError(
                store.uri_of(manifest.index.files[0].path),
                f"{manifest.rows:,} live rows",
                found,
                "restore the index, or roll back",
            )

    def successor(self, manifest: ReleaseManifest, verify: bool) -> "_Opened":
        """The newer release, with this one's encoder where it is the same."""
        opened = _Opened(self._store, manifest, verify, self._device)
        if (
            manifest.space_id == self.manifest.space_id
            and manifest.encoder == self.manifest.encoder
            and "encoder" in self.__dict__
        ):
            opened.__dict__["encoder"] = self.encoder
        return opened

    def validate(self) -> None:
        self._ids.validate()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        cleaned = normalize(strings_of([replace_surrogates(text) for text in texts])).to_pylist()
        if not all(cleaned):
            raise ConfigError(
                "search: query", "some text", "an empty query", "check the variable that holds it"
            )
        return self.encoder.encode(cleaned, query=True)

    @functools.cached_property
    def encoder(self) -> "Encoder":
        import torch

        from pipeline.models.inference.encoder import load_encoder

        # not compiled: that would cost the first query seconds. The process keeps its number of threads
        settings = EncodeSettings(compile=False, threads=torch.get_num_threads())
        with folder_of(
            [(reference.path, self._encoder_file(reference)) for reference in self.manifest.encoder.files]
        ) as folder:
            encoder = load_encoder(self._encoder_settings(folder), settings, self._device)
        if encoder.space_id != self.manifest.space_id:
            where = self._store.uri_of(self.manifest.encoder.path)
            raise SpaceMismatch(
                where,
                f"space {self.manifest.space_id}",
                f"space {encoder.space_id}",
                "the encoder folder is not that of the release: restore it",
            )
        return encoder

    def _encoder_file(self, reference: FileRef) -> Path:
        path = f"{self.manifest.encoder.path}/{checked(reference.path)}"
        return _local(self._store, reference.model_copy(update={"path": path}), verify=True)

    def _encoder_settings(self, folder: Path) -> EncoderSettings:
        try:
            return EncoderSettings.model_validate(
                {**self.manifest.settings.get("encoder", {}), "path": str(folder)}
            )
        except ValidationError as error:
            where = f"release {self.manifest.release}: settings.encoder"
            raise DataError(
                where,
                "settings that this version knows",
                str(error.errors()[0]["loc"]),
                "open it with the version that wrote it",
            ) from None

    def search(self, vectors: np.ndarray, k: int, texts: bool) -> pa.Table:
        scores, addresses = self._parts.search_further(self._checked(vectors), k)
        query, rank = np.nonzero(addresses != NOBODY)
        rows = self._ids.take(addresses[query, rank])
        columns = {
            "query": arrow_of(query.astype(np.int32)),
            "rank": arrow_of(rank.astype(np.int32) + 1),
            "id": rows["id"],
            "score": arrow_of(scores[query, rank].astype(np.float32)),
        }
        kept = {name: rows[name] for name in rows.column_names if name not in columns}
        if texts and "text" not in kept:
            columns["text"] = self._texts.take(addresses[query, rank])
        return pa.table({**columns, **kept})

    def _checked(self, vectors: np.ndarray) -> np.ndarray:
        dim = self._parts.d
        if vectors.ndim != 2 or vectors.shape[1] != dim:
            raise DataError(
                "search",
                f"vectors of shape (q, {dim})",
                f"{vectors.shape}",
                "give raw vectors of the release's encoder, one row a query",
            )
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if len(bad := np.flatnonzero(~(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)))):
            raise DataError(
                "search",
                "finite vectors, none of them zero",
                f"query {bad[0]} is not so",
                "encode the query again",
            )
        return vectors


def _known(texts: Sequence[str], opened: _Opened) -> np.ndarray:
    """The queries' vectors; DataError for one that has none: word vectors know only the words of their file."""
    vectors = opened.encode(texts)
    if len(unknown := np.flatnonzero(~vectors.any(axis=1))):
        raise DataError(
            "search: query",
            "a word that the release's encoder knows",
            repr(texts[unknown[0]][:80]),
            "use other words",
        )
    return vectors


def _local(store: Store, reference: FileRef, verify: bool) -> Path:
    try:
        return store.local(reference.path, reference.sha256 if verify else None)
    except FileNotFoundError:
        raise DataError(
            store.uri_of(reference.path),
            "a file of the release",
            "no such file",
            "restore it, or roll back to a whole release",
        ) from None


def _read_addresses(file: Path) -> np.ndarray:
    try:
        return np.asarray(pq.read_table(file, columns=["address"])["address"].to_numpy())
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise DataError(
            str(file),
            "a Parquet file with a column address",
            " ".join(str(error).split()),
            "restore it, or roll back",
        ) from None

"""Write all new files of an erasure, check them, and store its plan. Nothing of it is visible yet.

This is a module of its own beside `erase`, because it is the phase that changes nothing readers see.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.flows.context import FlowContext
from pipeline.flows.erase.choose import EraseRequest
from pipeline.flows.erase.corpora import Erasure, rewrite_tables
from pipeline.flows.erase.find import ErasedRows, UnitToSearch, find_rows
from pipeline.flows.erase.others import Pages, augmented_of, duplicates_of, results_with
from pipeline.flows.erase.releases import StoredRelease, rewrite_release, rewrite_units
from pipeline.flows.erase.root import Root
from pipeline.flows.night.gates.as_searcher import try_again
from pipeline.report.erased_values import ErasedValues
from pipeline.store.files.base import in_threads
from pipeline.store.records.dead import write_addresses
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus
from pipeline.store.releases.commits import ERASURES, utc_now
from pipeline.store.releases.erasures import (
    ErasedFile,
    ErasedRelease,
    ErasureReceipt,
    NotReached,
    plan_path,
    work_files,
)
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.verify import files_of

_NOT_REACHED = (
    NotReached(
        what="the corpus itself: tables, files and their earlier snapshots",
        remedy="delete the rows there; vacuum a Delta table, expire the snapshots of an Iceberg table",
    ),
    NotReached(
        what="exports: databases and files that manta export wrote",
        remedy="run manta export to each target, which deletes the rows; delete change sets of files",
    ),
    NotReached(
        what="copies of the root, versions of a bucket and backups",
        remedy="erase the rows from each copy; expire old versions and backups",
    ),
    NotReached(
        what="encoders and whitenings that were trained or fitted with the rows, and training files",
        remedy="remove the rows from the training data and train again",
    ),
    NotReached(
        what="caches and running searches of other machines",
        remedy="delete their folders MANTA_CACHE, or manta below the user's cache directory; restart them",
    ),
    NotReached(
        what="queries of users: logs of manta serve, and the file of gates.queries",
        remedy="manta query-log FILE... --forget TEXTS --root ROOT removes those of a person",
    ),
    NotReached(
        what="judgements: the file of gates.relevance, from which the next night takes ids and texts again",
        remedy="remove the lines that name the rows there",
    ),
    NotReached(what="names of input files, in records of corpora", remedy="none: they name files, not rows"),
)


@dataclass(frozen=True)
class RowsToErase:
    """The work of one erasure before its commit."""

    root: Root
    context: FlowContext
    request: EraseRequest
    rows: ErasedRows

    @property
    def erasure(self) -> str:
        """Id of the erasure: equal for a command that is run again, and unrelated to the ids."""
        found = {path: rows.rows for path, rows in self.rows.by_unit.items()}
        return digest_of([self.root.next_commit, sorted(found.items())])[:24]

    def describe(self) -> ErasureReceipt:
        """Return what would be erased."""
        erased = self._affected()
        return self._receipt(
            releases=tuple(
                ErasedRelease(
                    release=each.manifest.release,
                    rows_before=each.manifest.rows,
                    rows_after=each.manifest.rows,
                )
                for each in erased
            )
        )

    def _affected(self) -> list[StoredRelease]:
        """Return the releases that have units with erased rows."""
        paths = self.rows.by_unit.keys()
        return [each for each in self.root.stored if any(unit.path in paths for unit in each.corpus.units)]

    def write(self) -> tuple[ErasureReceipt, list[ReleaseManifest]] | None:
        """Write all new files and the plan; nothing is visible yet. Returns None if nothing is to be erased.

        Raises:
            DataError: a new file has an erased row, or a searcher cannot open the current release.
        """
        context, store = self.context, self.context.store
        addresses = np.concatenate([self.rows.addresses(each.corpus.units) for each in self.root.stored])
        stem = f"{ERASURES}/{self.erasure}/addresses"
        erasure = Erasure(
            context, self.erasure, self.rows, write_addresses(store, np.unique(addresses), stem)
        )
        with context.stages("rewrite"):
            units = rewrite_units(erasure, self.root.stored)
            tables = rewrite_tables(erasure, [each.corpus for each in self.root.stored])
            new = [rewrite_release(erasure, each, units, tables) for each in self.root.stored]
        pairs = list(zip(self.root.stored, new, strict=True))
        changed = [(old, manifest) for old, manifest in pairs if manifest != old.manifest]
        self._check(changed)
        values = ErasedValues(self.rows.ids, self.rows.texts)
        pages = Pages(store, values).replaced([each.manifest.release for each in self.root.stored])
        results = self._results(values, {old.manifest.release for old, _ in changed})
        if not (changed or pages.contents or results or self.rows.count or self.request.forever):
            in_threads(store.delete, work_files(store))
            return None
        before, after = self._files(changed)
        plan = self._receipt(
            releases=tuple(
                ErasedRelease(
                    release=old.manifest.release,
                    rows_before=old.manifest.rows,
                    rows_after=manifest.rows if manifest else 0,
                )
                for old, manifest in changed
            ),
            shared_texts=len(tables.shared_keys & self.rows.keys),
            pages=tuple(sorted(pages.contents)),
            results=tuple(sorted(results)),
            before=before,
            after=after,
        )
        store.write(plan_path(self.erasure), plan.to_json())
        for path, content in pages.contents.items():
            store.write(path, content)
        return plan, [manifest for _, manifest in changed if manifest is not None]

    def _results(self, values: ErasedValues, releases: set[int]) -> set[str]:
        """Return the files of results of other commands that are to be removed.

        Args:
            releases: numbers of the releases that get another manifest.
        """
        store = self.context.store
        duplicates = duplicates_of(store, releases)
        return {
            *(path for paths in duplicates.values() for path in paths),
            *augmented_of(store, self.rows.by_unit.keys()),
            *results_with(store, values),
        }

    def _receipt(self, **fields: object) -> ErasureReceipt:
        return ErasureReceipt.model_validate(
            {
                "erasure": self.erasure,
                "began_at": utc_now(),
                "reason": self.request.reason,
                "ids": len(self.rows.erased.ids),
                "ids_found": len(self.rows.ids_found),
                "rows": self.rows.count,
                "units": tuple(sorted(self.rows.by_unit)),
                "not_reached": _NOT_REACHED,
                **fields,
            }
        )

    def _check(self, changed: Sequence[tuple[StoredRelease, ReleaseManifest | None]]) -> None:
        """Search the new units for the rows, and open the current release as a searcher does."""
        store, current = self.context.store, self.root.current
        found = {
            unit.path: UnitToSearch(unit.path, unit.sha256, old.corpus.is_chunked)
            for old, manifest in changed
            if manifest is not None
            for unit in Corpus.read(store, manifest.corpus).units
        }
        with self.context.stages("check"):
            left = find_rows(self.context, list(found.values()), self.rows.erased)
            new = {old.manifest.release: manifest for old, manifest in changed}
            manifest = new.get(current.manifest.release, current.manifest)
            if manifest is None:
                raise DataError(
                    f"{store.uri}: release {current.manifest.release}",
                    "a current release with rows",
                    "none after the erasure",
                    "publish another corpus first, or delete the root",
                )
            gate = try_again(store, current.manifest, manifest)
        if left.count or not gate.passed:
            found_instead = f"{left.count:,} of them" if left.count else gate.sentence
            raise DataError(
                f"{store.uri}: erase",
                "new files without the rows, that can be searched",
                found_instead,
                "nothing was changed; report this with the output of manta releases show",
            )

    def _files(
        self, changed: Sequence[tuple[StoredRelease, ReleaseManifest | None]]
    ) -> tuple[tuple[ErasedFile, ...], tuple[ErasedFile, ...]]:
        """Return the files that the releases needed before and not after, and the reverse."""
        store = self.context.store
        replaced = {old.manifest.release: manifest for old, manifest in changed}
        new = [replaced.get(each.manifest.release, each.manifest) for each in self.root.stored]
        before = {file for each in self.root.stored for file in files_of(store, each.manifest)}
        after = {file for manifest in new if manifest for file in files_of(store, manifest)}

        def described(file: FileRef) -> ErasedFile:
            digest = file.sha256 or sha256(store.read(file.path)).hexdigest()
            return ErasedFile(path=file.path, sha256=digest, bytes=file.bytes)

        lists = [sorted(files, key=lambda file: file.path) for files in (before - after, after - before)]
        old_files, new_files = (tuple(in_threads(described, files)) for files in lists)
        return old_files, new_files

"""Parquet files of changes: a folder for each export, made visible by a manifest that is written last."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import TransientError
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import put_by_content
from pipeline.store.rows.schema import writer_options
from pipeline.targets.target import EMPTY, TARGETS, Position, Target


class ChangeSet(Stored):
    """The changes from one release to the next, in files of the folder of the change set."""

    number: int
    """counts the change sets of a target from 1"""
    is_whole: bool
    """whether the upserts are all rows of the release, so that earlier change sets do not matter"""
    position: Position
    upserts: tuple[FileRef, ...] = ()
    """Parquet files of rows to insert or replace: id, vector, kept columns; no id is in two of them"""
    deletes: tuple[FileRef, ...] = ()
    """Parquet files with the column id: rows to delete"""


@TARGETS.register("parquet")
class ParquetTarget(Target):
    """Folders of changes, NAME/00000001 and so on: applied in order, they give the release."""

    is_atomic: ClassVar[bool] = True
    looks_like_corpus: ClassVar[bool] = True
    name_form: ClassVar[str] = r"[^./\\\0][^/\\\0]*(/[^./\\\0][^/\\\0]*)*"
    name_rule: ClassVar[str] = "a path below TARGET, no folder of which begins with a dot"

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(uri, name)
        self._store = open_store(uri)
        self._scratch = contextlib.ExitStack()
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._files: dict[str, Path] = {}
        self._changes: ChangeSet | None = None

    def position(self) -> Position | None:
        """Return the position of the running export, or of the last change set."""
        last = self._last()
        running = ChangeSet.load_complete(self._store, self._progress)
        if running and running.number == (last.number if last else 0) + 1:
            self._changes = running
            return running.position
        self._changes = None
        return last.position if last else None

    def create(self, schema: pa.Schema, position: Position) -> None:
        """Begin a change set that holds a whole release."""
        self._begin(position)

    def upsert(self, rows: pa.Table) -> None:
        """Add rows to the file of this step."""
        self._write("upserts", rows)

    def delete(self, ids: pa.Array) -> None:
        """Add ids to the file of this step."""
        self._write("deletes", pa.table({"id": ids}))

    def ids(self) -> Iterator[pa.Array]:
        """Yield nothing: a change set with a whole release needs no deletes."""
        return iter(())

    def store_position(self, position: Position) -> None:
        """Store the files of the step and the position. The last step makes the change set visible.

        Raises:
            TransientError: another export made a change set of the same number visible.
        """
        if position.steps == 0 and position.next is not None:
            return self._begin(position)
        assert self._changes is not None
        changes = self._changes.model_copy(update={"position": position, **self._finish_files()})
        if position.next is not None:
            self._store.write(self._progress, changes.to_json())
            self._changes = changes
        elif not self._store.create(self._manifest(changes.number), changes.to_json()):
            raise TransientError(
                self._store.uri_of(self._manifest(changes.number)),
                "a change set that no other export has written",
                "one of this number",
                "run again: the export starts from it",
            )
        else:
            self._store.delete(self._progress)

    def count(self) -> int | None:
        """Return None: a change set has changes, not rows."""
        return None

    def close(self) -> None:
        """Remove the files of an unfinished step."""
        for writer in self._writers.values():
            with contextlib.suppress(OSError):  # the disk is full, and the file is not needed
                writer.close()
        self._scratch.close()

    def change_sets(self) -> list[ChangeSet]:
        """Return all visible change sets, in order."""
        return [self._read(path) for path in self._manifests()]

    @property
    def _progress(self) -> str:
        return f"{self.name}/progress.json"

    def _manifest(self, number: int) -> str:
        return f"{self.name}/{number:08d}/manifest.json"

    def _last(self) -> ChangeSet | None:
        manifests = self._manifests()
        return self._read(manifests[-1]) if manifests else None

    def _manifests(self) -> list[str]:
        """List the manifests of the change sets, in order, without those of targets in folders below."""
        own = re.compile(re.escape(self.name) + r"/[0-9]{8,}/manifest\.json")
        paths = [entry.path for entry in self._store.list(self.name, "manifest.json")]
        return [path for path in paths if own.fullmatch(path)]

    def _read(self, manifest: str) -> ChangeSet:
        return ChangeSet.from_json(self._store.read(manifest), self._store.uri_of(manifest))

    def _begin(self, position: Position) -> None:
        """Store an empty change set as the running one."""
        last = self._last()
        self._changes = ChangeSet(
            number=(last.number if last else 0) + 1,
            is_whole=position.releases == (EMPTY,),
            position=position,
        )
        self._store.write(self._progress, self._changes.to_json())

    def _write(self, kind: str, rows: pa.Table) -> None:
        if kind not in self._writers:
            folder = self._scratch.enter_context(self._store.scratch())
            self._files[kind] = folder / f"{kind}.parquet"
            self._writers[kind] = pq.ParquetWriter(
                self._files[kind], rows.schema, **writer_options(rows.schema)
            )
        self._writers[kind].write_table(rows)

    def _finish_files(self) -> dict[str, tuple[FileRef, ...]]:
        """Store the files of this step. Returns the files of all steps, by the name of the field."""
        assert self._changes is not None
        stored = {"upserts": self._changes.upserts, "deletes": self._changes.deletes}
        for kind, writer in self._writers.items():
            writer.close()
            rows = pq.read_metadata(self._files[kind]).num_rows
            stem = f"{self.name}/{self._changes.number:08d}/{kind}"
            stored[kind] += (put_by_content(self._store, self._files[kind], stem, rows),)
        self._writers.clear()
        self._scratch.close()
        return stored

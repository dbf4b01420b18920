"""Make a target equal to a release by writing the changes since the release that the target holds."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError, SpaceMismatch, TransientError
from pipeline.flows.export.changes import RowChanges
from pipeline.log import Stages, announce, counted
from pipeline.store.files.lease import exclusive_lease
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.prune import OWN_FOLDERS
from pipeline.store.releases.release import Releases
from pipeline.store.rows.arrays import one_chunk
from pipeline.targets.target import EMPTY, UNKNOWN, HeldRelease, Position, Target
from pipeline.text.key_tables.partitions import partition_of
from pipeline.text.normalize import blake2b_digests
from pipeline.text.sources.sources import is_in_corpus

_PART_IDS = 1 << 18  # average number of ids per file
_MOST_PARTS = 256  # each is an open file while ids are written


def surplus_ids(
    held: Iterable[pa.Array], wanted: Iterable[pa.Array], rows: int, scratch: Path
) -> Iterator[pa.Array]:
    """Yield the ids of `held` that are not in `wanted`.

    Both are first divided into files by the hash of the id; then the files are compared one by one.

    Args:
        held: the ids of a table.
        wanted: the ids of a release, of the same type.
        rows: number of ids of the release.
        scratch: folder for the files.
    """
    parts = min(_MOST_PARTS, 1 << (rows // _PART_IDS).bit_length())
    held_files = _write_parts(held, parts, scratch / "held")
    wanted_files = _write_parts(wanted, parts, scratch / "wanted")
    for number in range(parts):
        if held_files[number].exists():
            ids, remaining = _read_ids(held_files[number]), _read_ids(wanted_files[number])
            yield ids.filter(pc.invert(pc.is_in(ids, value_set=remaining.cast(ids.type))))


def _write_parts(ids: Iterable[pa.Array], parts: int, folder: Path) -> list[Path]:
    """Divide ids into files by hash. Returns the paths; a file without ids does not exist."""
    folder.mkdir()
    files = [folder / str(number) for number in range(parts)]
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    with contextlib.ExitStack() as opened:
        for array in ids:
            table = pa.table({"id": array})
            numbers = partition_of(_hashes(array), parts)
            for number in np.unique(numbers).tolist():
                if number not in writers:
                    writer = pa.ipc.new_stream(str(files[number]), table.schema)
                    writers[number] = opened.enter_context(writer)
                writers[number].write_table(table.filter(pa.array(numbers == number)))
    return files


def _hashes(ids: pa.Array) -> np.ndarray:
    digests = blake2b_digests(ids.cast(pa.string()), 8)
    return np.frombuffer(digests.buffers()[1], dtype=">u8", count=len(ids)).astype(np.uint64)


def _read_ids(file: Path) -> pa.Array:
    if not file.exists():
        return pa.nulls(0)
    with pa.ipc.open_stream(str(file)) as reader:
        return one_chunk(reader.read_all()["id"])


_REPLACE = "write the whole release with --replace, which first deletes all rows of the target"


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    status: str
    release: int
    before: tuple[int, ...]
    """numbers of the releases from which the target's rows came; 0 stands for no rows"""
    written: int
    """number of rows that this run inserted or replaced"""
    deleted: int
    """number of ids that this run deleted"""
    rows: int
    """number of rows of the release"""


def export(
    releases: Releases, number: int | None, target: Target, stages: Stages, *, replace: bool = False
) -> Exported:
    """Make the target equal to a release. An export that was stopped continues after its last step.

    Args:
        number: the release; None exports the current one.
        replace: delete all rows of the target, and write the whole release.

    Raises:
        DataError: the target holds rows of another root, or other columns.
        ConfigError: the target is in a folder that holds files of the releases or of the corpus.
        SpaceMismatch: the target holds vectors of another space.
        TransientError: another export to the target is running, or its server does not answer.
    """
    _refuse_own_folder(releases, target)
    with _only_export(releases, target), target.explained():
        manifest = releases.get_or_current(number)
        _refuse_folder_of_corpus(manifest, target)
        running = _Export(releases, manifest, target, stages)
        stored = target.position()
        if stored is not None and not replace:
            if stored.held == running.wanted:
                return Exported("unchanged", manifest.release, (manifest.release,), 0, 0, manifest.rows)
            running.check(stored)
        is_whole = replace or (
            stored is not None
            and target.is_atomic
            and running.has_unknown_rows(stored.releases, is_finished=stored.next is None)
        )
        return running.run(None if is_whole else stored)


def _refuse_own_folder(releases: Releases, target: Target) -> None:
    """Raise ConfigError for a target among the files of the releases: prune would remove its files."""
    uri = releases.store.uri
    prefix = (uri if "://" in uri else os.path.realpath(uri)).rstrip("/") + "/"
    path = f"{target.address}/{target.name}"
    folder = path.removeprefix(prefix).partition("/")[0] if path.startswith(prefix) else ""
    if folder in (*OWN_FOLDERS, "commits"):
        raise ConfigError(
            target.where,
            "a folder outside the root, or its folder exports",
            f"{folder}, which holds files of the releases",
            "choose another TARGET",
        )


def _refuse_folder_of_corpus(manifest: ReleaseManifest, target: Target) -> None:
    """Raise ConfigError for a folder among the files of the corpus if the next night would read its files.

    A relative URI of the corpus cannot be checked: the folder that it is relative to is not stored.
    """
    uri = manifest.settings.get("corpus", {}).get("uri")
    if not (uri and target.looks_like_corpus and ("://" in uri or uri.startswith(("/", "~")))):
        return
    if is_in_corpus(uri, f"{target.address}/{target.name}"):
        raise ConfigError(
            target.where,
            f"a folder that is not below corpus.uri ({uri}), whose files are all read",
            "one that is",
            "choose another TARGET, or a folder whose name begins with _",
        )


def _only_export(releases: Releases, target: Target) -> contextlib.AbstractContextManager[None]:
    """Hold the target's lease, below exports/ of the root. Raises TransientError if another export has it."""
    digest = digest_of({"kind": type(target).__name__, "uri": target.address, "name": target.name})

    def refusal(holder: str) -> TransientError:
        return TransientError(
            target.where,
            "no other export to this target",
            f"one that is running ({holder})",
            "wait until it has ended, and run again; the lease of a killed export on another machine, or in "
            "another container, expires after 20 minutes",
        )

    return exclusive_lease(releases.store, f"exports/{digest[:12]}", refusal)


class _Export:
    """One export of a release."""

    def __init__(self, releases: Releases, manifest: ReleaseManifest, target: Target, stages: Stages) -> None:
        self._releases, self._manifest, self._target, self._stages = releases, manifest, target, stages
        self.wanted = _held(manifest)

    @cached_property
    def _schema(self) -> pa.Schema:
        return RowChanges(self._releases.store, (), True, self._manifest).schema

    def check(self, stored: Position) -> None:
        """Raise an error if the target cannot be changed into the release."""
        if stored.space_id != self._manifest.space_id:
            raise SpaceMismatch(
                self._target.where,
                f"vectors of space {self._manifest.space_id[:16]}, as in release {self._manifest.release}",
                f"space {stored.space_id[:16]}",
                "vectors of two spaces cannot be compared: export to another --name and let your searches "
                f"change to it at once, or {_REPLACE}",
            )
        if stored.columns != (columns := _columns(self._schema)):
            raise DataError(
                self._target.where,
                f"the columns {_describe(columns)}",
                _describe(stored.columns),
                f"export to another --name, or {_REPLACE}",
            )

    def has_unknown_rows(self, held: tuple[HeldRelease, ...], *, is_finished: bool) -> bool:
        """Return whether the rows of the target are unknown; if so, announce that all rows are written.

        They are those of a release that was pruned, or from which an erasure has removed rows since.

        Args:
            is_finished: whether no export to the target was stopped.

        Raises:
            DataError: the root never had one of the releases.
        """
        known = (each for each in held if each not in (EMPTY, UNKNOWN))
        problems = (self._problem_of(each, is_finished=is_finished) for each in known)
        problem = next(filter(None, problems), None)
        if problem:
            announce(f"{self._target.where}: {problem}, so all rows are written")
        return problem is not None

    def run(self, stored: Position | None) -> Exported:
        """Write the changes, step by step."""
        position = self._start(stored)
        is_known = UNKNOWN not in position.releases
        before = tuple(
            self._releases.get(each.number) for each in position.releases if is_known and each != EMPTY
        )
        is_partial = not is_known or EMPTY in position.releases
        changes = RowChanges(self._releases.store, before, is_partial, self._manifest)
        written = self._upsert(changes, position)
        deleted = self._delete(changes, position) if is_known else self._delete_surplus(changes)
        self._check_count()
        self._target.store_position(
            position.model_copy(update={"releases": (self.wanted,), "next": None, "steps": 0})
        )
        numbers = tuple(each.number for each in position.releases if each != UNKNOWN)
        return Exported("done", self.wanted.number, numbers, written, deleted, self._manifest.rows)

    def _start(self, stored: Position | None) -> Position:
        """Store the first position, or return the stored position if the same export continues.

        If no step is finished, the target is created again: the export may have been killed while it replaced
        rows.
        """
        if stored is None or (stored.releases == (EMPTY,) and stored.steps == 0):
            position = Position(
                space_id=self._manifest.space_id,
                columns=_columns(self._schema),
                releases=(EMPTY,),
                next=self.wanted,
            )
            self._target.create(self._schema, position)
            return position
        held = stored.releases
        if stored.next and stored.next not in (self.wanted, *held) and not self._target.is_atomic:
            held = (*held, stored.next)
        is_finished = stored.next is None
        if self.has_unknown_rows(held, is_finished=is_finished) and UNKNOWN not in held:
            held = (UNKNOWN, *held)
        if stored.next == self.wanted and held == stored.releases:
            return stored
        position = stored.model_copy(update={"releases": held, "next": self.wanted, "steps": 0})
        self._target.store_position(position)
        return position

    def _problem_of(self, held: HeldRelease, *, is_finished: bool) -> str | None:
        """Describe why the rows of a release that the target holds are unknown; None if they are known.

        After an erasure, they are known if the target has as many rows as the release: an erasure only
        removes rows.

        Args:
            is_finished: whether no export to the target was stopped, so that its rows can be counted.

        Raises:
            DataError: the root never had this release.
        """
        history = self._releases.history()
        replaced = {(each.release, each.before) for commit in history for each in commit.rewritten}
        known = replaced | {(commit.release, commit.sha256) for commit in history}
        if (held.number, held.sha256) not in known:
            raise DataError(
                self._target.where,
                f"rows of a release of {self._releases.store.uri}",
                f"rows of release {held.number} of another root (manifest {held.sha256[:12]})",
                f"export to another --name, or {_REPLACE}",
            )
        if held.number not in self._releases.numbers():
            return f"release {held.number} was pruned"
        if (held.number, held.sha256) not in replaced:
            return None
        if is_finished and self._target.count() == self._releases.get(held.number).rows:
            return None
        return f"rows of release {held.number} were erased"

    def _upsert(self, changes: RowChanges, position: Position) -> int:
        """Write the rows of the units that no earlier run has finished. Returns the number of rows."""
        units = changes.units
        total = sum(int(unit.mask.sum()) for unit in units)
        with self._stages("write", total) as bar:
            finished = units[: position.steps]
            bar.skip(sum(int(unit.mask.sum()) for unit in finished))
            for step, unit in enumerate(units[position.steps :], start=position.steps + 1):
                for rows in changes.upserts(unit):
                    self._target.upsert(rows)
                    bar.add(len(rows))
                self._target.store_position(position.model_copy(update={"steps": step}))
            return bar.stage.done

    def _delete(self, changes: RowChanges, position: Position) -> int:
        """Delete the ids of the buckets that no earlier run has finished. Returns the number of ids."""
        first = max(0, position.steps - len(changes.units))
        with self._stages("delete") as bar:
            for step, ids in enumerate(changes.deletes(first), start=len(changes.units) + first + 1):
                if len(ids):
                    self._target.delete(ids)
                    bar.add(len(ids))
                    self._target.store_position(position.model_copy(update={"steps": step}))
            return bar.stage.done

    def _delete_surplus(self, changes: RowChanges) -> int:
        """Delete the target's rows that the release lacks, once all rows of the release are written.

        Returns their number.
        """
        if self._target.count() == self._manifest.rows:
            return 0
        with self._stages("delete") as bar, self._releases.store.scratch() as scratch:
            held = (ids.cast(self._schema.field("id").type) for ids in self._target.ids())
            wanted = map(self._target.stored_ids, changes.ids())
            for ids in surplus_ids(held, wanted, self._manifest.rows, scratch):
                if len(ids):
                    self._target.delete(ids)
                    bar.add(len(ids))
            return bar.stage.done

    def _check_count(self) -> None:
        """Raise DataError if the target does not have as many rows as the release."""
        found = self._target.count()
        if found is not None and found != self._manifest.rows:
            raise DataError(
                self._target.where,
                f"{counted(self._manifest.rows, 'row')}, as in release {self._manifest.release}",
                f"{found:,}",
                f"another program writes to the target: end it, and {_REPLACE}",
            )


def _held(manifest: ReleaseManifest) -> HeldRelease:
    return HeldRelease(number=manifest.release, sha256=sha256(manifest.to_json()).hexdigest())


def _columns(schema: pa.Schema) -> dict[str, str]:
    """Return names and types of the columns."""
    return {field.name: str(field.type) for field in schema}


def _describe(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())

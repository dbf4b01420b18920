"""Open a candidate as a searcher does, from its files as they are stored, before it is published.

New files are compared with their sha256, by this process or, if they are large, by tasks on the workers. Then
a child process, which gets the candidate's manifest and nothing else of the night, uses the files. If a file
crashes the child, the candidate is refused. Files of the previous release were opened before it was
published, and are not read again.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.export.changes import RowChanges, UnitUpserts
from pipeline.flows.rows import is_live
from pipeline.flows.workers.tasks import PlainTask
from pipeline.index.search.open_in_child import ChildLimits, prepare_child, run_in_child
from pipeline.index.search.release_files import OpenOptions, ReleaseFiles
from pipeline.index.search.search import OpenRelease
from pipeline.index.search.use_as_searcher import Reading, try_release
from pipeline.log import counted
from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import READABLE, Gate, ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import Fault, faults_of, new_files
from pipeline.targets.parquet import ParquetTarget
from pipeline.targets.values import json_rows
from pipeline.transforms.transform import load_transform

_GROUP_BYTES = 1 << 30  # bytes of the files that one item compares
_GROUP_FILES = 64  # bounds the requests of one item, however many units there are
_SMALL_BYTES = 1 << 30  # bytes that this process tries itself, in less time than workers need to start
_SHOWN = 3  # faults that the sentence names
_EXPORTED_ROWS = 1_000
_DELETE = "delete them and run again"
# Modules that a child needs: this one, and one that imports PyTorch.
_USE, _ENCODER = __name__, "pipeline.models.inference.encoder"


class Trial(NamedTuple):
    """Files of a candidate to compare with their sha256, and what to try with them afterwards."""

    files: tuple[FileRef, ...]
    """files that no earlier release has"""
    part: int | None = None
    """number of the part of the index to open and search; None: no part"""
    encoder: bool = False
    """also encode texts with the stored copy of the encoder"""
    head_of: VectorUnit | None = None
    """unit whose first rows are exported; None: no unit"""
    read: int = 0
    """bytes of the files that are used, new or not"""


@dataclass(frozen=True)
class TryCandidate(PlainTask[Trial, tuple[str, ...]]):
    """Do trials of a candidate. Returns for each trial a sentence per fault."""

    store: Store
    manifest: bytes
    """content of the candidate's manifest"""

    def work(self, trial: Trial) -> tuple[str, ...]:
        """Compare the files, then use them in a child."""
        if faults := faults_of(self.store, trial.files):  # a changed file may crash its reader
            return _sentences(self.store, faults)
        if trial.part is None and trial.head_of is None:
            return ()
        limits = ChildLimits.for_bytes(trial.read)
        try:
            files = [self.store.uri_of(file.path) for file in trial.files]
            run_in_child(partial(_use, self.store, self.manifest, trial), files, limits, _DELETE)
        except (ConfigError, DataError, ModelError) as error:
            return (str(error),)
        return ()


def _use(store: Store, content: bytes, trial: Trial, reading: Reading) -> None:
    """Use the files of a trial as a search and an export do. Raises whatever these raise."""
    manifest = ReleaseManifest.from_json(content, "the candidate's manifest", store)
    if trial.head_of is not None:
        ordinal = trial.head_of.ordinal
        unit = next(unit for unit in manifest.units if unit.ordinal == ordinal)
        dead = [manifest.dead] if manifest.dead else []
        reading(store.uri_of(file.path) for file in (unit.file, unit.corpus, *dead))
        _export_head(store, manifest, trial.head_of)
    if trial.part is None:
        return
    part = manifest.index_parts()[trial.part]
    reading(store.uri_of(file.path) for file in _opened(manifest, trial.part))
    chosen = None if manifest.index.parts == 1 else frozenset([trial.part])
    # local files were compared with their sha256 just now; remote files are fetched again, and compared
    options = OpenOptions(store, chosen, verify=store.shared, device="cpu")
    release = OpenRelease(Releases(store), ReleaseFiles(manifest, options), follows=False)
    try_release(release, [part], reading, encoder=trial.encoder)
    if manifest.transform:
        reading([store.uri_of(manifest.transform.path)])
        load_transform(manifest.transform.read(store))


def _opened(manifest: ReleaseManifest, number: int) -> tuple[FileRef, ...]:
    """Return the files that a searcher of one part of the index opens."""
    part = manifest.index_parts()[number]
    return (*part.files, *part.ids, *((manifest.tombstones,) if manifest.tombstones else ()))


def _export_head(store: Store, manifest: ReleaseManifest, unit: VectorUnit) -> None:
    """Export the first rows of a unit to Parquet, and convert them as for databases that take JSON."""
    changes = RowChanges(store, (), True, manifest)
    upserts = UnitUpserts(unit, is_live(unit, DeadRows(store, manifest.dead)))
    with store.scratch() as scratch, closing(ParquetTarget(str(scratch), "head")) as target:
        for rows in islice(changes.upserts(upserts), 1):
            head = rows.slice(0, _EXPORTED_ROWS)
            json_rows(head)
            target.upsert(head)


def prepare_trials(*, encoder: bool) -> None:
    """Start the child process of small trials in advance, so that they do not wait for it.

    Args:
        encoder: whether a new encoder will be tried.
    """
    prepare_child([_USE, *([_ENCODER] if encoder else [])])


def try_as_searcher(
    context: FlowContext, previous: ReleaseManifest | None, manifest: ReleaseManifest
) -> Gate:
    """Open a candidate as searchers do, and return the gate that passes if all of its files can be used.

    Args:
        previous: the previous release, whose files are not read again if they were opened in this way.
    """
    planned = _trials(context.store, previous, manifest)
    if isinstance(planned, Gate):
        return planned
    files, trials = planned
    task = TryCandidate(context.store, manifest.to_json())
    is_small = sum(trial.read for trial in trials) <= _SMALL_BYTES
    faults = map(task.work, trials) if is_small else iter(map_in_order(context, task, trials))
    return _gate(files, chain.from_iterable(faults))


def try_again(store: Store, previous: ReleaseManifest | None, manifest: ReleaseManifest) -> Gate:
    """Repeat `try_as_searcher` in this process and its children, without workers."""
    planned = _trials(store, previous, manifest)
    if isinstance(planned, Gate):
        return planned
    files, trials = planned
    task = TryCandidate(store, manifest.to_json())
    return _gate(files, chain.from_iterable(map(task.work, trials)))


def _trials(
    store: Store, previous: ReleaseManifest | None, manifest: ReleaseManifest
) -> tuple[int, tuple[Trial, ...]] | Gate:
    """Return the number of new files and the trials; the failed gate if the new files are unknown."""
    opened = previous if previous is not None and READABLE in previous.gates else None
    try:
        files = new_files(store, manifest, opened)
    except (DataError, FileNotFoundError) as error:  # the record of the corpus or the table of the units
        return _gate(0, [str(error)])
    return len(files), tuple(_plan(manifest, files))


def check_written(store: Store, gate: Gate, files: Iterable[FileRef]) -> Gate:
    """Return `gate`, or a gate that fails if the content of a file written since then is wrong.

    Args:
        gate: the gate that `try_as_searcher` returned.
        files: the files that were written since then.
    """
    faults = faults_of(store, files)
    return _gate(len(faults), _sentences(store, faults)) if faults else gate


def _gate(files: int, faults: Iterable[str]) -> Gate:
    """Return the gate for this number of new files, with a sentence for each fault."""
    found = tuple(dict.fromkeys(faults))
    sentence = f"{counted(len(found), 'fault')} in {counted(files, 'new file')} of a searcher, 0 expected"
    if found:
        more = f"; and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        sentence += f": {'; '.join(found[:_SHOWN])}{more}"
    return Gate(value=len(found), threshold=0, passed=not found, relation="exactly", sentence=sentence)


def _sentences(store: Store, faults: Iterable[Fault]) -> tuple[str, ...]:
    return tuple(
        f"{fault._replace(path=store.uri_of(fault.path))}; delete this file and run again" for fault in faults
    )


def _plan(manifest: ReleaseManifest, files: Sequence[FileRef]) -> Iterator[Trial]:
    """Divide a candidate's new files into trials: one for each part of the index, some for other files."""
    paths = {file.path for file in files}
    parts = manifest.index_parts()
    own = [{file.path for file in (*part.files, *part.ids)} & paths for part in parts]
    new_parts = [number for number, names in enumerate(own) if names]
    encoder = any(file.path in paths for file in manifest.encoder.references())
    if not new_parts and (encoder or (manifest.tombstones and manifest.tombstones.path in paths)):
        new_parts = [len(parts) - 1]  # one part suffices to see that dead rows are left out
    head = _newest_unit(manifest, paths)
    for number in new_parts:
        is_first = number == new_parts[0]
        used = own[number] | ({head.path} if head and is_first else set())
        needed = tuple(file for file in files if file.path in used)
        tried = manifest.encoder.references() if encoder and is_first else ()
        read = {file.path: file.bytes for file in (*needed, *_opened(manifest, number), *tried)}
        yield Trial(needed, number, encoder and is_first, head if is_first else None, sum(read.values()))
        paths -= used
    group, group_bytes, head = list[FileRef](), 0, None if new_parts else head
    for file in (file for file in files if file.path in paths):
        group.append(file)
        group_bytes += file.bytes
        if group_bytes >= _GROUP_BYTES or len(group) == _GROUP_FILES:
            yield Trial(tuple(group), head_of=head, read=group_bytes)
            group, group_bytes, head = [], 0, None
    if group:
        yield Trial(tuple(group), head_of=head, read=group_bytes)


def _newest_unit(manifest: ReleaseManifest, paths: set[str]) -> VectorUnit | None:
    """Return the newest unit whose file is among `paths` and has rows; None without one."""
    new = (unit for unit in manifest.units if unit.path in paths and unit.rows)
    return max(new, key=lambda unit: unit.ordinal, default=None)

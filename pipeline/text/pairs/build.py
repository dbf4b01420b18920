"""Build training rows from other data: divide the data by group, build each group's rows, and write Parquet.

This is the work of `manta pairs`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import digest_of, validated
from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.log import Stages
from pipeline.settings.pairs import PairsSettings
from pipeline.settings.training import TEXTS
from pipeline.store.files.base import Store, sha256_of
from pipeline.store.files.local import ScratchStore
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import sum_counts
from pipeline.store.records.write_once import create_record, load_or_make, put_by_content
from pipeline.store.rows.arrays import one_chunk
from pipeline.text.formats.reject_rows import rechunk
from pipeline.text.key_tables import keys
from pipeline.text.key_tables.partitions import partition_of, read_from_all, store_partitions
from pipeline.text.normalize import NORMALIZER_VERSION, normalize
from pipeline.text.pairs.builder import BUILDERS, Builder
from pipeline.text.pairs.grouped import GroupRoles, group_rows, seeded_hashes
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows
from pipeline.text.sources.sources import check_is_outside
from pipeline.text.task_map import WorkFolder

TRAIN, TEST = "train.parquet", "_test.parquet"
"""Names of the files.

A training that reads a folder leaves out names with an underscore at the beginning, so it reads no test row.
"""
_VERSION = 1  # increased when a change of the code changes the rows
_RUN, _RESULT = "run.json", "result.json"
_UNITS = "_units"  # folder of the units, which exist only until the result is complete
_ROW_GROUP = 8_192  # rows; small, because a training shuffles whole row groups


class BuildRecord(Stored):
    """Definition of the rows of a folder, written first."""

    definition: dict[str, Any]
    """settings and files: equal definitions give equal rows"""


class BuiltUnit(Stored):
    """Rows that were built from one bucket of groups."""

    train: FileRef
    test: FileRef | None
    counts: dict[str, int]


class BuiltRows(Stored):
    """Result of `build_rows`."""

    train: FileRef
    test: FileRef | None
    """None unless pairs.test sets groups aside"""
    counts: dict[str, int]
    """numbers of rows read, of rows left out by reason, and of groups and texts without a row by reason"""


@dataclass(frozen=True)
class RowBuild:
    """Rows to build in one folder."""

    store: Store
    """store whose root is the folder"""
    settings: PairsSettings
    builder: Builder
    rows: TrainingRows
    definition: dict[str, Any]


def open_build(settings: PairsSettings) -> RowBuild:
    """Open the data, and check settings, columns and labels, before any row is built.

    Raises:
        ConfigError: settings are missing or invalid, or the labels lack one that the kind needs.
        DataError: the data is missing, lacks a column, has one of the wrong type, or an unknown label.
    """
    if settings.kind is None or settings.data is None:
        key = "kind" if settings.kind is None else "data"
        kinds = ", ".join((*BUILDERS.names(), "rescore"))
        expected = f"one of {kinds}" if key == "kind" else "files with rows"
        raise ConfigError(f"pairs.{key}", expected, "none", f"set pairs.{key}")
    builder = validated(BUILDERS[settings.kind], settings.options, f"pairs.options of {settings.kind}")
    check_is_outside(settings.root, "pairs.root", settings.data.uri, "pairs.data")
    data = settings.data.model_copy(update={"missing": "drop"})
    builder.check(data.values, data.uri)
    rows = open_training_rows(data, builder.columns)
    files = {group.file.uri: [group.file.name, group.file.size, group.file.stamp] for group in rows.groups}
    definition = {
        "version": _VERSION,
        "normalizer": NORMALIZER_VERSION,
        "kind": settings.kind,
        "options": builder.model_dump(mode="json"),
        "seed": settings.seed,
        "test": settings.test,
        "data": data.identity_settings(without="uri") | {"files": list(files.values())},
    }
    name = settings.name or f"{settings.kind}-{digest_of(definition)[:12]}"
    store = open_store(f"{open_store(settings.root).uri}/{name}")
    return RowBuild(store, settings, builder, rows, definition)


def build_rows(build: RowBuild, stages: Stages) -> tuple[Literal["built", "unchanged"], BuiltRows]:
    """Build the rows and store them as TRAIN and TEST; a run that was killed continues with its units.

    Every random choice depends on the seed and on texts and names of groups only, and rows are in the order
    of a hash of their group. So the files are equal to the last byte, regardless of the order of the rows of
    the data and of its division into files.

    Memory holds several copies of the rows of one bucket of groups, 2^18 rows of the data on average; a group
    is never divided, so a bucket with a larger group takes more. Temporary files take as many bytes as the
    texts, on the disk of the result, or on this machine's disk if the result goes to an object store.

    Returns:
        "built", or "unchanged" if an earlier run has built the same rows; and the files and counts.

    Raises:
        ConfigError: the folder has rows of another definition.
        DataError: no row can be built, or rows of a group contradict each other.
        TransientError: another run of the same command has removed the units, or a file changed.
    """
    store, record = build.store, BuildRecord(definition=build.definition)
    check_folder(store, build.definition)
    result = BuiltRows.load_complete(store, _RESULT)
    status: Literal["built", "unchanged"] = "built" if result is None else "unchanged"
    if result is None:
        create_record(store, _RUN, record)
        _build_units(build, stages)
        with stages("write"):
            result = load_or_make(store, _RESULT, BuiltRows, lambda: _join(build))
    for entry in store.list(_UNITS):
        store.delete(entry.path)
    return status, result


def check_folder(store: Store, definition: dict[str, Any]) -> None:
    """Raise ConfigError if the folder has rows of another definition."""
    record = BuildRecord.load_intact(store, _RUN)
    if record is not None and record.definition != definition:
        names = [name for name in definition if record.definition.get(name) != definition[name]]
        raise ConfigError(
            store.uri,
            "rows of the same settings and files as before",
            f"others: {', '.join(names)} changed",
            "set pairs.name to another name, or remove the folder",
        )


def _unit_paths(build: RowBuild) -> list[str]:
    """Paths of the records of all units, one for each bucket."""
    count = keys.bucket_count(build.rows.counts["rows"])
    return [f"{_UNITS}/{number:05d}-of-{count}.json" for number in range(count)]


def _build_units(build: RowBuild, stages: Stages) -> None:
    """Build the rows of every bucket whose unit no earlier run has stored."""
    paths = _unit_paths(build)
    missing = [number for number, path in enumerate(paths) if not BuiltUnit.load_complete(build.store, path)]
    if not missing:
        return
    with build.store.scratch() as folder:
        buckets = ScratchStore(str(folder))
        with stages("read", len(build.rows)) as bar:
            parts: list[FileRef] = []
            for table in rechunk(_read(build), keys.BUCKET_ROWS):
                partitions = partition_of(table["hash"].to_numpy(), len(paths))
                path = f"part-{len(parts):05d}.arrow"
                parts.append(store_partitions(buckets, table, partitions, len(paths), path))
                bar.add(len(table))
        build.rows.check_unchanged()  # before units are stored under the stamps of the files
        with stages("build", unit="rows") as bar:
            for number in missing:
                rows = read_from_all(buckets, parts, _schema(build.builder), number, number + 1)
                name = Path(paths[number]).stem

                def make(scratch: Path, rows: pa.Table = rows, name: str = name) -> BuiltUnit:
                    return _build_unit(build, rows, scratch, name)

                WorkFolder(build.store, _UNITS).load_or_make(name, BuiltUnit, make)
                bar.add(len(rows))


def _schema(builder: Builder) -> pa.Schema:
    """Schema of the rows of a bucket: columns by role, and `hash`, a hash of the group."""
    types = {"label": pa.int64(), "position": pa.int64()}
    columns = [pa.field(role, types.get(role, pa.large_string())) for role in builder.columns]
    return pa.schema([*columns, pa.field("hash", pa.uint64())])


def _read(build: RowBuild) -> Iterator[pa.Table]:
    """Yield all rows of the data, texts without white space around them, with a hash of their group."""
    builder, seed = build.builder, build.settings.seed
    for table in build.rows.read(build.rows.spans()):
        columns = {role: one_chunk(table[role]) for role in builder.columns}
        columns |= {role: normalize(columns[role]) for role in columns if role in TEXTS}
        hashes = seeded_hashes(pc.fill_null(columns[builder.group], ""), seed, "group")
        yield pa.table(columns | {"hash": hashes}, schema=_schema(builder))


def _build_unit(build: RowBuild, rows: pa.Table, scratch: Path, name: str) -> BuiltUnit:
    """Build the rows of one bucket, and store those of each split."""
    usable, counts = _drop_unusable(build.builder, rows)
    names = one_chunk(usable[build.builder.group])
    is_test = seeded_hashes(names, build.settings.seed, "test") < np.uint64(build.settings.test * 2**64)
    files, all_counts = dict[str, FileRef](), [counts]
    for split, path in _splits(build):
        part = usable.filter(pa.array(is_test if path == TEST else ~is_test))
        table, split_counts = _build_split(build, part)
        pq.write_table(table, file := scratch / path, compression="zstd")
        files[split] = put_by_content(build.store, file, f"{_UNITS}/{name}-{split}", len(table))
        all_counts.append(split_counts)
    return BuiltUnit(train=files["train"], test=files.get("test"), counts=sum_counts(all_counts))


def _drop_unusable(builder: Builder, rows: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Leave out rows with a blank text, or without the name of a group or section; count them by reason."""
    counts = {}
    for role in builder.columns:
        column = rows[role]
        if not pa.types.is_large_string(column.type):
            continue
        reason = f"blank_{role}" if role in TEXTS else f"without_{role}"
        keep = pc.not_equal(column, "") if role in TEXTS else pc.is_valid(column)
        kept = rows.filter(keep)
        counts[reason], rows = len(rows) - len(kept), kept
    return rows, counts


def _build_split(build: RowBuild, rows: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Build the rows of the groups of one split."""
    builder, data = build.builder, build.rows.settings
    roles = GroupRoles(builder.group, builder.within, builder.text)
    grouped = group_rows(rows, roles, build.settings.seed, data.values.labels, data.uri)
    columns, counts = builder.build(grouped)
    table = pa.table({role: texts.cast(pa.string()) for role, texts in columns.items()})
    return table, {"repeated": len(rows) - len(grouped), **counts}


def _splits(build: RowBuild) -> list[tuple[str, str]]:
    """Names of the splits, and of their files."""
    return [("train", TRAIN), *([("test", TEST)] if build.settings.test else [])]


def _join(build: RowBuild) -> BuiltRows:
    """Write the rows of all units to one file for each split, in the order of the hashes of their groups."""
    units = [_load_unit(build.store, path) for path in _unit_paths(build)]
    counts = sum_counts([build.rows.counts, *(unit.counts for unit in units)])
    files = dict[str, FileRef]()
    for split, path in _splits(build):
        parts = [getattr(unit, split) for unit in units]
        if not any(part.rows for part in parts):
            raise _no_rows(build, split, counts)
        files[split] = join_files(build.store, parts, path)
    return BuiltRows(train=files["train"], test=files.get("test"), counts=counts)


def _load_unit(store: Store, path: str) -> BuiltUnit:
    """Load a unit. Raises TransientError if it is missing."""
    if unit := BuiltUnit.load_complete(store, path):
        return unit
    raise TransientError(
        store.uri_of(path),
        "the rows of a bucket",
        "no such file",
        "run again: another run of the same command may have finished",
    )


def join_files(store: Store, parts: Sequence[FileRef], path: str) -> FileRef:
    """Join Parquet files to one at `path`. Its row groups do not depend on the number of files joined.

    One file is open at a time, because a process may not open thousands.
    """
    schema = pq.read_schema(parts[0].open(store))
    batches = (batch for part in parts for batch in pq.ParquetFile(part.open(store)).iter_batches(_ROW_GROUP))
    with store.scratch() as scratch:
        file, rows = scratch / "rows.parquet", 0
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in rechunk((pa.Table.from_batches([batch]) for batch in batches), _ROW_GROUP):
                writer.write_table(table)
                rows += len(table)
        reference = FileRef(path=path, sha256=sha256_of(file), rows=rows, bytes=file.stat().st_size)
        store.put(file, path)
    return reference


def _no_rows(build: RowBuild, split: str, counts: dict[str, int]) -> DataError:
    """Make the error for a split without a row."""
    found = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    remedy = "give files that have such rows"
    if build.settings.test:
        remedy += ", or change pairs.test"
    return DataError(f"{build.rows.name}: {split}", build.builder.needed, f"none ({found})", remedy)

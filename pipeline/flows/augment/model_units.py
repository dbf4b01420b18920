"""What models make of a corpus unit's texts: one unit of its own for each model, row by row, whatever row is live. Kept by all that decides what is in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.augment import LoadedStage, ModelStage, ModelStats, StageInput, StageOutput
from pipeline.config import digest_of
from pipeline.device import resolve
from pipeline.errors import MODEL_FAILURES, Defect, ModelError
from pipeline.flows.workers.tasks import progress
from pipeline.flows.workers.worker import gpu_assigned
from pipeline.settings.augment import AugmentSettings
from pipeline.store.base import Store, sha256_of
from pipeline.store.units import CorpusUnit, UnitRecord, create_record

_FORMAT = 1  # of the units made here
_TOP = "units/made"
# what a model raises on a text that it cannot digest; errors of storage and ours are none of these
_NO_SOURCE = "no_source"  # of a text that the model before gave nothing for, and no reason


def makings(legs: Sequence[ModelStage], seed: int) -> tuple[str, ...]:
    """Folder of each leg's units: by the legs up to it and the seed."""
    identities = [leg.identity() for leg in legs]
    return tuple(
        f"{_TOP}/{digest_of([_FORMAT, seed, identities[: number + 1]])[:16]}" for number in range(len(legs))
    )


def made_path(folder: str, sha256: str) -> str:
    """Where the record of what became of that corpus unit stands."""
    return f"{folder}/{sha256[:24]}.json"


def made_columns(number: int) -> tuple[str, str]:
    """(texts, reasons): the columns of the variant of that number, from 0."""
    return f"text_{number + 1}", f"reason_{number + 1}"


@dataclass(frozen=True)
class MakeUnit:
    """Take a corpus unit through `legs`. A leg's unit that has its record is taken as it is."""

    store: Store
    legs: tuple[ModelStage, ...]
    folders: tuple[str, ...]
    first: int
    """legs before these: their texts are read from the folder of the last of them, `reads`"""
    reads: str | None
    settings: AugmentSettings
    known: Mapping[int, str] = field(default_factory=dict)
    """sha256 of earlier corpus units by ordinal: a text that stands in one of them became what it became then"""

    def start(self) -> Callable[[CorpusUnit], tuple[UnitRecord, tuple[ModelStats, ...]]]:
        working: dict[int, LoadedStage] = {}

        def model(number: int) -> LoadedStage:
            if number not in working:
                working[number] = _started(self.legs[number], self.settings)
            return working[number]

        def work(unit: CorpusUnit) -> tuple[UnitRecord, tuple[ModelStats, ...]]:
            record, before, spent = None, self.reads, []
            for number, folder in enumerate(self.folders):
                path = made_path(folder, unit.sha256)
                record, stats = UnitRecord.left(self.store, path), ModelStats()
                if record is None or not record.is_whole(self.store):
                    record, stats = self._made(unit, number, before, model)
                    record = create_record(self.store, path, record)
                before = folder
                spent.append(stats)
                progress(unit.rows * (number + 1), last=True)  # a model may have to be loaded next
            assert record is not None
            return record, tuple(spent)

        return work

    def _made(
        self, unit: CorpusUnit, number: int, before: str | None, model: Callable[[int], LoadedStage]
    ) -> tuple[UnitRecord, ModelStats]:
        given, keys = _given(self.store, unit, before)
        makes, folder = self.legs[number].outputs, self.folders[number]
        texts = np.full((unit.rows, len(given) * makes), None, object)
        reasons = np.full_like(texts, None)
        known = self._copied(unit, folder, texts, reasons)
        first, again = _first_of_each(keys, ~known)
        stats = ModelStats()
        for column, (sources, why) in enumerate(given):
            place = slice(column * makes, (column + 1) * makes)
            mark, todo, asked = f"{self.first + number}.{column}".encode(), [], []
            for row in first:
                if (text := sources[row]) is None:
                    reasons[row, place] = why[row] or _NO_SOURCE
                else:
                    todo.append(row)
                    asked.append(StageInput(text, keys[row] + mark))
            if not todo:
                continue
            start = _copy((working := model(number)).stats)
            for done, (at, made) in enumerate(_blamed(working(asked), self.legs[number], unit), 1):
                _put(texts[todo[at], place], reasons[todo[at], place], made)
                progress(
                    unit.rows * number + unit.rows * (column * len(todo) + done) // (len(given) * len(todo))
                )
            stats = stats.merge(_since(working.stats, start))
        texts[again[:, 0]], reasons[again[:, 0]] = texts[again[:, 1]], reasons[again[:, 1]]
        return self._stored(unit, folder, texts, reasons, int(known.sum())), stats

    def _copied(self, unit: CorpusUnit, folder: str, texts: np.ndarray, reasons: np.ndarray) -> np.ndarray:
        """Mask (n,) of the rows whose text stood in an earlier unit; what became of it then is in its place."""
        known = np.zeros(unit.rows, bool)
        if unit.copies is None or not self.known:
            return known
        table = pq.read_table(self.store.open(unit.copies.path, unit.copies.sha256))
        rows, addresses = table["row"].to_numpy().astype(np.int64), table["source"].to_numpy()
        for ordinal in np.unique(addresses >> 32).tolist():
            record = (
                UnitRecord.left(self.store, made_path(folder, self.known[ordinal]))
                if ordinal in self.known
                else None
            )
            if record is None or not record.is_whole(self.store):
                continue
            mine = addresses >> 32 == ordinal
            earlier, at = (
                pq.read_table(self.store.open(record.path, record.sha256)),
                pa.array(addresses[mine] & 0xFFFFFFFF),
            )
            for column in range(texts.shape[1]):
                for target, name in zip((texts, reasons), made_columns(column), strict=True):
                    target[rows[mine], column] = earlier[name].take(at).to_numpy(zero_copy_only=False)
            known[rows[mine]] = True
        return known

    def _stored(
        self, unit: CorpusUnit, folder: str, texts: np.ndarray, reasons: np.ndarray, copied: int
    ) -> UnitRecord:
        columns: dict[str, pa.Array] = {}
        for column in range(texts.shape[1]):
            text, reason = made_columns(column)
            columns |= {
                text: pa.array(texts[:, column], pa.large_string()),
                reason: pa.array(reasons[:, column], pa.string()),
            }
        with self.store.scratch() as scratch:
            file = scratch / "made.parquet"
            pq.write_table(pa.table(columns), file, compression="zstd")
            digest, size = sha256_of(file), file.stat().st_size
            path = f"{folder}/{unit.sha256[:24]}-{digest[:12]}.parquet"
            self.store.put(file, path)
        return UnitRecord(
            name=f"{folder}/{unit.sha256[:24]}",
            path=path,
            rows=unit.rows,
            bytes=size,
            sha256=digest,
            counts={"known": copied},
            source=unit.sha256,
        )


def _blamed(
    results: Iterator[tuple[int, StageOutput]], leg: ModelStage, unit: CorpusUnit
) -> Iterator[tuple[int, StageOutput]]:
    """The results; ModelError for what a model raises on texts that it cannot digest."""
    try:
        yield from results
    except MODEL_FAILURES as error:
        found, remedy = (
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            "check that tokenizer and weights belong together, and the model's settings",
        )
        raise ModelError(
            f"{leg.model.path}, unit {unit.sha256[:12]}", "something made of every text", found, remedy
        ) from error


def _started(leg: ModelStage, settings: AugmentSettings) -> LoadedStage:
    import torch

    torch.set_num_threads(settings.threads)
    return leg.start(resolve(settings.device, float(gpu_assigned())), settings)


def _given(
    store: Store, unit: CorpusUnit, before: str | None
) -> tuple[list[tuple[list[str | None], list[str | None]]], list[bytes]]:
    """((texts, reasons) that the leg works on, one pair for each text of a row; the rows' keys)."""
    corpus = pq.read_table(store.open(unit.path, unit.sha256), columns=["text", "text_key"])
    keys = corpus["text_key"].to_pylist()
    if before is None:
        return [(corpus["text"].to_pylist(), [None] * unit.rows)], keys
    record = UnitRecord.load(store, made_path(before, unit.sha256))
    if record is None:
        raise Defect(
            store.uri_of(made_path(before, unit.sha256)), "what the model before made", "nothing", "run again"
        )
    table = pq.read_table(store.open(record.path, record.sha256))
    pairs = (made_columns(number) for number in range(table.num_columns // 2))
    return [(table[text].to_pylist(), table[reason].to_pylist()) for text, reason in pairs], keys


def _first_of_each(keys: Sequence[bytes], wanted: np.ndarray) -> tuple[list[int], np.ndarray]:
    """(rows that are wanted, the first with its key; (m, 2) the others with the row that has theirs)."""
    seen: dict[bytes, int] = {}
    again = [
        (row, first)
        for row in np.flatnonzero(wanted).tolist()
        if (first := seen.setdefault(keys[row], row)) != row
    ]
    return list(seen.values()), np.array(again, np.int64).reshape(-1, 2)


def _put(texts: np.ndarray, reasons: np.ndarray, made: StageOutput) -> None:
    texts[: len(made.texts)] = made.texts
    reasons[len(made.texts) :] = made.reason or _NO_SOURCE


def _copy(stats: ModelStats) -> ModelStats:
    return ModelStats().merge(stats)


def _since(now: ModelStats, before: ModelStats) -> ModelStats:
    return ModelStats(
        *(getattr(now, name) - getattr(before, name) for name in ModelStats.__dataclass_fields__)
    )


def rows_of(units: Sequence[CorpusUnit]) -> int:
    return sum(unit.rows for unit in units)


def waiting(store: Store, folder: str, units: Sequence[CorpusUnit]) -> Iterator[CorpusUnit]:
    """Those without a record in the folder, the largest first. A record whose file is gone counts as none."""
    there = {entry.path: entry.size for entry in store.list(folder)}
    for unit in sorted(units, key=lambda unit: (-unit.bytes, unit.sha256)):
        path = made_path(folder, unit.sha256)
        record = UnitRecord.left(store, path) if path in there else None
        if record is None or there.get(record.path) != record.bytes:
            yield unit

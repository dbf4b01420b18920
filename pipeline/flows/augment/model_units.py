"""Units of model outputs: for each stage and each corpus unit, one unit with a row for every row, live or
not.

They are stored under a digest of everything that decides their content.
"""

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
from pipeline.store.base import Store
from pipeline.store.once import create_record, put_by_content
from pipeline.store.units import CorpusUnit, UnitRecord

_FORMAT = 1  # version of these units
_TOP = "units/made"
_NO_SOURCE = "no_source"  # reason of a text for which the previous stage gave neither a text nor a reason


def stage_folders(model_stages: Sequence[ModelStage], seed: int) -> tuple[str, ...]:
    """Folder of each stage's units, from the identities of the stages up to it and the seed."""
    identities = [stage.identity() for stage in model_stages]
    return tuple(
        f"{_TOP}/{digest_of([_FORMAT, seed, identities[: number + 1]])[:16]}"
        for number in range(len(model_stages))
    )


def model_record_path(folder: str, sha256: str) -> str:
    """Path of the record of a corpus unit's outputs."""
    return f"{folder}/{sha256[:24]}.json"


def model_columns(number: int) -> tuple[str, str]:
    """(texts, reasons): names of the columns of the variant with that number, from 0."""
    return f"text_{number + 1}", f"reason_{number + 1}"


@dataclass(frozen=True)
class MakeUnit:
    """Pass a corpus unit through model stages. A stage whose unit is complete is skipped."""

    store: Store
    model_stages: tuple[ModelStage, ...]
    folders: tuple[str, ...]
    first: int
    """number of stages before these"""
    reads: str | None
    """folder with the outputs of the stage before these; None: the first stage reads the texts"""
    settings: AugmentSettings
    known: Mapping[int, str] = field(default_factory=dict)
    """sha256 of earlier corpus units by ordinal; outputs of a text in one of them are copied"""

    def start(self) -> Callable[[CorpusUnit], tuple[UnitRecord, tuple[ModelStats, ...]]]:
        loaded_stages: dict[int, LoadedStage] = {}

        def model(number: int) -> LoadedStage:
            if number not in loaded_stages:
                loaded_stages[number] = _start_stage(self.model_stages[number], self.settings)
            return loaded_stages[number]

        def work(unit: CorpusUnit) -> tuple[UnitRecord, tuple[ModelStats, ...]]:
            record, before, spent = None, self.reads, []
            for number, folder in enumerate(self.folders):
                path = model_record_path(folder, unit.sha256)
                record, stats = UnitRecord.load_complete(self.store, path), ModelStats()
                if record is None:
                    record, stats = self._make(unit, number, before, model)
                    record = create_record(self.store, path, record)
                before = folder
                spent.append(stats)
                progress(unit.rows * (number + 1), last=True)  # a model may have to be loaded next
            assert record is not None
            return record, tuple(spent)

        return work

    def _make(
        self, unit: CorpusUnit, number: int, before: str | None, model: Callable[[int], LoadedStage]
    ) -> tuple[UnitRecord, ModelStats]:
        given, keys = _inputs(self.store, unit, before)
        outputs, folder = self.model_stages[number].outputs, self.folders[number]
        texts = np.full((unit.rows, len(given) * outputs), None, object)
        reasons = np.full_like(texts, None)
        known = self._copy_known(unit, folder, texts, reasons)
        first, repeats = _split_repeats(keys, ~known)
        stats = ModelStats()
        for column, (sources, missing_reasons) in enumerate(given):
            columns = slice(column * outputs, (column + 1) * outputs)
            suffix, rows, requests = f"{self.first + number}.{column}".encode(), [], []
            for row in first:
                if (text := sources[row]) is None:
                    reasons[row, columns] = missing_reasons[row] or _NO_SOURCE
                else:
                    rows.append(row)
                    requests.append(StageInput(text, keys[row] + suffix))
            if not rows:
                continue
            start = _copy_stats((stage := model(number)).stats)
            for done, (index, made) in enumerate(
                _model_errors(stage(requests), self.model_stages[number], unit), 1
            ):
                _set_output(texts[rows[index], columns], reasons[rows[index], columns], made)
                progress(
                    unit.rows * number + unit.rows * (column * len(rows) + done) // (len(given) * len(rows))
                )
            stats = stats.merge(_stats_since(stage.stats, start))
        texts[repeats[:, 0]], reasons[repeats[:, 0]] = texts[repeats[:, 1]], reasons[repeats[:, 1]]
        return self._store(unit, folder, texts, reasons, int(known.sum())), stats

    def _copy_known(
        self, unit: CorpusUnit, folder: str, texts: np.ndarray, reasons: np.ndarray
    ) -> np.ndarray:
        """Copy outputs of texts that were in an earlier unit; (n,) bool: which rows were copied."""
        known = np.zeros(unit.rows, bool)
        if unit.copies is None or not self.known:
            return known
        table = pq.read_table(unit.copies.open(self.store))
        rows, addresses = table["row"].to_numpy().astype(np.int64), table["source"].to_numpy()
        for ordinal in np.unique(addresses >> 32).tolist():
            record = (
                UnitRecord.load_complete(self.store, model_record_path(folder, self.known[ordinal]))
                if ordinal in self.known
                else None
            )
            if record is None:
                continue
            mine = addresses >> 32 == ordinal
            earlier, index = (
                pq.read_table(record.file.open(self.store)),
                pa.array(addresses[mine] & 0xFFFFFFFF),
            )
            for column in range(texts.shape[1]):
                for target, name in zip((texts, reasons), model_columns(column), strict=True):
                    target[rows[mine], column] = earlier[name].take(index).to_numpy(zero_copy_only=False)
            known[rows[mine]] = True
        return known

    def _store(
        self, unit: CorpusUnit, folder: str, texts: np.ndarray, reasons: np.ndarray, copied: int
    ) -> UnitRecord:
        columns: dict[str, pa.Array] = {}
        for column in range(texts.shape[1]):
            text, reason = model_columns(column)
            columns |= {
                text: pa.array(texts[:, column], pa.large_string()),
                reason: pa.array(reasons[:, column], pa.string()),
            }
        name = f"{folder}/{unit.sha256[:24]}"
        with self.store.scratch() as scratch:
            file = scratch / "made.parquet"
            pq.write_table(pa.table(columns), file, compression="zstd")
            stored = put_by_content(self.store, file, name, unit.rows, digits=12)
        return UnitRecord(name=name, **dict(stored), counts={"known": copied}, source=unit.sha256)


def _model_errors(
    results: Iterator[tuple[int, StageOutput]], stage: ModelStage, unit: CorpusUnit
) -> Iterator[tuple[int, StageOutput]]:
    """Yield the results; ModelError for the errors that a model raises on texts that it cannot process."""
    try:
        yield from results
    except MODEL_FAILURES as error:
        found, remedy = (
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            "check that tokenizer and weights belong together, and the model's settings",
        )
        raise ModelError(
            f"{stage.model.path}, unit {unit.sha256[:12]}", "an output for every text", found, remedy
        ) from error


def _start_stage(stage: ModelStage, settings: AugmentSettings) -> LoadedStage:
    import torch

    torch.set_num_threads(settings.threads)
    return stage.start(resolve(settings.device, float(gpu_assigned())), settings)


def _inputs(
    store: Store, unit: CorpusUnit, before: str | None
) -> tuple[list[tuple[list[str | None], list[str | None]]], list[bytes]]:
    """((texts, reasons) that the stage works on, one pair for each text of a row; keys of the rows)."""
    corpus = pq.read_table(unit.file.open(store), columns=["text", "text_key"])
    keys = corpus["text_key"].to_pylist()
    if before is None:
        return [(corpus["text"].to_pylist(), [None] * unit.rows)], keys
    record = UnitRecord.load(store, model_record_path(before, unit.sha256))
    if record is None:
        raise Defect(
            store.uri_of(model_record_path(before, unit.sha256)),
            "what the model before made",
            "nothing",
            "run repeats",
        )
    table = pq.read_table(record.file.open(store))
    pairs = (model_columns(number) for number in range(table.num_columns // 2))
    return [(table[text].to_pylist(), table[reason].to_pylist()) for text, reason in pairs], keys


def _split_repeats(keys: Sequence[bytes], wanted: np.ndarray) -> tuple[list[int], np.ndarray]:
    """(first row of each key among the wanted rows, (m, 2) every other wanted row with the first row of its
    key).
    """
    seen: dict[bytes, int] = {}
    repeats = [
        (row, first)
        for row in np.flatnonzero(wanted).tolist()
        if (first := seen.setdefault(keys[row], row)) != row
    ]
    return list(seen.values()), np.array(repeats, np.int64).reshape(-1, 2)


def _set_output(texts: np.ndarray, reasons: np.ndarray, made: StageOutput) -> None:
    texts[: len(made.texts)] = made.texts
    reasons[len(made.texts) :] = made.reason or _NO_SOURCE


def _copy_stats(stats: ModelStats) -> ModelStats:
    return ModelStats().merge(stats)


def _stats_since(now: ModelStats, before: ModelStats) -> ModelStats:
    return ModelStats(
        *(getattr(now, name) - getattr(before, name) for name in ModelStats.__dataclass_fields__)
    )


def total_rows(units: Sequence[CorpusUnit]) -> int:
    """Rows of all units together."""
    return sum(unit.rows for unit in units)


def units_to_do(store: Store, folder: str, units: Sequence[CorpusUnit]) -> Iterator[CorpusUnit]:
    """Yield the units without a complete record in the folder, the largest first."""
    there = {entry.path: entry.size for entry in store.list(folder)}
    for unit in sorted(units, key=lambda unit: (-unit.bytes, unit.sha256)):
        path = model_record_path(folder, unit.sha256)
        record = UnitRecord.load_intact(store, path) if path in there else None
        if record is None or there.get(record.path) != record.bytes:
            yield unit

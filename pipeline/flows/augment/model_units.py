"""Units of model outputs: one for each stage and corpus unit, with a row for every row, live or dead.

They are stored under a digest of everything that decides their content.
"""

import functools
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
from pipeline.store.address import ordinal_of, row_of
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
        f"{_TOP}/{digest_of([_FORMAT, seed, chain])[:16]}"
        for chain in (identities[:stop] for stop in range(1, len(identities) + 1))
    )


def model_record_path(folder: str, sha256: str) -> str:
    """Path of the record of a corpus unit's outputs."""
    return f"{folder}/{sha256[:24]}.json"


def model_columns(number: int) -> tuple[str, str]:
    """(texts, reasons): names of the columns of the variant with that number, from 0."""
    return f"text_{number + 1}", f"reason_{number + 1}"


def read_outputs(store: Store, folder: str, unit: CorpusUnit) -> pa.Table:
    """Read the models' outputs for a corpus unit, row for row. Defect if there are none."""
    path = model_record_path(folder, unit.sha256)
    record = UnitRecord.load(store, path)
    if record is None:
        raise Defect(store.uri_of(path), "the outputs of the models", "no such file", "run again")
    return pq.read_table(record.file.open(store))


@dataclass(frozen=True)
class MakeUnit:
    """Pass a corpus unit through model stages. A stage whose unit is complete is skipped."""

    store: Store
    model_stages: tuple[ModelStage, ...]
    folders: tuple[str, ...]
    """folder of each stage's outputs"""
    first: int
    """number of stages before these"""
    reads: str | None
    """folder with the outputs of the stage before these; None: the first stage reads the texts"""
    settings: AugmentSettings
    known: Mapping[int, str] = field(default_factory=dict)
    """sha256 of earlier corpus units by ordinal; outputs of a text in one of them are copied"""

    def start(self) -> Callable[[CorpusUnit], ModelStats]:
        """Return the work on a unit; each model is loaded when its first unit needs it."""

        @functools.cache
        def model(number: int) -> LoadedStage:
            import torch

            torch.set_num_threads(self.settings.threads)
            return self.model_stages[number].start(
                resolve(self.settings.device, float(gpu_assigned())), self.settings
            )

        def work(unit: CorpusUnit) -> ModelStats:
            stats = ModelStats()
            for number, folder in enumerate(self.folders):
                if UnitRecord.load_complete(self.store, model_record_path(folder, unit.sha256)) is None:
                    stats = stats.merge(self._make(unit, number, model))
                progress(unit.rows * (number + 1), last=True)  # a model may have to be loaded next
            return stats

        return work

    def _make(self, unit: CorpusUnit, number: int, model: Callable[[int], LoadedStage]) -> ModelStats:
        given, keys = self._inputs(unit, number)
        outputs, folder = self.model_stages[number].outputs, self.folders[number]
        texts = np.full((unit.rows, len(given) * outputs), None, object)
        reasons = texts.copy()
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
            stage = model(number)
            stage.stats = ModelStats()
            results = _model_errors(stage(requests), self.model_stages[number], unit)
            for done, (index, made) in enumerate(results, 1):
                written = len(made.texts)
                texts[rows[index], columns][:written] = made.texts
                reasons[rows[index], columns][written:] = made.reason or _NO_SOURCE
                passed = (column * len(rows) + done) / (len(given) * len(rows))
                progress(int(unit.rows * (number + passed)))
            stats = stats.merge(stage.stats)
        texts[repeats[:, 0]], reasons[repeats[:, 0]] = texts[repeats[:, 1]], reasons[repeats[:, 1]]
        self._store(unit, folder, (texts, reasons), int(known.sum()))
        return stats

    def _inputs(
        self, unit: CorpusUnit, number: int
    ) -> tuple[list[tuple[list[str | None], list[str | None]]], list[bytes]]:
        """((texts, reasons) that the stage works on, one pair for each text of a row; keys of the rows)."""
        corpus = pq.read_table(unit.file.open(self.store), columns=["text", "text_key"])
        keys, folder = corpus["text_key"].to_pylist(), self.folders[number - 1] if number else self.reads
        if folder is None:
            return [(corpus["text"].to_pylist(), [None] * unit.rows)], keys
        table = read_outputs(self.store, folder, unit)
        return [
            (table[text].to_pylist(), table[reason].to_pylist())
            for text, reason in map(model_columns, range(table.num_columns // 2))
        ], keys

    def _copy_known(
        self, unit: CorpusUnit, folder: str, texts: np.ndarray, reasons: np.ndarray
    ) -> np.ndarray:
        """Copy outputs of texts that were in an earlier unit; (n,) bool: which rows were copied."""
        known = np.zeros(unit.rows, bool)
        if unit.copies is None or not self.known:
            return known
        table = pq.read_table(unit.copies.open(self.store))
        rows, addresses = table["row"].to_numpy().astype(np.int64), table["source"].to_numpy()
        for ordinal in self.known.keys() & set(ordinal_of(addresses).tolist()):
            record = UnitRecord.load_complete(self.store, model_record_path(folder, self.known[ordinal]))
            if record is None:
                continue
            mine = ordinal_of(addresses) == ordinal
            earlier = pq.read_table(record.file.open(self.store))
            earlier = earlier.take(pa.array(row_of(addresses[mine])))
            for column in range(texts.shape[1]):
                for target, name in zip((texts, reasons), model_columns(column), strict=True):
                    target[rows[mine], column] = earlier[name].to_numpy(zero_copy_only=False)
            known[rows[mine]] = True
        return known

    def _store(
        self, unit: CorpusUnit, folder: str, outputs: tuple[np.ndarray, np.ndarray], copied: int
    ) -> None:
        columns: dict[str, pa.Array] = {}
        for column, (texts, reasons) in enumerate(zip(*(each.T for each in outputs), strict=True)):
            columns |= zip(
                model_columns(column),
                (pa.array(texts, pa.large_string()), pa.array(reasons, pa.string())),
                strict=True,
            )
        path = model_record_path(folder, unit.sha256)
        name = path.removesuffix(".json")
        with self.store.scratch() as scratch:
            file = scratch / "made.parquet"
            pq.write_table(pa.table(columns), file, compression="zstd")
            stored = dict(put_by_content(self.store, file, name, unit.rows, digits=12))
        create_record(
            self.store, path, UnitRecord(name=name, **stored, counts={"known": copied}, source=unit.sha256)
        )


def _model_errors(
    results: Iterator[tuple[int, StageOutput]], stage: ModelStage, unit: CorpusUnit
) -> Iterator[tuple[int, StageOutput]]:
    """Yield the results; ModelError for the errors that a model raises on texts that it cannot process."""
    try:
        yield from results
    except MODEL_FAILURES as error:
        raise ModelError(
            f"{stage.model.path}, unit {unit.sha256[:12]}",
            "an output for every text",
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            "check that tokenizer and weights belong together, and the model's settings",
        ) from error


def _split_repeats(keys: Sequence[bytes], wanted: np.ndarray) -> tuple[list[int], np.ndarray]:
    """(first row of each key among the wanted rows, (m, 2) other wanted rows with the first of their key)."""
    seen: dict[bytes, int] = {}
    rows = np.flatnonzero(wanted).tolist()
    pairs = np.array([(row, seen.setdefault(keys[row], row)) for row in rows], np.int64).reshape(-1, 2)
    return list(seen.values()), pairs[pairs[:, 0] != pairs[:, 1]]


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

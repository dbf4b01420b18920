"""Run models on the units of a corpus, and store their outputs.

There is one stored unit for each stage and corpus unit, with a row for every row of the corpus unit, live or
dead. Its folder is named by a digest of everything that decides its content.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.augment import LoadedStage, ModelStage, ModelStats, StageInput, StageOutput
from pipeline.config import digest_of
from pipeline.device import resolve
from pipeline.errors import MODEL_FAILURES, Defect, ModelError
from pipeline.flows.workers.tasks import progress
from pipeline.flows.workers.worker_encoder import gpu_assigned
from pipeline.settings.augment import AugmentSettings
from pipeline.store.files.base import Store
from pipeline.store.records.units import CorpusUnit, UnitRecord
from pipeline.store.records.write_once import create_record, put_by_content
from pipeline.store.rows.address import ordinal_of, row_of

_FORMAT = 1  # version of the stored units
_ROOT_FOLDER = "units/made"
_NO_SOURCE = "no_source"  # reason for a missing text if neither the stage nor the previous one gave a reason


def stage_folders(model_stages: Sequence[ModelStage], seed: int) -> tuple[str, ...]:
    """Return the folder of each stage's units, named by the seed and the identities of all stages so far."""
    identities = [stage.identity() for stage in model_stages]
    return tuple(
        f"{_ROOT_FOLDER}/{digest_of([_FORMAT, seed, identities[: number + 1]])[:16]}"
        for number in range(len(identities))
    )


def model_record_path(folder: str, sha256: str) -> str:
    """Return the path of the record of a corpus unit's outputs."""
    return f"{folder}/{sha256[:24]}.json"


def model_columns(number: int) -> tuple[str, str]:
    """Return the names of the columns of texts and of reasons for output `number`, counted from 0."""
    return f"text_{number + 1}", f"reason_{number + 1}"


def read_outputs(store: Store, folder: str, unit: CorpusUnit) -> pa.Table:
    """Read the models' outputs for a corpus unit, row for row. Raises Defect if there are none."""
    path = model_record_path(folder, unit.sha256)
    record = UnitRecord.load(store, path)
    if record is None:
        raise Defect(store.uri_of(path), "the outputs of the models", "no such file", "run again")
    return pq.read_table(record.file.open(store))


class SourceTexts(NamedTuple):
    """One input text of a stage for each row of a corpus unit."""

    texts: list[str | None]
    reasons: list[str | None]
    """why the previous stage gave no text"""


@dataclass(frozen=True)
class UnitOutputs:
    """Outputs of a stage for a corpus unit."""

    texts: np.ndarray
    """(rows, outputs) strings, or None if the stage gave no text"""
    reasons: np.ndarray
    """(rows, outputs) strings: why there is no text, else None"""

    @classmethod
    def empty(cls, rows: int, outputs: int) -> Self:
        """Create arrays of None."""
        return cls(np.full((rows, outputs), None, object), np.full((rows, outputs), None, object))

    def of_source(self, number: int, outputs: int) -> "UnitOutputs":
        """Return views of the columns that are made from source text `number`, `outputs` columns for each."""
        columns = slice(number * outputs, (number + 1) * outputs)
        return UnitOutputs(self.texts[:, columns], self.reasons[:, columns])

    def table(self) -> pa.Table:
        """Return the columns as they are stored."""
        columns: dict[str, pa.Array] = {}
        for number in range(self.texts.shape[1]):
            text_name, reason_name = model_columns(number)
            columns[text_name] = pa.array(self.texts[:, number], pa.large_string())
            columns[reason_name] = pa.array(self.reasons[:, number], pa.string())
        return pa.table(columns)


@dataclass(frozen=True)
class MakeUnit:
    """Pass a corpus unit through model stages. A stage whose unit is complete is skipped."""

    store: Store
    model_stages: tuple[ModelStage, ...]
    folders: tuple[str, ...]
    """folder of each stage's outputs"""
    first_stage: int
    """index of the first of these stages among all stages of the augmenter"""
    input_folder: str | None
    """folder with the outputs of the preceding stage; None: the first stage reads the texts of the corpus"""
    settings: AugmentSettings
    earlier_units: Mapping[int, str] = field(default_factory=dict)
    """sha256 of earlier corpus units by ordinal; outputs for a text in one of them are copied"""

    def start(self) -> Callable[[CorpusUnit], ModelStats]:
        """Return the function that processes a unit. A model is loaded when a unit first needs it."""

        @functools.cache
        def load_model(number: int) -> LoadedStage:
            import torch

            torch.set_num_threads(self.settings.threads)
            return self.model_stages[number].start(
                resolve(self.settings.device, float(gpu_assigned())), self.settings
            )

        def work(unit: CorpusUnit) -> ModelStats:
            stats = ModelStats()
            for number, folder in enumerate(self.folders):
                if UnitRecord.load_complete(self.store, model_record_path(folder, unit.sha256)) is None:
                    stats = stats.merge(self._make(unit, number, load_model))
                # last=True, so that the driver does not count the time to load the next model as hanging
                progress(unit.rows * (number + 1), last=True)
            return stats

        return work

    def _make(self, unit: CorpusUnit, number: int, load_model: Callable[[int], LoadedStage]) -> ModelStats:
        """Run stage `number` on a unit and store its outputs.

        Outputs for texts of earlier units are copied. Each other distinct text is given to the model once.
        """
        sources, keys = self._inputs(unit, number)
        stage, folder = self.model_stages[number], self.folders[number]
        outputs = UnitOutputs.empty(unit.rows, len(sources) * stage.outputs)
        is_copied = self._copy_earlier(unit, folder, outputs)
        first_rows, repeats = _split_repeats(keys, ~is_copied)
        stats = ModelStats()
        for index, source in enumerate(sources):
            of_source = outputs.of_source(index, stage.outputs)
            key_suffix = f"{self.first_stage + number}.{index}".encode()
            inputs: dict[int, StageInput] = {}  # by row
            for row in first_rows:
                if (text := source.texts[row]) is None:
                    of_source.reasons[row] = source.reasons[row] or _NO_SOURCE
                else:
                    inputs[row] = StageInput(text, keys[row] + key_suffix)
            if not inputs:
                continue
            model = load_model(number)
            model.stats = ModelStats()
            results = _model_errors(model(list(inputs.values())), stage, unit)
            for done, (row, output) in enumerate(_by_row(results, list(inputs)), 1):
                text_count = len(output.texts)
                of_source.texts[row, :text_count] = output.texts
                of_source.reasons[row, text_count:] = output.reason or _NO_SOURCE
                proportion = (index * len(inputs) + done) / (len(sources) * len(inputs))
                progress(int(unit.rows * (number + proportion)))
            stats = stats.merge(model.stats)
        repeated_rows, first_of_key = repeats.T
        outputs.texts[repeated_rows] = outputs.texts[first_of_key]
        outputs.reasons[repeated_rows] = outputs.reasons[first_of_key]
        self._store(unit, folder, outputs, int(is_copied.sum()))
        return stats

    def _inputs(self, unit: CorpusUnit, number: int) -> tuple[list[SourceTexts], list[bytes]]:
        """Read the input texts of a stage, one or more for each row, and the text_keys of the rows."""
        corpus = pq.read_table(unit.file.open(self.store), columns=["text", "text_key"])
        keys = corpus["text_key"].to_pylist()
        folder = self.folders[number - 1] if number else self.input_folder
        if folder is None:
            return [SourceTexts(corpus["text"].to_pylist(), [None] * unit.rows)], keys
        table = read_outputs(self.store, folder, unit)
        names = (model_columns(output) for output in range(table.num_columns // 2))
        sources = [SourceTexts(table[text].to_pylist(), table[reason].to_pylist()) for text, reason in names]
        return sources, keys

    def _copy_earlier(self, unit: CorpusUnit, folder: str, outputs: UnitOutputs) -> np.ndarray:
        """Copy the outputs for texts that were in an earlier unit. Returns (n,) bool: the copied rows."""
        is_copied = np.zeros(unit.rows, bool)
        if unit.copies is None or not self.earlier_units:
            return is_copied
        table = pq.read_table(unit.copies.open(self.store))
        rows, addresses = table["row"].to_numpy().astype(np.int64), table["source"].to_numpy()
        for ordinal in self.earlier_units.keys() & set(ordinal_of(addresses).tolist()):
            path = model_record_path(folder, self.earlier_units[ordinal])
            record = UnitRecord.load_complete(self.store, path)
            if record is None:
                continue
            in_unit = ordinal_of(addresses) == ordinal
            earlier = pq.read_table(record.file.open(self.store)).take(pa.array(row_of(addresses[in_unit])))
            for output in range(outputs.texts.shape[1]):
                text_name, reason_name = model_columns(output)
                outputs.texts[rows[in_unit], output] = earlier[text_name].to_numpy(zero_copy_only=False)
                outputs.reasons[rows[in_unit], output] = earlier[reason_name].to_numpy(zero_copy_only=False)
            is_copied[rows[in_unit]] = True
        return is_copied

    def _store(self, unit: CorpusUnit, folder: str, outputs: UnitOutputs, copied: int) -> None:
        path = model_record_path(folder, unit.sha256)
        name = path.removesuffix(".json")
        with self.store.scratch() as scratch:
            file = scratch / "made.parquet"
            pq.write_table(outputs.table(), file, compression="zstd")
            stored = dict(put_by_content(self.store, file, name, unit.rows, digits=12))
        record = UnitRecord(name=name, **stored, counts={"known": copied}, source=unit.sha256)
        create_record(self.store, path, record)


def _model_errors(
    results: Iterator[tuple[int, StageOutput]], stage: ModelStage, unit: CorpusUnit
) -> Iterator[tuple[int, StageOutput]]:
    """Yield the results, and turn the errors of a model that cannot process a text into ModelError."""
    try:
        yield from results
    except MODEL_FAILURES as error:
        raise ModelError(
            f"{stage.model.path}, unit {unit.sha256[:12]}",
            "an output for every text",
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            "check that tokenizer and weights belong together, and the model's settings",
        ) from error


def _by_row(
    results: Iterator[tuple[int, StageOutput]], rows: Sequence[int]
) -> Iterator[tuple[int, StageOutput]]:
    """Yield each result with its row instead of its index."""
    return ((rows[index], output) for index, output in results)


def _split_repeats(keys: Sequence[bytes], wanted: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Split the wanted rows into the first row of each key and the rows that repeat a key.

    Args:
        keys: n keys.
        wanted: (n,) bool.

    Returns:
        The first rows, and (m, 2) pairs of a repeating row and the first row with its key.
    """
    first_rows: dict[bytes, int] = {}
    rows = np.flatnonzero(wanted).tolist()
    pairs = np.array([(row, first_rows.setdefault(keys[row], row)) for row in rows], np.int64).reshape(-1, 2)
    return list(first_rows.values()), pairs[pairs[:, 0] != pairs[:, 1]]


def total_rows(units: Sequence[CorpusUnit]) -> int:
    """Sum the rows of the units, live or dead."""
    return sum(unit.rows for unit in units)


def units_to_do(store: Store, folder: str, units: Sequence[CorpusUnit]) -> Iterator[CorpusUnit]:
    """Yield the units without a complete record in the folder, the largest first."""
    sizes = {entry.path: entry.size for entry in store.list(folder)}
    for unit in sorted(units, key=lambda unit: (-unit.bytes, unit.sha256)):
        path = model_record_path(folder, unit.sha256)
        record = UnitRecord.load_intact(store, path) if path in sizes else None
        if record is None or sizes.get(record.path) != record.bytes:
            yield unit

"""Score training rows with a cross-encoder: the teacher of the objective `score_distillation`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import digest_of
from pipeline.device import resolve
from pipeline.errors import ConfigError
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import progress
from pipeline.log import Stages
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.settings.pairs import PairsSettings
from pipeline.settings.training import NEGATIVES
from pipeline.store.files.base import Store, sha256_of
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import sum_counts
from pipeline.store.records.write_once import create_record, load_or_make
from pipeline.text.pairs.build import TRAIN, BuildRecord, check_folder, join_files
from pipeline.text.rows.roles import has_text
from pipeline.text.rows.row_groups import Span
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows
from pipeline.text.sources.sources import check_is_outside

if TYPE_CHECKING:
    from pipeline.models.trainable.cross_encoder import CrossEncoder

KIND = "rescore"
_VERSION = 1  # increased when a change of the code changes the rows
_RUN, _RESULT, _UNITS = "run.json", "result.json", "_units"
_UNIT_ROWS = 4_096  # rows of one item: some minutes of a CPU


class ScoredUnit(Stored):
    """Rows of one item, with their scores."""

    file: FileRef
    counts: dict[str, int]


class ScoredRows(Stored):
    """Result of `rescore`."""

    train: FileRef
    counts: dict[str, int]
    """rows; texts that were scored; truncated: pairs that are longer than the cross-encoder reads; missing:
    rows that were left out because they lack a positive's first hard negative"""


@dataclass(frozen=True)
class Rescored:
    """Scored rows, and the folder that has them."""

    status: Literal["built", "unchanged"]
    store: Store
    name: str
    """name of the data"""
    result: ScoredRows

    @property
    def train(self) -> str:
        """URI of the file of the rows, for train.data."""
        return self.store.uri_of(TRAIN)


def rescore(job: Job, stages: Stages, *, verbose: bool = False) -> Rescored:
    """Score the positive and the hard negatives of each row of pairs.data by the cross-encoder encoder.path.

    The file TRAIN has the columns anchor, positive, negative, negative2 and so on, and `scores`: a list of
    the logits of the positive and of each negative, null for a negative that the row lacks. A command that
    was stopped continues with the units that it has not finished.

    Raises:
        ConfigError: settings that this kind does not use, or a folder with other rows.
        DataError: the data is missing, lacks a column, or has one of the wrong type.
        ModelError: the encoder is not a cross-encoder with one score.
    """
    settings = _checked(job.pairs)
    assert settings.data is not None, "_checked has refused it"
    encoder = job.encoder.model_copy(update={"pooling": "cls_mlp"})
    folder = open_folder(encoder, cross_encoder=True)
    rows = open_training_rows(settings.data, ("anchor", "positive", "negative"), NEGATIVES)
    definition = _definition(settings, folder, rows)
    root = open_store(settings.root)
    name = settings.name or f"{KIND}-{digest_of(definition)[:12]}"
    store = open_store(f"{root.uri}/{name}")
    check_folder(store, definition)
    if (done := ScoredRows.load_complete(store, _RESULT)) is not None:
        return Rescored("unchanged", store, rows.name, done)
    items = _items(rows)
    with connect(job.cluster, stages, verbose=verbose, stores={"pairs.root": root}) as workers:
        create_record(store, _RUN, BuildRecord(definition=definition))
        pool = workers.wide_pool(job.cluster, len(items))
        task = RescoreUnit(
            store,
            rows,
            encoder_for_workers(encoder, root, workers),
            workers.encode_settings(job.encode, pool),
            pool.gpus,
        )
        with stages("score", len(rows)) as bar:
            units = dict(workers.map_units(task, items, pool, bar))
    rows.check_unchanged()  # before the result is stored under the stamps of the files
    counts = sum_counts([{"missing": rows.counts["missing"]}, *(unit.counts for unit in units.values())])
    parts = [units[number].file for number in range(len(items))]
    with stages("write"):
        train = join_files(store, parts, TRAIN)
        result = create_record(store, _RESULT, ScoredRows(train=train, counts=counts))
    for entry in store.list(_UNITS):
        store.delete(entry.path)
    return Rescored("built", store, rows.name, result)


def _checked(settings: PairsSettings) -> PairsSettings:
    """Raise ConfigError for missing data, or settings without effect."""
    if settings.data is None:
        raise ConfigError("pairs.data", "files with rows", "none", "set pairs.data")
    for name, value in (("options", settings.options), ("test", settings.test)):
        if value:
            raise ConfigError(
                f"pairs.{name}",
                f"none, because the kind {KIND} has no such setting",
                f"{value}",
                "leave it out",
            )
    check_is_outside(settings.root, "pairs.root", settings.data.uri, "pairs.data")
    return settings


def _definition(settings: PairsSettings, folder: EncoderFolder, rows: TrainingRows) -> dict[str, Any]:
    """Return the settings and files that decide the rows."""
    assert settings.data is not None
    files = {group.file.uri: [group.file.name, group.file.size, group.file.stamp] for group in rows.groups}
    return {
        "version": _VERSION,
        "kind": KIND,
        "encoder": {"space_id": folder.space_id, "files": dict(folder.files)},
        "data": settings.data.identity_settings(without="uri")
        | {"files": list(files.values()), "roles": list(rows.roles)},
    }


class RescoreItem(NamedTuple):
    """Rows that one call of the task scores."""

    number: int
    span: Span


def _items(rows: TrainingRows) -> list[RescoreItem]:
    """Divide the rows into items."""
    spans = [
        Span(span.group, start, min(start + _UNIT_ROWS, span.stop))
        for span in rows.spans()
        for start in range(span.start, span.stop, _UNIT_ROWS)
    ]
    return [RescoreItem(number, span) for number, span in enumerate(spans)]


@dataclass(frozen=True)
class RescoreUnit:
    """Score the rows of an item, and store them. An item that has a record is done already."""

    store: Store
    rows: TrainingRows
    encoder: EncoderSettings
    """the cross-encoder, with a path that workers can read"""
    encode: EncodeSettings
    gpus: float
    """GPUs of the worker"""

    def start(self) -> Callable[[RescoreItem], ScoredUnit]:
        """Load the cross-encoder, and return the function that scores an item."""
        import torch

        from pipeline.models.trainable.cross_encoder import CrossEncoder

        torch.set_num_threads(self.encode.threads)
        device = resolve(self.encode.device, self.gpus).torch()
        return partial(self._work, CrossEncoder(open_folder(self.encoder, cross_encoder=True), device))

    def _work(self, scorer: "CrossEncoder", item: RescoreItem) -> ScoredUnit:
        record = f"{_UNITS}/{item.number:05d}.json"
        return load_or_make(self.store, record, ScoredUnit, lambda: self._score(scorer, item))

    def _score(self, scorer: "CrossEncoder", item: RescoreItem) -> ScoredUnit:
        """Score the rows of an item, write them to a file, and return its record."""
        table = pa.concat_tables(self.rows.read([item.span]))
        roles = ["positive", *(role for role in NEGATIVES if role in table.column_names)]
        anchors, columns = table["anchor"].to_pylist(), [table["anchor"]]
        scores, truncated = np.full((len(table), len(roles)), np.nan, np.float32), 0
        for number, role in enumerate(roles):
            present = has_text(table[role]) if role in NEGATIVES else pc.is_valid(table[role])
            chosen = np.flatnonzero(present.to_numpy())
            texts = table[role].to_pylist()
            scores[chosen, number], is_cut = scorer.scores(
                [anchors[row] for row in chosen], [texts[row] for row in chosen]
            )
            truncated += int(is_cut.sum())
            columns.append(pc.if_else(present, table[role], None))
            progress(len(table) * (number + 1) // len(roles), last=number + 1 == len(roles))
        flat = pa.array(scores.ravel(), mask=np.isnan(scores).ravel())
        offsets = np.arange(0, scores.size + 1, scores.shape[1], dtype=np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), flat)
        written = pa.table([*columns, lists], names=["anchor", *roles, "scores"])
        counts = {"rows": len(table), "texts": int(np.isfinite(scores).sum()), "truncated": truncated}
        path = f"{_UNITS}/{item.number:05d}.parquet"
        with self.store.scratch() as scratch:
            pq.write_table(written, file := scratch / "rows.parquet", compression="zstd")
            reference = FileRef(path=path, sha256=sha256_of(file), rows=len(table), bytes=file.stat().st_size)
            self.store.put(file, path)
        return ScoredUnit(file=reference, counts=counts)

"""Mine hard negatives for training pairs: texts near an anchor that are not its positives.

This is one stage of a training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encode import encode, vector_units
from pipeline.flows.evaluate.sentences import clean_sentences
from pipeline.flows.index.build import IndexInput, build_index
from pipeline.flows.rows import LiveRows
from pipeline.flows.train.equal_texts import find_equal_texts, remove_equal_texts
from pipeline.flows.train.mine_tasks import MineUnit, PairUnits
from pipeline.flows.workers.tasks import Pool
from pipeline.log import announce
from pipeline.models.folder.folder import open_folder
from pipeline.objectives.build import data_requirements
from pipeline.settings import CorpusSettings, EncodeSettings, Job
from pipeline.settings.training import SourceSettings
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import Corpus, CorpusUnit, UnitRecord, sum_counts
from pipeline.store.records.write_once import load_or_make, store_table_by_content
from pipeline.store.rows.arrays import one_chunk
from pipeline.store.rows.schema import corpus_schema, writer_options
from pipeline.text.formats.reject_rows import rechunk
from pipeline.text.normalize import NORMALIZER_VERSION, text_keys
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows
from pipeline.text.sources.sources import check_is_outside

_VERSION = 1  # raise it with every change of the result; all pairs are then mined again
_ROLES = ("anchor", "positive")
# Kept column of positives. A negative is the positive of another pair, and its text is read by its address.
_KEPT_TEXT = pa.field("text", pa.large_string(), nullable=False)


class MiningResult(Stored):
    """Result of mining one source."""

    files: tuple[FileRef, ...]
    """files with rows of anchor, positive and negative, in the order of the pairs"""
    counts: dict[str, int]
    """numbers by name: pairs; rows in the files; mined, pairs with a negative; unusable, pairs with a text
    that has no vector"""

    def sentence(self, name: str) -> str:
        """Return the result as a log line about the source `name`."""
        pairs, mined, unusable = self.counts["pairs"], self.counts["mined"], self.counts["unusable"]
        reason = (
            f"; {unusable:,} of these because the encoder gave a text no usable vector" if unusable else ""
        )
        return (
            f"{name}: hard negatives for {mined:,} of {pairs:,} pairs, {self.counts['rows']:,} rows; "
            f"{pairs - mined:,} pairs without one are left out{reason}"
        )


def mine(context: FlowContext, sources: Sequence[SourceSettings]) -> tuple[SourceSettings, ...]:
    """Mine hard negatives for the pairs (anchor, positive) of each source, as Parquet files in the store.

    The job's encoder searches near each anchor among the distinct positives of the same source; train.mine
    decides which of the texts found become negatives. A text that is a positive of an equal anchor, or that
    equals the anchor, is never a negative. Texts are stored as the encoder gets them.

    A pair becomes up to train.mine.negatives rows, in the order of the pairs; pairs without a negative are
    left out, counted and logged. Results of an earlier run are reused; the number of workers does not change
    the result. If the kind of index rounds vectors, the cosine of a negative is computed from its rounded
    vector.

    Memory: the driver holds the texts of one unit and the records of all units. A worker holds the keys of
    about 2^22 pairs, or 8 bytes for every repeated positive, or the memory-mapped index.

    Args:
        context: store, workers and job.
        sources: sources of pairs.

    Returns:
        For each source, the settings to read its rows of anchor, positive and negative.

    Raises:
        ConfigError: as in `check_mining`.
        DataError: no pair has a negative left.
    """
    check_mining(context.job)
    without_corpus = context.job.model_copy(update={"corpus": CorpusSettings()})
    mining = replace(context, job=without_corpus, stages=context.stages.under("mine"))
    return tuple(_mine_source(mining, source) for source in sources)


def check_mining(job: Job) -> None:
    """Raise ConfigError if training starts from new weights, or if the objectives read no negatives."""
    new = job.train.new_encoder
    if job.train.fresh or new is not None:
        raise ConfigError(
            "train.mine.enabled",
            "a trained encoder, to search with",
            f"new weights ({'train.fresh' if job.train.fresh or new is None else f'train.{new.kind}'})",
            "train without mining, then mine with the encoder that comes out",
        )
    for source in job.train.data:
        check_is_outside(job.train.root, "train.root", source.uri, "train.data")
    columns, optional, _ = data_requirements(job.train)
    if not {*_ROLES, "negative"} <= {*columns, *optional}:
        raise ConfigError(
            "train.mine.enabled",
            "an objective that reads anchor, positive and negative",
            f"{', '.join(term.name for term in job.train.objective)}: {', '.join((*columns, *optional))}",
            "choose such an objective, or set train.mine.enabled=false",
        )


def _mine_source(context: FlowContext, source: SourceSettings) -> SourceSettings:
    """Mine one source, or load the result of an earlier run. Pairs without a text are left out."""
    pairs = open_training_rows(source.model_copy(update={"missing": "drop"}), _ROLES)
    drops = source.missing == "drop" or pairs.counts["missing"] > 0
    folder = f"pairs/{_identity(context.job, pairs, drops)}"
    mined = load_or_make(
        context.store, f"{folder}/mined.json", MiningResult, lambda: _mine_pairs(context, pairs, folder)
    )
    announce(mined.sentence(pairs.name))
    if not mined.counts["rows"]:
        raise DataError(
            pairs.name,
            "pairs with a hard negative",
            f"none of {len(pairs):,}",
            "lower train.mine.margin, raise train.mine.neighbours or train.mine.most, or check that the "
            "positives differ",
        )
    return SourceSettings(uri=context.store.uri_of(f"{folder}/rows"), weight=source.weight)


def _identity(job: Job, pairs: TrainingRows, drops: bool) -> str:
    """Return a hash (24 hexadecimal digits) of everything that decides the negatives.

    Args:
        job: the job.
        pairs: the pairs of a source.
        drops: whether to add to the hash that pairs without a text are left out, because earlier versions
            kept some of these pairs.
    """
    files = {group.file.uri: [group.file.uri, group.file.size, group.file.stamp] for group in pairs.groups}
    columns = [pairs.settings.columns.get(role, role) for role in _ROLES]
    if drops:
        columns.append("drop")
    return digest_of(
        [
            _VERSION,
            NORMALIZER_VERSION,
            list(files.values()),
            columns,
            open_folder(job.encoder).space_id,
            job.train.mine.model_dump(mode="json", exclude={"enabled"}),
            job.train.seed,
            [
                job.index.model_dump(mode="json"),
                job.gates.recall_at_10,
                job.encode.vectors,
                job.encode.unit_rows,
            ],
        ]
    )[:24]


def _mine_pairs(context: FlowContext, pairs: TrainingRows, folder: str) -> MiningResult:
    """Encode all texts, index the distinct positives, and search for every anchor."""
    corpus, count = _store_texts(context, pairs, folder)
    positives, anchors = corpus.units[:count], corpus.units[count:]
    vectors, _ = encode(context, corpus)
    with context.stages("compare"):
        equal = find_equal_texts(context, tuple(zip(anchors, positives, strict=True)), f"{folder}/equal")
    encoder, units = open_folder(context.job.encoder), vector_units(context.job, corpus, vectors)
    task = MineUnit(
        LiveRows(context.store, encoder.space_id, context.job.corpus.id),
        build_index(context, IndexInput(units[:count], equal.repeats, None, encoder.dim)),
        equal.known,
        context.job.train.mine,
        context.job.train.seed,
        context.workers.encode_settings(EncodeSettings()).threads,
        folder,
    )
    pair_units = [
        PairUnits(
            number=number,
            first=sum(unit.rows for unit in positives[:number]),
            anchors=anchors[number],
            positives=positives[number],
            anchor_vectors=units[count + number],
            positive_vectors=units[number],
        )
        for number in range(count)
    ]
    records = _search(context, task, pair_units)
    remove_equal_texts(context.store, f"{folder}/equal")
    return MiningResult(
        files=tuple(record.file for record in records), counts=sum_counts(record.counts for record in records)
    )


def _store_texts(context: FlowContext, pairs: TrainingRows, folder: str) -> tuple[Corpus, int]:
    """Store the texts of all pairs as units.

    Returns:
        A corpus of units of positives followed by as many units of anchors, and the number of units of
        positives.
    """
    positives, anchors = [], []
    with context.stages("read", len(pairs)) as bar:
        for anchor_unit, positive_unit in _units(pairs, context.job.encode.unit_rows, context.store):
            anchors.append(anchor_unit)
            positives.append(positive_unit)
            bar.add(anchor_unit.rows)
    numbered = tuple(
        unit.model_copy(update={"ordinal": ordinal}) for ordinal, unit in enumerate([*positives, *anchors])
    )
    return Corpus(id=folder, digest=folder, units=numbered), len(positives)


def _search(context: FlowContext, task: MineUnit, units: Sequence[PairUnits]) -> list[UnitRecord]:
    """Search for the negatives of every unit without a record; return the records of all units, in order."""
    earlier = {unit.number: UnitRecord.load_complete(context.store, task.record(unit)) for unit in units}
    records = {number: record for number, record in earlier.items() if record is not None}
    todo = [unit for unit in units if unit.number not in records]
    with context.stages("search", sum(unit.anchors.rows for unit in units)) as bar:
        bar.skip(sum(units[number].anchors.rows for number in records))
        for index, record in context.workers.map_units(
            task, todo, Pool(context.workers.index_workers(context.job.cluster, max(1, len(todo)))), bar
        ):
            records[todo[index].number] = record
        bar.reach(sum(unit.anchors.rows for unit in todo))
    return [records[unit.number] for unit in units]


def _units(pairs: TrainingRows, unit_rows: int, store: Store) -> Iterator[tuple[CorpusUnit, CorpusUnit]]:
    """Store the pairs in the order of the files; yield each unit of anchors with its unit of positives."""
    first = 0
    for table in rechunk(pairs.read(pairs.spans(), _ROLES), unit_rows):
        anchors, positives = (_unit(one_chunk(table[role]), role, first, store) for role in _ROLES)
        yield anchors, positives
        first += len(table)


def _unit(texts: pa.Array, role: str, first: int, store: Store) -> CorpusUnit:
    """Store the texts as a unit.

    Args:
        texts: texts of consecutive pairs.
        role: anchor or positive.
        first: number of the first pair; the id of a row is the number of its pair.
        store: store of the unit.
    """
    texts, rows = clean_sentences(texts), pa.array(np.arange(first, first + len(texts)), pa.int64())
    keeps_text = role == "positive"
    schema = corpus_schema(pa.int64(), (_KEPT_TEXT,) if keeps_text else ())
    kept = (texts,) if keeps_text else ()
    files = pa.repeat(pa.scalar(role), len(texts))
    columns = [rows, texts, text_keys(texts), *kept, files, rows]
    stored = store_table_by_content(
        store, pa.Table.from_arrays(columns, schema=schema), "units/pairs/unit", **writer_options(schema)
    )
    return CorpusUnit(name=stored.path, **dict(stored), ordinal=0)

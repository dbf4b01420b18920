"""Hard negatives for training pairs: texts near the anchor that are not among its positives."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.flows.encode.encode import encode
from pipeline.flows.evaluate.sentences import cleaned
from pipeline.flows.index.build import IndexInput, build_index
from pipeline.flows.rows import LiveRows, place_units
from pipeline.flows.run import Run
from pipeline.flows.train.mine_tasks import MineUnit, PairUnits, Relate
from pipeline.flows.workers.tasks import Pool
from pipeline.log import say
from pipeline.models.folder.folder import open_folder
from pipeline.settings import CorpusSettings, EncodeSettings, Job
from pipeline.settings.training import PairSettings
from pipeline.store.arrays import one_chunk
from pipeline.store.base import Store
from pipeline.store.once import remembered, table_by_content
from pipeline.store.schema import corpus_schema, writer_options
from pipeline.store.stored import FileRef, Stored
from pipeline.store.units import Corpus, CorpusUnit, UnitRecord, total
from pipeline.text.corpus.normalize import NORMALIZER_VERSION, text_keys
from pipeline.text.corpus.sift import rechunk
from pipeline.text.rows.pairs import TrainingRows, open_training_rows

_VERSION = 1  # of the mining and its files; another version mines all pairs again
_ROLES = ("anchor", "positive")
# columns in addition to those of a corpus: rows of the index are looked up by address, with their text
_KEPT = {"anchor": (), "positive": (pa.field("text", pa.large_string(), nullable=False),)}


class Mined(Stored):
    """The result of mining one source.

    Attributes:
        files: rows of anchor, positive and negative, in the order of the pairs.
        counts: pairs, rows, mined (pairs with a negative), unusable (pairs with a text that has no vector).
    """

    files: tuple[FileRef, ...]
    counts: dict[str, int]

    def sentence(self, name: str) -> str:
        """Return the result as a log line."""
        pairs, rows, mined, unusable = (self.counts[each] for each in ("pairs", "rows", "mined", "unusable"))
        lost = f"; {unusable:,} of these because the encoder gave a text no usable vector" if unusable else ""
        return (
            f"{name}: hard negatives for {mined:,} of {pairs:,} pairs, {rows:,} rows; "
            f"{pairs - mined:,} pairs without one are left out{lost}"
        )


def mine(run: Run, sources: Sequence[PairSettings]) -> tuple[PairSettings, ...]:
    """Mine hard negatives for the pairs (anchor, positive) of each source, as Parquet files in the store.

    A negative is one of the texts that the job's encoder finds near the anchor among the distinct positives
    of the same source, chosen by train.mine. A text that is a positive of an equal anchor, or that equals the
    anchor, is never a negative. Texts are stored as the encoder gets them.

    A pair becomes up to train.mine.negatives rows, in the order of the pairs; pairs without any are left out,
    counted and reported. Results of an earlier run are reused; the number of workers does not change the
    result. If the kind of index rounds vectors, the cosine of a negative is that of the rounded vector.

    The driver holds one unit's texts and the units' records. A worker holds the keys of 2^22 pairs, 8 bytes
    for every repeated positive, or the memory-mapped index.

    Raises:
        ConfigError: as in `check_mining`.
        DataError: no pair has a negative left.
    """
    check_mining(run.job)
    own = replace(
        run, job=run.job.model_copy(update={"corpus": CorpusSettings()}), stages=run.stages.under("mine")
    )
    return tuple(_source(own, source) for source in sources)


def check_mining(job: Job) -> None:
    """Raise ConfigError if training starts from new weights, or if no objective reads negatives."""
    from pipeline.objectives.build import data_requirements

    if job.train.fresh or job.train.recurrent.cell is not None:
        raise ConfigError(
            "train.mine.enabled",
            "a trained encoder, to search with",
            f"new weights ({'train.fresh' if job.train.fresh else 'train.recurrent'})",
            "train without mining, then mine with the encoder that comes out",
        )
    columns, optional, _ = data_requirements(job.train)
    if not {*_ROLES, "negative"} <= {*columns, *optional}:
        raise ConfigError(
            "train.mine.enabled",
            "an objective that reads anchor, positive and negative",
            f"{', '.join(one.name for one in job.train.objective)}: {', '.join((*columns, *optional))}",
            "choose one, or do not mine",
        )


def _source(run: Run, source: PairSettings) -> PairSettings:
    pairs = open_training_rows(source, _ROLES)
    folder = f"pairs/{_identity(run.job, pairs)}"
    mined = remembered(run.store, f"{folder}/mined.json", Mined, lambda: _mined(run, pairs, folder))
    say(mined.sentence(pairs.name))
    if not mined.counts["rows"]:
        raise DataError(
            pairs.name,
            "pairs with a hard negative",
            f"none of {len(pairs):,}",
            "lower train.mine.margin, raise train.mine.neighbours or train.mine.most, or check that the "
            "positives differ",
        )
    return PairSettings(uri=run.store.uri_of(f"{folder}/rows"), weight=source.weight)


def _identity(job: Job, pairs: TrainingRows) -> str:
    """Return 24 hexadecimal digits of a hash of everything that decides the negatives."""
    files = {group.file.uri: [group.file.uri, group.file.size, group.file.stamp] for group in pairs.groups}
    columns = [pairs.settings.columns.get(role, role) for role in _ROLES]
    if pairs.settings.missing == "drop":
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


def _mined(run: Run, pairs: TrainingRows, folder: str) -> Mined:
    corpus, count = _stored(run, pairs, folder)
    positives, anchors = corpus.units[:count], corpus.units[count:]
    vectors, _ = encode(run, corpus)
    with run.stages("compare"):
        related = run.workers.run(Relate(run.store), tuple(zip(anchors, positives, strict=True)), Pool(1))
    encoder, placed = open_folder(run.job.encoder), place_units(corpus, vectors)[:count]
    task = MineUnit(
        LiveRows(run.store, encoder.space_id, run.job.corpus.id),
        build_index(run, IndexInput(placed, related.repeats, None, encoder.dim)),
        related.known,
        run.job.train.mine,
        run.job.train.seed,
        run.workers.encode_settings(EncodeSettings()).threads,
        folder,
    )
    units = [
        PairUnits(
            number=number,
            first=sum(unit.rows for unit in positives[:number]),
            anchors=anchors[number],
            positives=positives[number],
            anchor_vectors=vectors.units[count + number],
            positive_vectors=vectors.units[number],
        )
        for number in range(count)
    ]
    records = _searched(run, task, units)
    return Mined(
        files=tuple(record.file for record in records), counts=total(record.counts for record in records)
    )


def _stored(run: Run, pairs: TrainingRows, folder: str) -> tuple[Corpus, int]:
    """Store the texts. Returns units of positives, then as many units of anchors; and their number."""
    units = []
    with run.stages("read", len(pairs)) as bar:
        for unit in _units(pairs, run.job.encode.unit_rows, run.store):
            units.append(unit)
            bar.add(unit[0].rows)
    stored = [*(positives for _, positives in units), *(anchors for anchors, _ in units)]
    numbered = tuple(unit.model_copy(update={"ordinal": ordinal}) for ordinal, unit in enumerate(stored))
    return Corpus(id=folder, digest=folder, units=numbered), len(units)


def _searched(run: Run, task: MineUnit, units: Sequence[PairUnits]) -> list[UnitRecord]:
    """Return the record of every unit, in order."""
    earlier = {unit.number: UnitRecord.load_complete(run.store, task.record(unit)) for unit in units}
    made = {number: record for number, record in earlier.items() if record is not None}
    todo = [unit for unit in units if unit.number not in made]
    with run.stages("search", sum(unit.anchors.rows for unit in units)) as bar:
        bar.skip(sum(units[number].anchors.rows for number in made))
        for number, record in run.workers.map_units(
            task, todo, Pool(run.workers.index_workers(run.job.cluster, max(1, len(todo)))), bar
        ):
            made[todo[number].number] = record
        bar.reach(sum(unit.anchors.rows for unit in todo))
    return [made[unit.number] for unit in units]


def _units(pairs: TrainingRows, unit_rows: int, store: Store) -> Iterator[tuple[CorpusUnit, CorpusUnit]]:
    """Yield units of anchors and of positives, row for row, in the order of the files."""
    first = 0
    for table in rechunk(pairs.read(pairs.spans(), _ROLES), unit_rows):
        anchors, positives = (_unit(one_chunk(table[role]), role, first, store) for role in _ROLES)
        yield anchors, positives
        first += len(table)


def _unit(texts: pa.Array, role: str, first: int, store: Store) -> CorpusUnit:
    """Store the texts as a unit. A row's id is its number among the pairs."""
    texts, rows = cleaned(texts), pa.array(np.arange(first, first + len(texts)), pa.int64())
    schema = corpus_schema(pa.int64(), _KEPT[role])
    columns = [
        rows,
        texts,
        text_keys(texts),
        *(texts for _ in _KEPT[role]),
        pa.repeat(pa.scalar(role), len(texts)),
        rows,
    ]
    stored = table_by_content(
        store, pa.Table.from_arrays(columns, schema=schema), "units/pairs/unit", **writer_options(schema)
    )
    return CorpusUnit(name=stored.path, **dict(stored), ordinal=0)

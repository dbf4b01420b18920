"""Gates that compare encoder and corpus with the previous release, judged before anything is encoded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.parquet as pq

from pipeline.flows.context import FlowContext
from pipeline.flows.corpus import describe_unread
from pipeline.flows.night.key_facts import DISTINCT_TEXTS, read_keys
from pipeline.flows.night.previous_release import PreviousRelease
from pipeline.flows.night.release_changes import differing_values
from pipeline.log import announce, counted
from pipeline.models.folder.folder import open_folder
from pipeline.settings import CorpusSettings, Job
from pipeline.store.files.base import Store, in_threads
from pipeline.store.files.range_reader import RangeReader
from pipeline.store.records.units import BAD_FILES, FILTERED, Corpus, CorpusUnit
from pipeline.store.releases.change_examples import ChangedRows
from pipeline.store.releases.manifest import Gate, ReleaseManifest

COMPARED_BY = frozenset(
    f"gates.{name}"
    for name in ("space", "max_deleted", "max_empty_texts", "max_shorter_texts", "max_repeated_texts")
)
"""Settings of these gates, which judge the change from one release to the next, not a release by itself."""
_MIN_ROWS = 10  # rows of the previous release; with fewer, a single row is a large proportion
_MEASURED_UNITS = 64  # footers of units that are read to measure the texts
_HASH_FACTOR = 0x9E3779B1  # odd, near 2**32 divided by the golden ratio (Knuth, vol. 3, 6.4)
_PREFIX_BYTES = 4  # Parquet stores each text after its length


@dataclass(frozen=True)
class JudgedCorpus:
    """Tonight's corpus, compared with the previous release."""

    gates: dict[str, Gate]
    """by name; none on the first night, and only `space` after a release of fewer than ten rows"""
    repeated_ids: int
    """number of live rows that repeat the id of another live row"""
    distinct_texts: int
    """number of distinct texts of the live rows; an estimate if there are many"""

    @property
    def refusals(self) -> tuple[str, ...]:
        """Messages of the gates that did not pass."""
        return tuple(gate.sentence for gate in self.gates.values() if not gate.passed)


def judge_corpus(context: FlowContext, previous: PreviousRelease, corpus: Corpus) -> JudgedCorpus:
    """Compare tonight's corpus with the previous release."""
    facts = read_keys(context, corpus)
    gates = dict(_gates(context, previous, corpus, facts.distinct_texts))
    for name, gate in gates.items():
        if gate.value is None:
            announce(f"{name}: {gate.sentence}")
    return JudgedCorpus(gates, facts.repeated_ids, facts.distinct_texts)


def _gates(
    context: FlowContext, previous: PreviousRelease, corpus: Corpus, distinct_texts: int
) -> Iterator[tuple[str, Gate]]:
    settings, release = context.job.gates, previous.release
    if release is not None and settings.space is not None:
        yield "space", _space_gate(context.job, release)
    if release is None or (lost := count_deleted(context.store, previous, corpus)).before < _MIN_ROWS:
        return
    causes = tuple(_possible_causes(context.job, release, corpus))
    if settings.max_deleted is not None:
        yield "deleted_rows", _deleted_gate(lost, release.release, settings.max_deleted, causes)
        if filters := _filters(context.job.corpus):
            yield (
                "filtered_rows",
                _filtered_gate(lost, release.release, filters, settings.max_deleted, causes),
            )
    texts = _Texts(context, release, previous.corpus if corpus.parent else None, corpus, causes)
    if settings.max_empty_texts is not None:
        yield "empty_texts", texts.empty(settings.max_empty_texts)
    if settings.max_shorter_texts is not None:
        yield "shorter_texts", texts.shorter(settings.max_shorter_texts)
    if settings.max_repeated_texts is not None:
        yield "repeated_texts", texts.repeated(settings.max_repeated_texts, distinct_texts)


def _space_gate(job: Job, release: ReleaseManifest) -> Gate:
    """Return the gate on the space of the vectors."""
    space_id = open_folder(job.encoder).space_id
    is_other = space_id != release.space_id
    names = [
        name
        for name in differing_values(release.settings, job.model_dump(mode="json"))
        if name.startswith("encoder.") and name != "encoder.query_prompt"
    ]
    refused = is_other and (job.gates.space == "same" or not names)
    sentence = f"the vectors are of the space of release {release.release}"
    if is_other:
        cause = f"{', '.join(names)} changed" if names else f"a file of {job.encoder.path} changed"
        sentence = f"the vectors are of another space than those of release {release.release}: {cause}"
    if refused:
        remedy = "if this is intended, set gates.space=null for one night, and replace the clients' encoder"
        sentence = f"{sentence}; their queries would find nothing; {remedy}"
    return Gate(value=int(refused), threshold=0, passed=not refused, relation="exactly", sentence=sentence)


class DeletedRows(NamedTuple):
    """Number of rows of the previous release, and how many of them the corpus no longer has."""

    before: int
    deleted: int
    noun: str
    """what is counted: row, document or chunk"""
    at_least: bool = False
    """True if ids could not be compared, so that the number is a lower bound"""
    filtered: int = 0
    """rows of the previous release that are filtered now; they are not among the deleted ones"""


def count_deleted(store: Store, previous: PreviousRelease, corpus: Corpus) -> DeletedRows:
    """Count the rows of the previous release whose ids are gone; documents, if they are cut into chunks."""
    assert previous.release is not None
    noun = "document" if corpus.is_chunked else "row"
    if previous.corpus is None or corpus.parent is None:  # tables are gone, or another version wrote them
        before = previous.release.counts.get("documents", previous.release.rows)
        return DeletedRows(before, max(0, before - corpus.counts["good"]), noun, at_least=True)
    changed = ChangedRows.load_intact(store, ChangedRows.path(corpus.id))
    if changed is not None and changed.deleted_documents is not None:
        filtered = changed.filtered_documents
        deleted = changed.deleted_documents - filtered
        return DeletedRows(previous.corpus.counts["good"], deleted, noun, filtered=filtered)
    return DeletedRows(previous.corpus.rows, corpus.changes.deleted, "chunk" if corpus.is_chunked else noun)


def _deleted_gate(lost: DeletedRows, release: int, limit: float, causes: Iterable[str]) -> Gate:
    proportion = lost.deleted / lost.before
    subject = f"{'at least ' if lost.at_least else ''}{lost.deleted:,} of {counted(lost.before, lost.noun)}"
    found = f"{subject} of release {release} ({proportion:.1%}) are not in the corpus any more;"
    return _at_most("max_deleted", proportion, limit, found, causes)


def _filters(corpus: CorpusSettings) -> str:
    """Name the settings that leave rows out; "" if none is set."""
    set_here = {"corpus.where": corpus.where, "corpus.exclude": corpus.exclude}
    return " and ".join(name for name, value in set_here.items() if value is not None)


def _filtered_gate(
    lost: DeletedRows, release: int, filters: str, limit: float, causes: Iterable[str]
) -> Gate:
    proportion = lost.filtered / lost.before
    subject = f"{lost.filtered:,} of {counted(lost.before, lost.noun)}"
    found = f"{subject} of release {release} ({proportion:.1%}) are left out by {filters};"
    return _at_most("max_deleted", proportion, limit, found, causes)


def _possible_causes(job: Job, release: ReleaseManifest, corpus: Corpus) -> Iterator[str]:
    """Yield facts that may explain why rows are gone."""
    changed = differing_values(release.settings, job.model_dump(mode="json"))
    for name, (before, now) in changed.items():
        if name.startswith("corpus."):
            now, before = ("null" if each is None else repr(each) for each in (now, before))
            yield f"{name} is {now}, it was {before}"
    if bad := corpus.counts.get(BAD_FILES):
        yield f"{counted(bad, 'unusable file')} skipped"
    if unread := describe_unread(corpus):
        yield unread


def _at_most(setting: str, value: float, limit: float, found: str, causes: Iterable[str] = ()) -> Gate:
    """Return a gate on a proportion. If it fails, its sentence names the setting for one night.

    Args:
        found: the beginning of the sentence; the limit follows it.
        causes: facts that may explain the failure.
    """
    sentences = [f"{found} {100 * limit:g}% at most"]
    if value > limit:
        remedy = f"check the corpus; if this is intended, set gates.{setting}=1 for one night"
        sentences += [*causes, remedy]
    sentence = "; ".join(sentences)
    return Gate(value=value, threshold=limit, passed=value <= limit, relation="at most", sentence=sentence)


@dataclass(frozen=True)
class _Texts:
    """Comparison of tonight's texts with those of the previous release."""

    context: FlowContext
    release: ReleaseManifest
    before: Corpus | None
    """corpus of the release; None if its files are gone, or another version wrote them"""
    now: Corpus
    causes: tuple[str, ...]
    """facts that may explain a difference"""

    def empty(self, limit: float) -> Gate:
        """Compare the proportion of rows without a text."""
        if self.before is None:
            return self._not_checked(limit)
        before, now = (
            corpus.counts.get("quarantined_empty", 0)
            / max(corpus.counts["rows"] - corpus.counts.get(FILTERED, 0), 1)
            for corpus in (self.before, self.now)
        )
        value = max(0.0, now - before)
        found = f"{now:.1%} of the rows have no text, {before:.1%} {self._then}: an increase of {value:.1%};"
        return _at_most("max_empty_texts", value, limit, found, self.causes)

    def shorter(self, limit: float) -> Gate:
        """Compare the mean length of the texts, or of the chunks."""
        if self.before is None or self._is_cut_otherwise:
            return self._not_checked(limit)
        before, now = self._mean_lengths(self.before)
        value = max(0.0, 1 - now / max(before, 1e-9))
        lengths = f"texts have {now:,.0f} bytes on average, {before:,.0f} {self._then}"
        found = f"{lengths}: a decrease of {value:.1%};"
        return _at_most("max_shorter_texts", value, limit, found, self.causes)

    def repeated(self, limit: float, distinct: int) -> Gate:
        """Compare the proportion of texts that repeat another row's text."""
        if self.before is None or self._is_cut_otherwise:
            return self._not_checked(limit)
        earlier = self.release.counts.get(DISTINCT_TEXTS)
        if earlier is None:  # a release of an earlier version
            earlier = read_keys(self.context, self.before).distinct_texts
        before, now = (
            max(0.0, 1 - texts / max(rows, 1))
            for texts, rows in ((earlier, self.before.rows), (distinct, self.now.rows))
        )
        value = max(0.0, now - before)
        repeat = f"{now:.1%} of the texts repeat another one, {before:.1%} {self._then}"
        found = f"{repeat}: an increase of {value:.1%};"
        return _at_most("max_repeated_texts", value, limit, found, self.causes)

    @property
    def _then(self) -> str:
        return f"in release {self.release.release}"

    @property
    def _is_cut_otherwise(self) -> bool:
        """True if the texts are cut into other chunks than those of the previous release."""
        if not self.now.is_chunked:
            return False
        if self.release.space_id != open_folder(self.context.job.encoder).space_id:
            return True  # chunks are cut for the tokenizer and the length of an encoder
        changed = differing_values(self.release.settings, self.context.job.model_dump(mode="json"))
        return any(name.startswith("corpus.chunk.") for name in changed)

    def _not_checked(self, limit: float) -> Gate:
        if self.before is None:
            why = f"the corpus of release {self.release.release} cannot be read"
        else:
            why = f"the texts were cut otherwise {self._then}"
        return Gate(
            value=None, threshold=limit, passed=True, relation="at most", sentence=f"not checked: {why}"
        )

    def _mean_lengths(self, before: Corpus) -> tuple[float, float]:
        """Return the mean bytes of the texts of the previous corpus and of tonight's.

        The mean length over all rows of a unit stands for the mean over its live rows.
        """
        known = {unit.ordinal for unit in before.units}
        kept = [unit for unit in self.now.units if unit.ordinal in known]
        new = [unit for unit in self.now.units if unit.ordinal not in known]
        rows = [sum(unit.rows - unit.dead for unit in units) for units in (kept, new)]
        means = [_mean_bytes(self.context.store, units) for units in (kept, new)]
        total = sum(count * mean for count, mean in zip(rows, means, strict=True))
        return _mean_bytes(self.context.store, before.units), total / max(sum(rows), 1)


def _mean_bytes(store: Store, units: Sequence[CorpusUnit]) -> float:
    """Return the mean bytes of the units' texts, from the footers of some units.

    Units are chosen by a hash of their number, so that a new or missing unit changes only one of them.
    """
    live = [unit for unit in units if unit.rows > unit.dead]
    chosen = sorted(live, key=lambda unit: unit.ordinal * _HASH_FACTOR % 2**32)[:_MEASURED_UNITS]
    means = in_threads(lambda unit: _mean_bytes_of_unit(store, unit), chosen)
    rows = sum(unit.rows - unit.dead for unit in chosen)
    return sum(mean * (unit.rows - unit.dead) for mean, unit in zip(means, chosen, strict=True)) / max(
        rows, 1
    )


def _mean_bytes_of_unit(store: Store, unit: CorpusUnit) -> float:
    def read_range(start: int, stop: int) -> bytes:
        return store.read_range(unit.path, start, stop).to_pybytes()

    footer = pq.read_metadata(RangeReader(read_range, unit.bytes))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    size = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == "text")
    return size / max(unit.rows, 1) - _PREFIX_BYTES

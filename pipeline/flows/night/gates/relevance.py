"""The gate on a user's own judged queries: measure a candidate, and compare it with the previous release."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.errors import SpaceMismatch
from pipeline.evaluate.bootstrap import ScoreEstimate
from pipeline.evaluate.judgements import JudgedPairs, JudgedQueries, read_relevance
from pipeline.evaluate.relevance import (
    ANSWERS,
    MRR,
    RECALL,
    RESAMPLES,
    SEED,
    RelevanceScores,
    ScoreChange,
    SliceScores,
    compare_scores,
)
from pipeline.evaluate.similarity import row_similarities
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.trial_encode import encode_texts, is_usable
from pipeline.flows.index.released import use_index
from pipeline.flows.night.gates.fixed_queries import AskIndex
from pipeline.flows.night.gates.judged_ids import (
    DocumentsOfRows,
    judged_ids,
    missing_ids_error,
    rows_of_documents,
)
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.index.search.release_files import search_grouped
from pipeline.log import announce
from pipeline.models.folder.folder import open_folder
from pipeline.settings import RelevanceSettings
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus
from pipeline.store.records.write_once import store_by_content
from pipeline.store.releases.manifest import (
    RELEVANCE,
    RELEVANCE_CHANGE,
    RELEVANCE_MRR,
    RELEVANCE_RECALL,
    Gate,
    ReleaseManifest,
)
from pipeline.transforms.transform import load_transform


class Omitted(NamedTuple):
    """Relevant ids that are not in the corpus, and texts without a vector that can be compared."""

    ids: int = 0
    """number of different ids in the file"""
    missing: int = 0
    """number of these ids that are not in the corpus"""
    queries: int = 0
    """number of queries that are left out, because none of their ids is in the corpus"""
    unusable: int = 0
    """number of queries, or pairs with a text, whose vector is zero or not finite; they score 0"""

    @property
    def sentence(self) -> str:
        """A clause about what is missing; empty if nothing is."""
        clauses = []
        if self.missing:
            clauses += [f"; relevant ids that are not in the corpus: {self.missing:,} of {self.ids:,}"]
        if self.queries:
            clauses += [f"; queries that have no other, left out: {self.queries:,}"]
        if self.unusable:
            clauses += [f"; without a usable vector, which counts as 0: {self.unusable:,}"]
        return "".join(clauses)


def relevance_gates(
    settings: RelevanceSettings,
    scores: RelevanceScores,
    omitted: Omitted,
    previous: int | None,
    change: ScoreChange | None,
) -> dict[str, Gate]:
    """Return the gates by name.

    Args:
        previous: number of the previous release; None for the first.
        change: the change since then; None if there is nothing to compare with.
    """
    measured = scores.estimates()
    named = {RELEVANCE: (scores.metric, settings.at_least)}
    named |= {RELEVANCE_RECALL: (RECALL, settings.recall_at_least)}
    named |= {RELEVANCE_MRR: (MRR, settings.mrr_at_least)}
    gates = {}
    for name, (metric, at_least) in named.items():
        if metric in measured:
            subject = f"{metric} of {len(scores.keys):,} {scores.unit} of gates.relevance"
            gates[name] = _value_gate(subject, measured[metric], at_least, omitted)
    if settings.not_below is not None and previous is not None:
        gates[RELEVANCE_CHANGE] = _change_gate(scores, previous, change)
    return gates


def _value_gate(subject: str, measured: ScoreEstimate, at_least: float | None, omitted: Omitted) -> Gate:
    """Return the gate on a value; without a bound it only reports the value."""
    value = measured.value
    assert value is not None  # the scores of the file differ, so the correlation is defined
    bound = "reported only" if at_least is None else f"{at_least:g} at least"
    sentence = f"{subject} is {value:.4f}{_interval(measured)}, {bound}{omitted.sentence}"
    return Gate(
        value=value, threshold=at_least, passed=at_least is None or value >= at_least, sentence=sentence
    )


def _change_gate(scores: RelevanceScores, previous: int, change: ScoreChange | None) -> Gate:
    """Return the gate on the difference, which fails only if the whole interval is below 0."""
    if change is None or change.difference.value is None:
        sentence = (
            f"{scores.metric} is not compared: release {previous} has no scores of these {scores.unit}; the "
            "next release will be compared with this one"
        )
        return Gate(value=None, threshold=0, passed=True, sentence=sentence)
    difference, shared = change.difference, len(change.keys)
    assert difference.value is not None
    of_all = "" if shared == len(scores.keys) else f" of {len(scores.keys):,}"
    sentence = (
        f"{scores.metric} of {shared:,}{of_all} {scores.unit}, which release {previous} has too, changed by "
        f"{difference.value:+.4f}{_interval(difference)}, 0 at least within it ({RESAMPLES:,} paired "
        f"resamples, seed {SEED})"
    )
    return Gate(value=difference.value, threshold=0, passed=not change.is_worse, sentence=sentence)


def _interval(measured: ScoreEstimate) -> str:
    interval = measured.interval(lambda value: "" if value is None else f"{value:.4f}")
    return f" (95 % interval {interval})" if interval else ""


SHOWN_SLICES = 20  # the largest ones; every slice is a label of a metric
_SEARCHED_TOGETHER = 4_096  # queries; bounds the memory of their answers


@dataclass(frozen=True)
class MeasuredRelevance:
    """The relevance of a candidate's answers."""

    gates: dict[str, Gate]
    """by name"""
    scores: RelevanceScores
    """the scores of all queries"""
    change: ScoreChange | None
    """the change since the previous release; None if there is nothing to compare with"""
    slices: tuple[SliceScores, ...] = ()
    """the scores by the values of gates.relevance.slices, the largest slice first"""

    def slice_values(self) -> dict[str, dict[str, float]]:
        """Return the values of the slices that the report shows, by slice and metric."""
        return {
            each.name: {
                name: score.value for name, score in each.estimates.items() if score.value is not None
            }
            for each in self.slices[:SHOWN_SLICES]
        }

    def store_scores(self, store: Store) -> FileRef:
        """Store the scores, with which the next release will be compared."""
        content, rows = self.scores.to_bytes(), len(self.scores.keys)
        return store_by_content(store, content, "relevance/scores", ".parquet", rows)


def measure_relevance(
    context: FlowContext, corpus: Corpus, manifest: ReleaseManifest, previous: ReleaseManifest | None
) -> MeasuredRelevance | None:
    """Measure `gates.relevance` for a candidate or release; None if it is not set.

    Args:
        previous: the release to compare with.

    Raises:
        DataError: the file cannot be used, or none of its ids is in the corpus.
        SpaceMismatch: the job's encoder is not the release's.
    """
    settings = context.job.gates.relevance
    if settings.queries is None:
        return None
    if (found := open_folder(context.job.encoder).space_id) != manifest.space_id:
        raise SpaceMismatch(
            "gates.relevance",
            f"an encoder of space {manifest.space_id}",
            f"space {found}",
            "set encoder to that of the release, or gates.relevance.queries to null",
        )
    judged = read_relevance(settings)
    if isinstance(judged, JudgedPairs):
        scores, omitted = _score_pairs(context, manifest, judged)
    else:
        scores, omitted = _score_queries(context, corpus, manifest, judged)
    if omitted.unusable:
        unusable = f"{scores.unit} without a usable vector, which count as 0: {omitted.unusable:,}"
        announce(f"gates.relevance: {unusable}")
    before = _load_scores(context.store, previous) if previous else None
    change = compare_scores(before, scores) if before else None
    gates = relevance_gates(settings, scores, omitted, previous.release if previous else None, change)
    return MeasuredRelevance(gates, scores, change, scores.of_slices(before))


def _load_scores(store: Store, release: ReleaseManifest) -> RelevanceScores | None:
    """Load the scores that a release stored; None without any."""
    if release.relevance is None:
        return None
    try:
        return RelevanceScores.from_bytes(release.relevance.read(store))
    except FileNotFoundError:
        path = release.relevance.path
        announce(f"gates.relevance: nothing is compared: {path}, of release {release.release}, is gone")
        return None


def _score_pairs(
    context: FlowContext, manifest: ReleaseManifest, judged: JudgedPairs
) -> tuple[RelevanceScores, Omitted]:
    """Compute the cosines of sentence pairs, encoded like texts of the corpus, after the transform."""
    texts = tuple(dict.fromkeys((*judged.left, *judged.right)))
    vectors = encode_texts(context, texts)
    usable = is_usable(vectors)
    if manifest.transform is not None:
        vectors = load_transform(manifest.transform.read(context.store))(vectors)
    vectors = np.where(usable[:, None], vectors, 0)  # the cosine with such a text is 0
    rows = {text: row for row, text in enumerate(texts)}
    left, right = ([rows[text] for text in side] for side in (judged.left, judged.right))
    omitted = Omitted(unusable=int((~(usable[left] & usable[right])).sum()))
    scores = RelevanceScores.of_cosines(judged, row_similarities("cosine", vectors[left], vectors[right]))
    return scores, omitted


def _score_queries(
    context: FlowContext, corpus: Corpus, manifest: ReleaseManifest, judged: JudgedQueries
) -> tuple[RelevanceScores, Omitted]:
    """Compute nDCG@10 of every query with a relevant row in the corpus. Ids of missing rows are left out."""
    ids = judged_ids(judged)
    documents = rows_of_documents(context, corpus, ids)
    present = set(documents.values())
    relevant = [present.intersection(of_query) for of_query in judged.relevant]
    rows = [row for row, of_query in enumerate(relevant) if of_query]
    if not rows:
        raise missing_ids_error(judged, is_chunked=corpus.is_chunked)
    vectors = encode_texts(context, tuple(judged.queries[row] for row in rows), query=True)
    unusable = int((~is_usable(vectors)).sum())
    omitted = Omitted(len(ids), len(ids) - len(present), len(relevant) - len(rows), unusable)
    answers = _search(context, corpus, manifest, vectors)
    ranks = []
    for row, addresses in zip(rows, answers.tolist(), strict=True):
        found = [rank for rank, address in enumerate(addresses, 1) if documents.get(address) in relevant[row]]
        ranks.append(np.array(found + (len(relevant[row]) - len(found)) * [np.inf]))
    return RelevanceScores.of_ranks(judged, rows, ranks), omitted


def _search(
    context: FlowContext, corpus: Corpus, manifest: ReleaseManifest, vectors: np.ndarray
) -> np.ndarray:
    """Search as searchers do, by document if rows are cut into chunks.

    Returns:
        Addresses (q, ANSWERS), with NO_NEIGHBOUR after the last answer. A vector that is zero or not finite
        cannot be searched for, and has no answer.
    """
    addresses = np.full((len(vectors), ANSWERS), NO_NEIGHBOUR, dtype=np.int64)
    usable = np.flatnonzero(is_usable(vectors))
    documents = DocumentsOfRows(context, corpus)

    def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, found = use_index(context, manifest, AskIndex(queries, k))
        if corpus.is_chunked:
            documents.look_up(found[found != NO_NEIGHBOUR])
        return scores, found

    for start in range(0, len(usable), _SEARCHED_TOGETHER):
        rows = usable[start : start + _SEARCHED_TOGETHER]
        if corpus.is_chunked:
            _, found = search_grouped(search, documents.of, vectors[rows], ANSWERS, manifest.rows)
        else:
            _, found = search(vectors[rows], ANSWERS)
        addresses[rows, : found.shape[1]] = found
    return addresses

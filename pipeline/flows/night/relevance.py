"""The gate on a user's own judged queries: measure a candidate, and compare it with the previous release."""

from dataclasses import dataclass

import numpy as np

from pipeline.errors import SpaceMismatch
from pipeline.evaluate.judgements import JudgedPairs, JudgedQueries, read_judgements
from pipeline.evaluate.relevance import ANSWERS, RelevanceScores, ScoreChange, compare_scores
from pipeline.evaluate.similarity import row_similarities
from pipeline.flows.encode.probe import encode_texts
from pipeline.flows.index.released import use_index
from pipeline.flows.night.fixed_queries import AskIndex
from pipeline.flows.night.judged_ids import judged_ids, missing_ids_error
from pipeline.flows.night.judged_rows import DocumentsOfRows, rows_of_documents
from pipeline.flows.night.relevance_gates import Omitted, relevance_gates
from pipeline.flows.run import Run
from pipeline.index.grouped import search_grouped
from pipeline.index.truth import NO_NEIGHBOUR
from pipeline.log import say
from pipeline.models.folder.folder import open_folder
from pipeline.post import load_transform
from pipeline.store.base import Store
from pipeline.store.manifest import Gate, ReleaseManifest
from pipeline.store.once import store_by_content
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus

_SEARCHED_TOGETHER = 4_096  # queries; bounds the memory of their answers


@dataclass(frozen=True)
class MeasuredRelevance:
    """The relevance of a candidate's answers.

    Attributes:
        gates: by name.
        scores: the scores of all queries.
        change: the change since the previous release; None if there is nothing to compare with.
    """

    gates: dict[str, Gate]
    scores: RelevanceScores
    change: ScoreChange | None

    def store_scores(self, store: Store) -> FileRef:
        """Store the scores, with which the next release will be compared."""
        content, rows = self.scores.to_bytes(), len(self.scores.keys)
        return store_by_content(store, content, "relevance/scores", ".parquet", rows)


def measure_relevance(
    run: Run, corpus: Corpus, manifest: ReleaseManifest, previous: ReleaseManifest | None
) -> MeasuredRelevance | None:
    """Measure `gates.relevance` for a candidate or release; None if it is not set.

    Args:
        previous: the release to compare with.

    Raises:
        DataError: the file cannot be used, or none of its ids is in the corpus.
        SpaceMismatch: the job's encoder is not that of the release.
    """
    settings = run.job.gates.relevance
    if settings.queries is None:
        return None
    if (found := open_folder(run.job.encoder).space_id) != manifest.space_id:
        raise SpaceMismatch(
            "gates.relevance",
            f"an encoder of space {manifest.space_id}",
            f"space {found}",
            "set encoder to that of the release, or gates.relevance.queries to null",
        )
    judged, omitted = read_judgements(settings.queries), Omitted()
    if isinstance(judged, JudgedPairs):
        scores = _score_pairs(run, manifest, judged)
    else:
        scores, omitted = _score_queries(run, corpus, manifest, judged)
    before = _load_scores(run.store, previous) if previous else None
    change = compare_scores(before, scores) if before else None
    gates = relevance_gates(settings, scores, omitted, previous.release if previous else None, change)
    return MeasuredRelevance(gates, scores, change)


def _load_scores(store: Store, release: ReleaseManifest) -> RelevanceScores | None:
    """Load the scores that a release stored; None without any."""
    if release.relevance is None:
        return None
    try:
        return RelevanceScores.from_bytes(release.relevance.read(store))
    except FileNotFoundError:
        path = release.relevance.path
        say(f"gates.relevance: nothing is compared: {path}, of release {release.release}, is gone")
        return None


def _score_pairs(run: Run, manifest: ReleaseManifest, judged: JudgedPairs) -> RelevanceScores:
    """Compute the cosines of sentence pairs, encoded like texts of the corpus, after the transform."""
    texts = tuple(dict.fromkeys((*judged.left, *judged.right)))
    vectors = encode_texts(run, texts)
    is_usable = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    if manifest.transform is not None:
        vectors = load_transform(manifest.transform.read(run.store))(vectors)
    vectors = np.where(is_usable[:, None], vectors, 0)  # the cosine with such a text is 0
    rows = {text: row for row, text in enumerate(texts)}
    left, right = (vectors[[rows[text] for text in side]] for side in (judged.left, judged.right))
    return RelevanceScores.of_cosines(judged, row_similarities("cosine", left, right))


def _score_queries(
    run: Run, corpus: Corpus, manifest: ReleaseManifest, judged: JudgedQueries
) -> tuple[RelevanceScores, Omitted]:
    """Compute nDCG@10 of every query with a relevant row in the corpus; other relevant ids are left out."""
    ids = judged_ids(judged)
    documents = rows_of_documents(run, corpus, ids)
    present = set(documents.values())
    relevant = [present.intersection(of_query) for of_query in judged.relevant]
    rows = [row for row, of_query in enumerate(relevant) if of_query]
    omitted = Omitted(len(ids), len(ids) - len(present), len(relevant) - len(rows))
    if not rows:
        raise missing_ids_error(judged, is_chunked=corpus.is_chunked)
    vectors = encode_texts(run, tuple(judged.queries[row] for row in rows), query=True)
    answers = _search(run, corpus, manifest, vectors)
    ranks = []
    for row, addresses in zip(rows, answers.tolist(), strict=True):
        found = [rank for rank, address in enumerate(addresses, 1) if documents.get(address) in relevant[row]]
        ranks.append(np.array(found + (len(relevant[row]) - len(found)) * [np.inf]))
    return RelevanceScores.of_ranks(judged, rows, ranks), omitted


def _search(run: Run, corpus: Corpus, manifest: ReleaseManifest, vectors: np.ndarray) -> np.ndarray:
    """Search as searchers do, by document if rows are cut into chunks.

    Returns:
        Addresses (q, ANSWERS), with NO_NEIGHBOUR after the last answer. A vector that is zero or not finite
        cannot be searched for, and has no answer.
    """
    addresses = np.full((len(vectors), ANSWERS), NO_NEIGHBOUR, dtype=np.int64)
    usable = np.flatnonzero(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1))
    if unknown := len(vectors) - len(usable):
        say(f"gates.relevance: queries without a usable vector, for which nothing is found: {unknown:,}")
    documents = DocumentsOfRows(run, corpus)

    def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, found = use_index(run, manifest, AskIndex(queries, k))
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

"""The gates that a candidate must pass before it is published."""

from dataclasses import replace
from hashlib import sha256

import numpy as np

from pipeline.flows.context import FlowContext
from pipeline.flows.encode.trial_encode import encode_texts
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.gates.as_searcher import check_written, try_as_searcher
from pipeline.flows.night.gates.corpus_gates import JudgedCorpus
from pipeline.flows.night.gates.corpus_language import check_language
from pipeline.flows.night.gates.fixed_queries import answer_queries, fixed_queries
from pipeline.flows.night.gates.query_drift import query_drift_gates
from pipeline.flows.night.gates.relevance import measure_relevance
from pipeline.flows.night.report.releases_page import load_summary
from pipeline.flows.night.report.report import ReleaseComparison
from pipeline.flows.night.user_queries import user_query_gates
from pipeline.flows.workers import metrics
from pipeline.index.gates import RowMetrics, judge, lowest_cosine
from pipeline.log import announce
from pipeline.stats.tensors import pack, unpack
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import READABLE, Gate, ReleaseManifest
from pipeline.store.releases.summary import Summary
from pipeline.text.tokens.coverage import ScriptCoverage

# Texts that must never change: their vectors are compared with the previous release's.
CANARIES = (
    "A",
    "Yes.",
    "42",
    "hello world",
    "The cat sat on the mat.",
    "How do I join two paths in Python?",
    "Two dogs are running across a snowy field.",
    "Quarterly revenue rose 12% to $4.1bn, beating forecasts.",
    "ERROR 503: upstream connect error or disconnect/reset before headers",
    "def add(a, b): return a + b",
    "Die Katze schläft auf dem Sofa.",
    "Où est la bibliothèque ?",
    "¿Cuánto cuesta este libro?",
    "今日はとても天気が良いです。",
    "Привет, как дела?",
    "مرحبا بالعالم",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Photosynthesis converts light energy into chemical energy stored in glucose.",
    (
        "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings "
        "and arrows of outrageous fortune."
    ),
    "The committee, having considered the evidence submitted by all parties and the recommendations of "
    "the expert panel, decided to postpone the final vote until the "
    "environmental impact assessment, which had been delayed twice already, was completed and "
    "published for comment by the residents of the affected districts.",
)


def judge_candidate(
    context: FlowContext,
    previous: ReleaseManifest | None,
    candidate: Candidate,
    corpus: JudgedCorpus,
    *,
    repairs: bool = False,
) -> tuple[Candidate, ReleaseComparison]:
    """Run the gates and search the fixed queries.

    Args:
        previous: the previous release; None for the first.
        corpus: the candidate's corpus, with its gates, which passed.
        repairs: whether files of the previous release were made again.

    Returns:
        The candidate with its gates and canary vectors, and its comparison with the previous release.
    """
    job, store, manifest = context.job, context.store, candidate.manifest
    with context.stages("gates"):
        summary = (load_summary(store, previous.release) or Summary.of(previous)) if previous else None
        readable = try_as_searcher(context, None if repairs else previous, manifest)
        if not readable.passed:  # other gates would fail because of the same files
            gates = corpus.gates | {READABLE: readable}
            return _with_gates(candidate, gates), ReleaseComparison(previous, summary, ())
        candidate = check_language(context, previous, candidate)
        earlier = summary.answers if summary else ()
        queries = fixed_queries(store, candidate, earlier)
        encoded = encode_texts(context, (*CANARIES, *queries))
        canaries, query_vectors = np.split(encoded, [len(CANARIES)])
        failed, canary_cosine = int((~np.isfinite(canaries).all(axis=1)).sum()), None
        if not failed and previous is not None and previous.space_id == manifest.space_id:
            previous_canaries = load_canary_vectors(previous, store)
            if previous_canaries is not None:
                canary_cosine = lowest_cosine(previous_canaries, canaries)
        rows = RowMetrics(  # bad vectors are not counted, because an index is never filled with them
            manifest.row_counts,
            duplicate_ids=corpus.repeated_ids,
            token_coverage=ScriptCoverage.of(manifest.counts),
            max_quarantined=job.corpus.max_quarantined,
            failed_canaries=failed,
        )
        measured, dtype = candidate.built.measured, job.encode.dtype
        gates = judge(measured, rows, job.gates, canary=canary_cosine, dtype=dtype) | corpus.gates
        gates |= user_query_gates(job, candidate.user_queries, measured)
        gates |= query_drift_gates(store, candidate.built, candidate.user_queries)
        metrics.record_effort(measured.effort, measured.rows_effort)
        written = {"canary": _store_canary_vectors(store, canaries)}
        if relevance := measure_relevance(context, candidate.corpus, manifest, previous):
            gates |= relevance.gates
            metrics.record_slices(relevance.slice_values())
            written["relevance"] = relevance.store_scores(store)
        gates[READABLE] = check_written(store, readable, written.values())
        answers = answer_queries(context, candidate, queries, query_vectors, earlier)
    judged = _with_gates(candidate, gates, **written)
    return judged, ReleaseComparison(previous, summary, answers, relevance, job.release.show_deleted_texts)


def _with_gates(candidate: Candidate, gates: dict[str, Gate], **files: FileRef) -> Candidate:
    """Return the candidate with its gates, and with files that were written while it was judged."""
    manifest = candidate.manifest
    metrics.count_quarantined(manifest.counts)
    metrics.record_gates(gates)
    metrics.record_changes(manifest.counts, manifest.choices)
    return replace(candidate, manifest=manifest.model_copy(update={"gates": gates, **files}))


def load_canary_vectors(release: ReleaseManifest, store: Store) -> np.ndarray | None:
    """Load the vectors (n, d) of the canary texts that a release stored; None without any."""
    if release.canary is None:
        return None
    try:
        content = release.canary.read(store)
    except FileNotFoundError:
        announce(
            f"the canary texts are not compared: {release.canary.path}, of release {release.release}, is gone"
        )
        return None
    return unpack(content, "vectors")[0]["vectors"]


def _store_canary_vectors(store: Store, vectors: np.ndarray) -> FileRef:
    content = pack({"vectors": vectors}, {"texts": len(vectors)})
    digest = sha256(content).hexdigest()
    reference = FileRef(
        path=f"moments/canary-{digest[:24]}.safetensors", sha256=digest, rows=len(vectors), bytes=len(content)
    )
    store.write(reference.path, content)
    return reference

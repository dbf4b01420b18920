"""The gates that a candidate must pass before it is published."""

from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.encode.probe import encode_texts
from pipeline.flows.night.asked import ask, fixed_queries
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.outside import outside_gates
from pipeline.flows.night.overview import load_summary
from pipeline.flows.night.report import ReleaseComparison
from pipeline.flows.run import Run
from pipeline.flows.workers import metrics
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.index.gates import judge, lowest_cosine
from pipeline.index.measured import Counted
from pipeline.log import say
from pipeline.stats.tensors import pack, unpack
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus
from pipeline.text.tokens.coverage import ScriptCoverage

# Never changed: their vectors are compared with those of the previous release, whatever its version.
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


@dataclass(frozen=True)
class RepeatedIds(PlainTask[Corpus, int]):
    """Count the live ids that occur again in a corpus's key table, with one bucket in memory at a time."""

    store: Store

    def work(self, corpus: Corpus) -> int:
        repeated = 0
        for bucket in corpus.keys:
            table = pq.read_table(bucket.open(self.store), columns=["id", "address"])
            live = table.filter(table["address"].is_valid())
            repeated += live.num_rows - pc.count_distinct(live["id"]).as_py()
        return repeated


def judge_candidate(
    run: Run, before: ReleaseManifest | None, candidate: Candidate
) -> tuple[Candidate, ReleaseComparison]:
    """Run the gates and ask the fixed queries.

    Args:
        before: the previous release.

    Returns:
        The candidate with its gates and canary vectors, and its comparison with the previous release.
    """
    job, store, manifest = run.job, run.store, candidate.manifest
    with run.stages("gates"):
        last = load_summary(store, before.release) if before else None
        queries = fixed_queries(store, candidate, last.answers if last else ())
        repeated = run.workers.run(RepeatedIds(store), candidate.corpus, Pool(1))
        vectors, asked = np.split(encode_texts(run, (*CANARIES, *queries)), [len(CANARIES)])
        failed, canary = int((~np.isfinite(vectors).all(axis=1)).sum()), None
        if not failed and before is not None and before.space_id == manifest.space_id:
            then = canary_of(before, store)
            canary = None if then is None else lowest_cosine(then, vectors)
        counted = Counted(
            read=manifest.counts["total"],
            vectors=manifest.rows,
            quarantined=manifest.counts["quarantined"],
            bad_vectors=0,  # filling the index refuses any
            duplicate_ids=repeated,
            covered=ScriptCoverage.of(manifest.counts),
            most_quarantined=job.corpus.max_quarantined,
            failed_canaries=failed,
        )
        measured, dtype = candidate.built.measured, job.encode.dtype
        gates = judge(measured, counted, job.gates, canary=canary, dtype=dtype) | outside_gates(run, manifest)
        update = {"gates": gates, "canary": _store_canary(store, vectors)}
        answers = ask(run, candidate, queries, asked)
    metrics.count_quarantined(manifest.counts)
    metrics.record_gates(gates)
    return replace(candidate, manifest=manifest.model_copy(update=update)), ReleaseComparison(
        before, last, answers
    )


def canary_of(release: ReleaseManifest, store: Store) -> np.ndarray | None:
    """Load the vectors (n, d) of the canary texts that a release stored; None without any."""
    if release.canary is None:
        return None
    try:
        content = release.canary.read(store)
    except FileNotFoundError:
        say(
            f"the canary texts are not compared: {release.canary.path}, of release {release.release}, is gone"
        )
        return None
    return unpack(content, "vectors")[0]["vectors"]


def _store_canary(store: Store, vectors: np.ndarray) -> FileRef:
    content = pack({"vectors": vectors}, {"texts": len(vectors)})
    digest = sha256(content).hexdigest()
    reference = FileRef(
        path=f"moments/canary-{digest[:24]}.safetensors", sha256=digest, rows=len(vectors), bytes=len(content)
    )
    store.write(reference.path, content)
    return reference

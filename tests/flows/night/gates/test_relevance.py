"""The gate on judged queries measures the answers that searchers get, and compares two releases.

Expected scores are computed here from the answers of the opened release, or from its stored vectors.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from pipeline.errors import ConfigError, DataError, GatesRefused
from pipeline.flows.night.gates.audit import remeasure
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.planning.night_plan import plan
from pipeline.flows.night.planning.preflight import preflight
from pipeline.flows.night.publish import NightOutcome
from pipeline.flows.workers import metrics
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.transforms.transform import load_transform
from tests.conftest import CommandResult
from tests.flows.conftest import current_manifest, job_arguments, part_size, sentences
from tests.flows.night.test_incremental import Night
from tests.models.folder.wordfiles import write_words

Make = Callable[..., Job]
pytestmark = pytest.mark.usefixtures("cluster")
OFF = ("whiten.mode=off", "gates.recall_at_10=")
TEXTS = sentences(400)


def judge(file: Path, judged: Mapping[str, Sequence[str]]) -> str:
    """Write queries with their relevant ids. Returns the setting that names the file."""
    lines = [json.dumps({"query": query, "id": row_id}) for query, ids in judged.items() for row_id in ids]
    file.write_text("\n".join(lines))
    return f"gates.relevance.queries={file}"


def beginnings(rows: Sequence[int]) -> dict[str, list[str]]:
    """Return the first words of some texts as queries, with the text's row and the next one as relevant."""
    return {" ".join(TEXTS[row].split()[:6]): [f"row-{row:05d}", f"row-{row + 1:05d}"] for row in rows}


def expected_scores(root: str, judged: Mapping[str, Sequence[str]], *, group: bool = False) -> list[float]:
    """Compute nDCG@10 from the answers of the current release, by definition."""
    release, scores = open_release(root), []
    for query, relevant in judged.items():
        answers = release.search(query, 10, group=group).to_pylist()
        ranking = [row["parent"] if group else row["id"] for row in answers]
        gained = sum(1 / math.log2(rank + 1) for rank, each in enumerate(ranking, 1) if each in relevant)
        scores.append(gained / sum(1 / math.log2(rank + 1) for rank in range(1, len(relevant) + 1)))
    return scores


def stored_scores(outcome: NightOutcome) -> dict[str, float]:
    """Read the scores that the current release stores, by query."""
    manifest = current_manifest(Path(outcome.root))
    assert manifest.relevance is not None
    rows = pq.read_table(Path(outcome.root, manifest.relevance.path)).to_pylist()
    return {row["key"][0]: row["score"] for row in rows}


@pytest.mark.parametrize(
    "index",
    [
        ("index.kind=IVF16,Flat", "index.nprobe=1"),
        ("index.kind=flat", part_size(150)),
        ("index.kind=IVF4,Flat", "index.nprobe=1", "index.part_gib=0.00002"),
        ("index.kind=ivf_rabitq_refine", "index.nlist=4", "index.nprobe=1"),
        ("index.kind=IVF400,Flat", "index.nprobe=1", "index.train_rows=400"),
    ],
)
def test_scores_are_those_of_the_answers_that_searchers_get(make_job: Make, tmp_path: Path, index):
    """With a list for each row, a search has to visit more lists to find ten rows."""
    judged = beginnings(range(0, 120, 3))
    job = make_job(*OFF, *index, judge(tmp_path / "judged.jsonl", judged), "encoder.query_prompt=the ")
    outcome = nightly(job, Stages())
    expected = expected_scores(outcome.root, judged)
    assert 0 < np.mean(expected) < 1
    assert (outcome.facts["index"]["parts"] > 1) == any("part_gib" in setting for setting in index)
    assert stored_scores(outcome) == pytest.approx(dict(zip(judged, expected, strict=True)), abs=1e-12)
    gate = outcome.facts["gates"]["relevance"]
    assert gate["value"] == pytest.approx(np.mean(expected), abs=1e-12)
    assert (gate["threshold"], gate["passed"]) == (None, True)
    assert "relevance_change" not in outcome.facts["gates"]
    assert remeasure(job, Stages()).gates["relevance"].model_dump(mode="json") == gate
    assert "nDCG@10 of 40 queries of gates.relevance" in Path(outcome.report).read_text()


def test_chunks_count_as_their_documents(tmp_path: Path, encoder: Path):
    night = Night(tmp_path / "night", encoder, "index.kind=flat", "whiten.mode=off", "gates.recall_at_10=")
    documents = [(f"d#{row}", ". ".join(TEXTS[row : row + 12])) for row in range(0, 240, 12)]
    night.put({"a.parquet": documents})
    judged = {" ".join(TEXTS[row].split()[:5]): [f"d#{row - row % 12}"] for row in range(0, 240, 11)}
    cut = {"by": "sentences", "max_tokens": 48}
    night.job = night.job.model_copy(
        update={
            "corpus": night.job.corpus.model_copy(
                update={"chunk": type(night.job.corpus.chunk).model_validate(cut)}
            ),
            "gates": night.job.gates.model_copy(
                update={
                    "relevance": type(night.job.gates.relevance)(
                        queries=judge(tmp_path / "judged.jsonl", judged).partition("=")[2]
                    )
                }
            ),
        }
    )
    outcome = night.run()
    assert outcome.rows > 3 * len(documents)
    expected = expected_scores(outcome.root, judged, group=True)
    assert 0 < np.mean(expected) < 1
    assert stored_scores(outcome) == pytest.approx(dict(zip(judged, expected, strict=True)), abs=1e-12)


@pytest.mark.parametrize(
    "bound",
    [
        "gates.relevance.at_least=1",
        "gates.relevance.not_below=previous",
        "gates.relevance.mrr_at_least=1",
        "gates.relevance.recall_at_least=1",
    ],
)
def test_an_encoder_that_finds_less_is_refused(make_job: Make, tmp_path: Path, bound: str):
    judged = {" ".join(TEXTS[row].split()[:-1]): [f"row-{row:05d}"] for row in range(60)}
    file = judge(tmp_path / "judged.jsonl", judged)
    first = nightly(make_job(*OFF, file), Stages())
    assert first.facts["gates"]["relevance"]["value"] > 0.9
    name = {"mrr": "MRR@10", "rec": "recall@10"}.get(bound.split(".")[2][:3], "nDCG@10")
    with pytest.raises(GatesRefused, match=name) as caught:
        nightly(make_job(*OFF, file, bound, "encoder.dim=2"), Stages())
    assert caught.value.exit_code == 5
    releases = Releases(open_store(first.root))
    assert releases.numbers() == [1]
    report = Path(caught.value.candidate, "report.html").read_text()
    assert "Your own queries" in report
    refused = json.loads(Path(caught.value.candidate, "manifest.json").read_text())
    scores = pq.read_table(Path(first.root, refused["relevance"]["path"]))["score"].to_numpy()
    before = np.array(list(stored_scores(first).values()))
    if "not_below" in bound:
        gate = refused["gates"]["relevance_change"]
        assert gate["value"] == pytest.approx((scores - before).mean(), abs=1e-12)
        assert "1,000 paired resamples, seed 1111" in gate["sentence"]


def test_the_same_answers_pass_and_only_shared_queries_are_compared(make_job: Make, tmp_path: Path):
    judged = beginnings(range(0, 60, 2))
    file = judge(tmp_path / "judged.jsonl", judged)
    settings = (*OFF, file, "gates.relevance.not_below=previous", "index.kind=flat")
    nightly(make_job(*settings), Stages())
    new = beginnings(range(100, 110))
    judge(tmp_path / "judged.jsonl", dict(list(judged.items())[10:]) | new)
    assert nightly(make_job(*settings), Stages()).status == "unchanged"
    table = pa.table({"id": ["new"], "text": ["an unrelated thing"], "lang": ["en"]})
    pq.write_table(table, tmp_path / "corpus" / "part-9.parquet")
    second = nightly(make_job(*settings), Stages())
    gate = second.facts["gates"]["relevance_change"]
    assert (second.status, gate["value"], gate["passed"]) == ("published", 0, True)
    assert "20 of 30 queries, which release 1 has too" in gate["sentence"]
    judge(tmp_path / "judged.jsonl", beginnings(range(200, 210)))
    (tmp_path / "corpus" / "part-9.parquet").unlink()
    gate = nightly(make_job(*settings), Stages()).facts["gates"]["relevance_change"]
    assert (gate["value"], gate["passed"]) == (None, True)
    assert "release 2 has no scores of these queries" in gate["sentence"]


def test_slices_are_reported_and_compared_with_the_previous_release(
    make_job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    judged, file = beginnings(range(0, 90, 2)), tmp_path / "judged.jsonl"
    languages = ["de" if number % 3 else "fr" for number in range(45)]
    lines = [
        json.dumps({"query": query, "id": row_id, "language": language})
        for (query, ids), language in zip(judged.items(), languages, strict=True)
        for row_id in ids
    ]
    file.write_text("\n".join(lines))
    recorded: dict[tuple[str, ...], float] = {}
    monkeypatch.setattr(
        metrics,
        "listeners",
        [lambda series, value, labels: recorded.update({(series.name, *labels.values()): value})],
    )
    settings = (*OFF, f"gates.relevance.queries={file}", "gates.relevance.slices=language")
    first = nightly(make_job(*settings), Stages())
    rows = pq.read_table(Path(first.root, current_manifest(Path(first.root)).relevance.path)).to_pylist()
    assert [row["slice"] for row in rows] == languages
    gates = first.facts["gates"]
    assert gates["relevance_recall_at_10"]["value"] == pytest.approx(np.mean([row["recall"] for row in rows]))
    assert gates["relevance_mrr_at_10"]["value"] == pytest.approx(
        np.mean([row["reciprocal_rank"] for row in rows])
    )
    german = np.mean([row["score"] for row in rows if row["slice"] == "de"])
    assert recorded["manta_relevance_slice", "nDCG@10", "de"] == pytest.approx(german)
    assert f"{german:.3f} [" in Path(first.report).read_text()
    second = Path(nightly(make_job(*settings, "index.kind=hnsw"), Stages()).report).read_text()
    assert "since release 1" in second
    assert "Slices by the column language" in second


def test_ids_that_are_not_in_the_corpus_are_counted_and_left_out(make_job: Make, tmp_path: Path):
    judged = beginnings(range(0, 20, 2))
    odd = {TEXTS[50]: ["row-00050", "gone-1"], TEXTS[51]: ["gone-1", "gone-2"]}
    job = make_job(*OFF, judge(tmp_path / "judged.jsonl", {**judged, **odd}))
    outcome = nightly(job, Stages())
    sentence = outcome.facts["gates"]["relevance"]["sentence"]
    assert "nDCG@10 of 11 queries" in sentence
    assert "not in the corpus: 2 of 23; queries that have no other, left out: 1" in sentence
    assert stored_scores(outcome)[TEXTS[50]] == 1, "of its relevant rows in the corpus, all are first"


@pytest.mark.parametrize("chunks", [(), ("corpus.chunk.by=sentences",)])
def test_a_file_without_an_id_of_the_corpus_is_refused_before_encoding(
    make_job: Make, tmp_path: Path, chunks: tuple[str, ...]
):
    before = " before they are cut" if chunks else ""
    words = f"expected ids of rows of the corpus{before}, found none of its 2 ids, such as 'row', is in the"
    wrong = make_job(*OFF, judge(tmp_path / "wrong.jsonl", {"a": ["row", "x"]}), *chunks)
    stages = Stages()
    with pytest.raises(DataError, match=words):
        nightly(wrong, stages)
    assert "ingest" in stages.seconds()
    assert "encode" not in stages.seconds()
    with pytest.raises(DataError, match=words):
        plan(wrong, Stages(), seconds=0.1)
    problems = {check.name: check.problem for check in preflight(wrong, Stages())}
    assert "found none of its 2 ids" in (problems["queries"] or "")
    right = make_job(*OFF, judge(tmp_path / "right.jsonl", {"a": ["row", "row-00399"]}), *chunks)
    assert plan(right, Stages(), seconds=0.1).rows >= 400


def test_pairs_are_compared_after_the_transform(make_job: Make, tmp_path: Path):
    rng = np.random.default_rng(0)
    left, right, gold = TEXTS[:30], TEXTS[30:60], rng.random(30)
    pq.write_table(
        pa.table({"sentence1": left, "sentence2": right, "score": gold}), tmp_path / "pairs.parquet"
    )
    outcome = nightly(
        make_job(
            "whiten.mode=on", "gates.recall_at_10=", f"gates.relevance.queries={tmp_path}/pairs.parquet"
        ),
        Stages(),
    )
    release, store = open_release(outcome.root), open_store(outcome.root)
    assert release.manifest.transform is not None
    transform = load_transform(release.manifest.transform.read(store))
    x, y = (transform(release.encode(side)).astype(np.float64) for side in (left, right))
    cosines = (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    gate = outcome.facts["gates"]["relevance"]
    assert gate["value"] == pytest.approx(stats.spearmanr(cosines, gold).statistic, abs=1e-9)
    assert "Spearman's correlation of 30 pairs" in gate["sentence"]


@pytest.mark.parametrize("kind", ["pairs", "queries"])
def test_texts_that_the_encoder_does_not_know_are_counted(
    make_job: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
):
    words = ("dog", "man", "girl", "boy")
    file = write_words(tmp_path / "words.txt", words, np.eye(4, 24, dtype=np.float32))
    texts = ["dog", "zzzq", "girl"]
    if kind == "pairs":
        table = pa.table({"sentence1": texts, "sentence2": ["dog", "boy", "qqqz"], "score": [1.0, 0.5, 0]})
    else:
        table = pa.table({"query": texts, "id": ["row-00000", "row-00001", "row-00002"]})
    pq.write_table(table, tmp_path / "judged.parquet")
    (tmp_path / "queries.txt").write_text("\n".join(texts))
    settings = (f"gates.relevance.queries={tmp_path}/judged.parquet", f"gates.queries={tmp_path}/queries.txt")
    bounds = ("gates.unknown_tokens=", "corpus.max_quarantined=1")
    gates = nightly(make_job(*OFF, *settings, *bounds, f"encoder.path={file}"), Stages()).facts["gates"]
    unusable = {"pairs": 2, "queries": 1}[kind]
    assert f"; without a usable vector, which counts as 0: {unusable}" in gates["relevance"]["sentence"]
    assert "recall@10 of 2 queries of gates.queries" in gates["recall_at_10_queries"]["sentence"]
    assert "(queries without a usable vector, left out: 1)" in gates["recall_at_10_queries"]["sentence"]
    said = capfd.readouterr().err
    assert f"gates.relevance: {kind} without a usable vector, which count as 0: {unusable}" in said
    assert "gates.queries: queries without a usable vector, left out: 1" in said


def test_the_scores_belong_to_the_release_and_are_pruned_with_it(make_job: Make, tmp_path: Path):
    without = nightly(make_job(*OFF), Stages())
    assert b'"relevance":{"path"' not in Path(without.root, "releases/00000001/manifest.json").read_bytes()
    assert current_manifest(Path(without.root)).relevance is None
    for night in range(2):
        table = pa.table({"id": ["new"], "text": [f"{night} things"], "lang": ["en"]})
        pq.write_table(table, tmp_path / "corpus" / "part-9.parquet")
        judged = beginnings(range(10 * night, 10 * night + 4))
        nightly(make_job(*OFF, judge(tmp_path / "judged.jsonl", judged)), Stages())
    assert len(list(Path(without.root, "relevance").iterdir())) == 2
    releases = Releases(open_store(without.root))
    prune(releases, keep=1, grace_s=0)
    current = current_manifest(Path(without.root)).relevance
    assert current is not None
    assert [file.name for file in Path(without.root, "relevance").iterdir()] == [Path(current.path).name]


def test_a_plan_counts_judged_queries(
    make_job: Make, tmp_path: Path, encoder: Path, manta: Callable[..., CommandResult]
):
    make_job()  # writes the corpus
    file = judge(tmp_path / "judged.jsonl", beginnings(range(0, 20, 2)))
    planned = manta("plan", *job_arguments(tmp_path, encoder), file, "--rows-per-s", "1000")
    assert "judged   queries: 10, relevant ids: 20, for gates.relevance" in planned.out


def test_invalid_settings_and_files_are_refused_before_any_work(make_job: Make, tmp_path: Path):
    with pytest.raises(ConfigError, match="at_least has no effect without it"):
        make_job("gates.relevance.at_least=0.5")
    job = make_job(f"gates.relevance.queries={tmp_path / 'missing.csv'}")
    with pytest.raises(ConfigError, match="no such file"):
        nightly(job, Stages())
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match="expected a file, found a folder"):
        nightly(make_job(f"gates.relevance.queries={tmp_path / 'folder.csv'}"), Stages())
    assert not list((tmp_path / "releases").rglob("*.parquet"))
    problems = {check.name: check.problem for check in preflight(job, Stages())}
    assert "no such file" in (problems["queries"] or "")

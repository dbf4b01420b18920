"""A night from Parquet to a published index that plain faiss can serve.

Unchanged parts are kept; a candidate that fails a gate is not published.
"""

import json
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError, GatesRefused, SpaceMismatch
from pipeline.flows.night.gates.audit import remeasure
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers import metrics
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncodeSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.rows.schema import vector_matrix
from tests.flows.conftest import sentences, unit_hashes, write_corpus

Make = Callable[..., Job]
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize(("kind", "mode"), [("flat", "off"), ("IVF8,Flat", "on"), ("hnsw", "auto")])
def test_the_published_index_can_be_searched_with_faiss_alone(make_job: Make, kind: str, mode: str):
    job = make_job(f"index.kind={kind}", f"whiten.mode={mode}", "gates.recall_at_10=0.5")
    outcome = nightly(job, Stages())
    assert (outcome.status, outcome.release, outcome.rows) == ("published", 1, 400)
    release = open_release(outcome.root)
    texts = sentences(400)[:20]
    raw = load_encoder(job.encoder, EncodeSettings(), "cpu").encode(texts)
    plain = faiss.read_index(str(Path(outcome.root, outcome.facts["index"]["files"][0]["path"])))
    assert plain.ntotal == 400
    scores, addresses = plain.search(raw, 5)
    ours = release.search(raw, 5)
    np.testing.assert_allclose(ours["score"].to_numpy().reshape(20, 5), scores, atol=1e-6)
    found = {(row["query"], row["rank"]): row for row in ours.to_pylist()}
    for query, text in enumerate(texts):
        assert found[query, 1]["text"] == text, "a row finds itself first"
        assert found[query, 1]["score"] == pytest.approx(1, abs=1e-4)
    ids = pa.concat_tables(
        [pa.ipc.open_file(Path(outcome.root, ref.path)).read_all() for ref in release.manifest.ids]
    )
    by_address = dict(zip(ids["address"].to_pylist(), ids["id"].to_pylist(), strict=True))
    assert [by_address[address] for address in addresses[:, 0].tolist()] == [
        f"row-{row:05d}" for row in range(20)
    ]
    assert release.search(texts, 1)["id"].to_pylist() == [f"row-{row:05d}" for row in range(20)], (
        "texts are encoded by the release's own encoder"
    )


def test_units_are_parquet_files_of_the_encoders_vectors(make_job: Make):
    job = make_job("whiten.mode=off", "gates.recall_at_10=")
    nightly(job, Stages())
    releases = Releases(open_store(job.release.root))
    manifest = releases.current()
    assert manifest is not None
    tables = [pq.read_table(Path(job.release.root, unit.path)) for unit in manifest.units]
    assert tables[0].schema.names == ["id", "text_key", "vector", "text", "lang"]
    assert tables[0].schema.metadata[b"manta.space_id"].decode() == manifest.space_id
    assert not tables[0].schema.field("vector").nullable
    rows = pa.concat_tables(tables)
    assert sorted(rows["id"].to_pylist()) == [f"row-{row:05d}" for row in range(400)]
    expected = load_encoder(job.encoder, EncodeSettings(), "cpu").encode(rows["text"].to_pylist())
    np.testing.assert_array_equal(
        vector_matrix(rows["vector"]), expected, "the same bits in a worker's units and in one call here"
    )
    assert manifest.counts["total"] == manifest.rows + manifest.counts["quarantined"]
    assert releases.store.exists(f"releases/{manifest.release:08d}/report.html")


def test_a_second_night_without_changes_publishes_nothing(make_job: Make):
    job = make_job("whiten.mode=off", "gates.recall_at_10=")
    nightly(job, Stages())
    before = unit_hashes(Path(job.release.root))
    assert nightly(job, Stages()).status == "unchanged"
    assert unit_hashes(Path(job.release.root)) == before
    assert Releases(open_store(job.release.root)).numbers() == [1]


def test_added_files_make_a_new_release_and_keep_the_old_vectors(make_job: Make, tmp_path: Path):
    job = make_job("whiten.mode=off", "gates.recall_at_10=")
    first = nightly(job, Stages())
    before = unit_hashes(tmp_path / "releases")
    table = pa.table(
        {"id": ["new-1", "new-2"], "text": ["a new dog", "a new man reads"], "lang": ["en", "en"]}
    )
    pq.write_table(table, tmp_path / "corpus" / "part-9.parquet")
    second = nightly(job, Stages())
    assert (first.release, second.release, second.rows) == (1, 2, 402)
    assert before.items() <= unit_hashes(tmp_path / "releases").items(), "nothing that was published changed"
    assert {name: second.facts["counts"][name] for name in ("new", "changed", "deleted")} == {
        "new": 2,
        "changed": 0,
        "deleted": 0,
    }
    assert second.facts["counts"]["reused"] == 400
    assert second.facts["counts"]["encoded"] == 2
    found = open_release(job.release.root).search("a new man reads", 1).to_pylist()[0]
    assert found["id"] == "new-2"
    assert open_release(job.release.root, 1).manifest.rows == 400


def test_rollback_and_prune_keep_the_current_release_complete(make_job: Make, tmp_path: Path):
    job = make_job("whiten.mode=off", "gates.recall_at_10=", "index.kind=IVF8,Flat", "index.on_disk=always")
    nightly(job, Stages())
    table = pa.table({"id": ["new-1"], "text": ["a new dog"], "lang": ["en"]})
    pq.write_table(table, tmp_path / "corpus" / "part-9.parquet")
    nightly(job, Stages())
    releases = Releases(open_store(job.release.root))
    live = open_release(job.release.root)
    releases.rollback(1)
    assert live.refresh()
    assert (live.number, len(live)) == (1, 400)
    pruned = prune(releases, keep=1)
    assert (pruned.kept, pruned.removed) == ((1,), (2,))
    found = open_release(job.release.root).search(sentences(400)[5], 1).to_pylist()
    assert found[0]["id"] == "row-00005"
    again = nightly(job, Stages())
    assert (again.status, again.release, again.rows) == ("published", 4, 401)
    assert open_release(job.release.root).search("a new dog", 1)["id"].to_pylist() == ["new-1"]


@pytest.mark.parametrize("kind", ["flat", "IVF4,PQ4x4"])
def test_many_equal_texts_and_coarse_codes_can_be_published(make_job: Make, tmp_path: Path, kind: str):
    equal = pa.table(
        {
            "id": [f"same-{row}" for row in range(400)],
            "text": ["the same notice stands here"] * 400,
            "lang": ["en"] * 400,
        }
    )
    pq.write_table(equal, tmp_path / "corpus" / "part-9.parquet")
    outcome = nightly(make_job("whiten.mode=off", "gates.recall_at_10=", f"index.kind={kind}"), Stages())
    assert (outcome.status, outcome.rows) == ("published", 800)
    found = open_release(outcome.root).search("the same notice stands here", 100)["id"].to_pylist()
    assert any(name.startswith("same-") for name in found)


def test_an_index_kind_unknown_to_faiss_is_refused_before_any_work(make_job: Make, tmp_path: Path):
    with pytest.raises(ConfigError, match="ivf_flatt"):
        nightly(make_job("index.kind=ivf_flatt"), Stages())
    assert not list((tmp_path / "releases").rglob("*.parquet"))


def exact_recall(root: str, texts: list[str], k: int = 10) -> float:
    """Compute the current release's recall for these texts by a matrix product over its stored vectors."""
    release = open_release(root)
    rows = pa.concat_tables([pq.read_table(Path(root, unit.path)) for unit in release.manifest.units])
    queries, vectors = (
        x / np.linalg.norm(x, axis=1, keepdims=True)
        for x in (release.encode(texts), vector_matrix(rows["vector"]))
    )
    scores, ids = queries @ vectors.T, np.array(rows["id"].to_pylist())
    index = faiss.read_index(str(Path(root, release.manifest.index.files[0].path)))
    hits = 0
    for row, (found, _) in enumerate(zip(index.search(release.encode(texts), k)[1], texts, strict=True)):
        addresses = [address for address in found.tolist() if address >= 0]
        answered = np.isin(
            ids, [f"row-{50 * (address >> 32) + (address & 0xFFFFFFFF):05d}" for address in addresses]
        )
        hits += int((scores[row][answered] >= np.sort(scores[row])[-k] - 1e-6).sum())
    return hits / (k * len(texts))


@pytest.mark.parametrize("kind", ["IVF8,Flat", "hnsw"])
def test_recall_is_reported_for_given_queries_beside_rows(
    make_job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    queries = [text.rpartition(" ")[0] for text in sentences(40, seed=5)]
    (tmp_path / "queries.txt").write_text("\n\n".join(queries))
    effort = ["index.nprobe=1"] if kind != "hnsw" else []
    job = make_job(
        f"index.kind={kind}",
        *effort,
        "gates.recall_at_10=0",
        "whiten.mode=off",
        f"gates.queries={tmp_path / 'queries.txt'}",
    )
    outcome = nightly(job, Stages())
    gate = outcome.facts["gates"]["recall_at_10_queries"]
    assert gate["value"] == pytest.approx(exact_recall(outcome.root, queries[1::2]), abs=1e-9)
    assert (gate["threshold"], gate["passed"]) == (None, True)
    assert "by every other query), reported only" in gate["sentence"]
    assert "recall@10 of 40 queries of gates.queries" in gate["sentence"]
    page = Path(outcome.report).read_text()
    assert "recall@10 queries" in page
    for name in ("query_drift", "far_queries"):
        compared = outcome.facts["gates"][name]
        assert (compared["threshold"], compared["passed"]) == (None, True)
        assert 0 <= compared["value"] <= 1
        assert compared["sentence"][1:] in page  # with its interval
    again = remeasure(job, Stages()).gates["recall_at_10_queries"]
    assert again.model_dump(mode="json") == gate
    monkeypatch.setattr("pipeline.flows.night.user_queries._MAX_QUERIES", 30)
    sentence = remeasure(job, Stages()).gates["recall_at_10_queries"].sentence
    assert "recall@10 of 30 queries of gates.queries (only the first 30 are read) is " in sentence


def test_queries_of_users_may_be_vectors_of_the_encoder(make_job: Make, tmp_path: Path):
    queries = [text.rpartition(" ")[0] for text in sentences(20, seed=5)]
    (tmp_path / "queries.txt").write_text("\n".join(queries))
    job = make_job("index.kind=IVF8,Flat", "index.nprobe=1", "gates.recall_at_10=0", "whiten.mode=off")
    root = nightly(job, Stages()).root
    release = open_release(root)
    rows = {
        "text": [text if number % 2 else None for number, text in enumerate(queries)],
        "vector": [None if n % 2 else vector.tolist() for n, vector in enumerate(release.encode(queries))],
        "space_id": [release.space_id] * len(queries),
    }

    def recall(file: str) -> float | None:
        gates = job.gates.model_copy(update={"queries": str(tmp_path / file)})
        return (
            remeasure(job.model_copy(update={"gates": gates}), Stages()).gates["recall_at_10_queries"].value
        )

    pq.write_table(pa.table(rows), tmp_path / "queries.parquet")
    assert recall("queries.parquet") == recall("queries.txt")
    rows["space_id"] = ["another"] * len(queries)
    pq.write_table(pa.table(rows), tmp_path / "other.parquet")
    with pytest.raises(SpaceMismatch, match=f"space {release.space_id}, found another; make the file"):
        nightly(make_job(f"gates.queries={tmp_path / 'other.parquet'}", "index.nprobe=2"), Stages())


def test_a_night_is_refused_if_its_effort_is_too_low_for_given_queries(
    make_job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    queries = [text.rpartition(" ")[0] for text in sentences(40, seed=5)]
    (tmp_path / "queries.txt").write_text("\n".join([*queries, *queries[:7]]))
    chosen = ("index.kind=IVF8,Flat", "gates.recall_at_10=0.5", "gates.recall_at_10_queries=0.95")
    settings = (*chosen, "whiten.mode=off", f"gates.queries={tmp_path / 'queries.txt'}")
    with pytest.raises(GatesRefused, match=r"recall@10 of 40 queries .*raise index.nprobe from 1") as caught:
        nightly(make_job(*settings, "index.nprobe=1"), Stages())
    assert "repeated queries, used once: 7" in str(caught.value)
    recorded: dict[tuple[str, ...], float] = {}
    monkeypatch.setattr(
        metrics,
        "listeners",
        [lambda series, value, labels: recorded.update({(series.name, *labels.values()): value})],
    )
    outcome = nightly(make_job(*settings), Stages())
    release = Releases(open_store(outcome.root)).current()
    gates, effort = outcome.facts["gates"], release.index.settings["effort"]
    assert (gates["recall_at_10_queries"]["passed"], gates["recall_at_10_queries"]["threshold"]) == (
        True,
        0.95,
    )
    assert release.index.trained_on["rows_effort"] < effort
    assert recorded["manta_search_effort", "rows"] == release.index.trained_on["rows_effort"]
    assert recorded["manta_search_effort", "rows and queries"] == effort
    [choice] = [each for each in release.choices if each.what == "search effort for gates.queries"]
    assert (choice.chosen, choice.numbers["effort"]) == ("raised", effort)
    assert choice.sentence in Path(outcome.report).read_text()


def test_later_nights_measure_given_queries_without_a_search_of_all_rows(make_job: Make, tmp_path: Path):
    queries = [text.rpartition(" ")[0] for text in sentences(60, seed=5)]
    file = tmp_path / "queries.txt"
    file.write_text("\n".join(queries))
    settings = ("index.kind=IVF8,Flat", "gates.recall_at_10=0.9", "whiten.mode=off", f"gates.queries={file}")

    def night(name: str, texts: list[str]) -> tuple[str, float]:
        rows = pa.table({"id": [f"{name}-{row}" for row in range(len(texts))], "text": texts})
        pq.write_table(rows.append_column("lang", pa.array(["en"] * len(texts))), tmp_path / f"corpus/{name}")
        outcome = nightly(make_job(*settings), Stages())
        chosen = {
            choice.what: choice.chosen for choice in Releases(open_store(outcome.root)).current().choices
        }
        return chosen.get("index truth", "none"), outcome.facts["gates"]["recall_at_10_queries"]["value"]

    assert night("part-8.parquet", sentences(20, seed=6))[0] == "none"
    truth, recall = night("part-9.parquet", sentences(30, seed=7))
    assert (truth, recall) == ("carried", pytest.approx(remeasured(make_job(*settings)), abs=1e-9))
    file.write_text("\n".join(queries[5:]))
    assert night("part-9.parquet", sentences(29, seed=7))[0] == "carried"
    file.write_text("\n".join([*queries[5:], "a text of its own"]))
    truth, recall = night("part-9.parquet", sentences(28, seed=7))
    assert (truth, recall) == ("scanned", pytest.approx(remeasured(make_job(*settings)), abs=1e-9))


def remeasured(job: Job) -> float:
    """Return the recall of gates.queries by an exact search of all rows."""
    value = remeasure(job, Stages()).gates["recall_at_10_queries"].value
    assert value is not None
    return float(value)


def test_unreadable_queries_are_refused_before_any_work(make_job: Make, tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        nightly(make_job(f"gates.queries={tmp_path / 'missing.txt'}"), Stages())
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(DataError, match="a text on each line, or a vector in each row"):
        nightly(make_job(f"gates.queries={tmp_path / 'blank.txt'}"), Stages())
    assert not list((tmp_path / "releases").rglob("*.parquet"))


def test_a_refused_candidate_is_kept_and_nothing_is_published(make_job: Make):
    job = make_job("index.kind=IVF8,Flat", "index.nprobe=1", "gates.recall_at_10=1.0", "whiten.mode=off")
    with pytest.raises(GatesRefused, match="recall@10") as caught:
        nightly(job, Stages())
    assert caught.value.exit_code == 5
    assert Releases(open_store(job.release.root)).current() is None
    candidate = open_store(caught.value.candidate)
    assert json.loads(candidate.read("manifest.json"))["release"] == 0
    assert b"recall" in candidate.read("report.html")


def test_another_encoder_has_another_space_and_the_old_release_stays_readable(make_job: Make):
    job = make_job("whiten.mode=off", "gates.recall_at_10=")
    nightly(job, Stages())
    other = job.model_copy(update={"encoder": job.encoder.model_copy(update={"pooling": "cls"})})
    nightly(other, Stages())
    first, second = open_release(job.release.root, 1), open_release(job.release.root)
    assert first.space_id != second.space_id
    vectors = first.encode(["a dog runs"])
    with pytest.raises(SpaceMismatch, match=f"expected vectors of space {second.space_id}"):
        second.search(vectors, 1, space_id=first.space_id)


def test_invalid_rows_are_quarantined_and_every_row_is_counted(make_job: Make, tmp_path: Path):
    texts = ["", None, "   \t", "nul \0 inside", "ok " * 300_000, "fine", "fine too", "twice"]
    ids = ["e", "n", "w", "z", "long", "f", None, "row-00000"]
    pq.write_table(
        pa.table({"id": ids, "text": texts, "lang": ["en"] * 8}), tmp_path / "corpus" / "zz-dirty.parquet"
    )
    outcome = nightly(make_job("whiten.mode=off", "gates.recall_at_10=", "gates.lost_tokens="), Stages())
    counts = outcome.facts["counts"]
    assert (counts["total"], outcome.rows, counts["quarantined"], counts["truncated"]) == (408, 403, 5, 1)
    manifest = Releases(open_store(outcome.root)).current()
    assert manifest is not None
    corpus = Corpus.load(open_store(outcome.root), manifest.corpus.path)
    assert corpus is not None
    assert corpus.quarantine is not None
    reasons = (
        pq.read_table(Path(outcome.root, corpus.quarantine.path))
        .select(["file", "row", "reason"])
        .to_pylist()
    )
    assert {(row["row"], row["reason"]) for row in reasons} == {
        (0, "empty"),
        (1, "empty"),
        (2, "empty"),
        (6, "null_id"),
        (7, "duplicate_id"),
    }


def test_too_few_rows_for_whitening_are_refused_or_left_raw_by_the_setting(make_job: Make, tmp_path: Path):
    for file in (tmp_path / "corpus").glob("*.parquet"):
        file.unlink()
    write_corpus(tmp_path / "corpus", count=100, files=1)
    with pytest.raises(DataError, match=r"whiten.*too few"):
        nightly(make_job("whiten.mode=on", "gates.recall_at_10="), Stages())
    assert nightly(make_job("gates.recall_at_10="), Stages()).facts["transform_id"] is None

"""A corpus that lost rows or texts since the previous release is refused before anything is encoded."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import GatesRefused
from pipeline.flows.night.gates import corpus_gates
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.publish import NightOutcome
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.manifest import Gate
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.flows.conftest import current_manifest, encoded_units, sentences

Rows = Sequence[tuple[object, str | None]]
pytestmark = pytest.mark.usefixtures("cluster")
ROWS = [(f"id-{number:02d}", text) for number, text in enumerate(sentences(40, seed=9))]
RELEASED = ("whiten.mode=off", "gates.recall_at_10=", "corpus.keep=[]", "corpus.max_quarantined=0.9")


@pytest.fixture
def night(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., NightOutcome]:
    """Run a night over rows (id, text) in one file."""
    for file in (tmp_path / "corpus").iterdir():
        file.unlink()

    def run(rows: Rows, *overrides: str, columns: Sequence[str] = ("id", "text")) -> NightOutcome:
        ids, texts = zip(*rows, strict=True)
        table = pa.table({columns[0]: ids, columns[1]: pa.array(texts, pa.string())})
        pq.write_table(table, tmp_path / "corpus" / "rows.parquet")
        return nightly(make_job(*RELEASED, *overrides), Stages())

    return run


def refused(night: Callable[..., NightOutcome], rows: Rows, *overrides: str) -> GatesRefused:
    with pytest.raises(GatesRefused) as caught:
        night(rows, *overrides)
    assert caught.value.exit_code == 5
    return caught.value


def gates(outcome: NightOutcome) -> dict[str, Gate]:
    return {name: Gate.model_validate(gate) for name, gate in outcome.facts["gates"].items()}


def test_a_corpus_that_lost_most_rows_is_refused_before_encoding(
    night: Callable[..., NightOutcome], tmp_path: Path
):
    first = night(ROWS)
    assert "deleted_rows" not in gates(first), "a first night has nothing to compare with"
    before = encoded_units(tmp_path / "releases")
    changed = [*ROWS[:2], ("new", "a text that nobody wrote before")]
    error = refused(night, changed)
    assert error.refusals == (
        "38 of 40 rows of release 1 (95.0%) are not in the corpus any more; 20% at most; check the corpus; "
        "if this is intended, set gates.max_deleted=1 for one night",
    )
    assert encoded_units(tmp_path / "releases") == before, "nothing was encoded"
    assert error.gates["deleted_rows"]["value"] == pytest.approx(0.95)
    page = open_store(error.candidate).read("report.html").decode()
    assert "38 of 40 rows" in page
    assert '<td class="num fail">refused</td>' in page
    assert "id-" in page, "examples of deleted rows are shown"
    assert refused(night, changed).refusals == error.refusals, "again, from the corpus that was read"
    assert current_manifest(tmp_path / "releases").release == 1
    outcome = night(changed, "gates.max_deleted=1")
    assert (outcome.status, outcome.release, outcome.rows) == ("published", 2, 3)
    assert gates(outcome)["deleted_rows"].value == pytest.approx(0.95)
    assert "rows deleted" in Path(outcome.report).read_text()


def test_a_held_root_compares_with_the_release_that_it_holds(
    night: Callable[..., NightOutcome], tmp_path: Path
):
    night(ROWS)
    Releases(open_store(tmp_path / "releases")).hold()
    assert "9 of 40 rows of release 1" in str(refused(night, ROWS[:31]))
    for kept in (36, 33):
        outcome = night(ROWS[:kept])
        assert outcome.status == "held"
    assert "9 of 40 rows of release 1" in str(refused(night, ROWS[:31])), "candidates are no releases"
    assert night(ROWS).status == "unchanged"


def test_after_a_rollback_the_older_release_is_compared(night: Callable[..., NightOutcome], tmp_path: Path):
    night(ROWS)
    more = [(f"more-{number}", text) for number, text in enumerate(sentences(60, seed=3))]
    night([*ROWS, *more])
    assert "60 of 100 rows of release 2" in str(refused(night, ROWS))
    Releases(open_store(tmp_path / "releases")).rollback(1)
    assert night(ROWS).status == "unchanged"
    assert "9 of 40 rows of release 1" in str(refused(night, ROWS[:31]))
    assert gates(night([*ROWS[:32], *more]))["deleted_rows"].value == pytest.approx(0.2)


def test_rows_of_skipped_files_are_gone(
    night: Callable[..., NightOutcome], make_job: Callable[..., Job], tmp_path: Path
):
    night(ROWS)
    corpus, settings = tmp_path / "corpus", (*RELEASED, "corpus.bad_files=skip")
    for number in range(4):
        rows = ROWS[number * 10 : (number + 1) * 10]
        table = pa.table({"id": [row[0] for row in rows], "text": [row[1] for row in rows]})
        pq.write_table(table, corpus / f"rows-{number}.parquet")
    (corpus / "rows.parquet").unlink()
    assert nightly(make_job(*settings), Stages()).status == "unchanged"
    damaged = (corpus / "rows-1.parquet").read_bytes()[:-9]
    (corpus / "rows-1.parquet").write_bytes(damaged)
    with pytest.raises(GatesRefused, match=r": refused: 10 of 40 rows of release 1 .*gates\.max_deleted=1"):
        nightly(make_job(*settings), Stages())


def test_rows_beyond_the_largest_number_of_rows_are_gone(night: Callable[..., NightOutcome]):
    night(ROWS)
    sentence = str(refused(night, ROWS, "corpus.max_rows=20"))
    assert "20 of 40 rows" in sentence
    assert "corpus.max_rows is 20, it was null; 20 rows beyond corpus.max_rows not read;" in sentence
    assert night(ROWS[:39], "corpus.max_rows=39").status == "published"


def test_files_that_are_read_in_part_are_not_called_skipped(
    night: Callable[..., NightOutcome], make_job: Callable[..., Job], tmp_path: Path
):
    night(ROWS)
    corpus, settings = tmp_path / "corpus", (*RELEASED, "corpus.max_rows=15")
    for number in range(2):  # JSON lines do not say how many rows follow
        lines = [json.dumps({"id": row[0], "text": row[1]}) for row in ROWS[number * 20 : (number + 1) * 20]]
        (corpus / f"rows-{number}.jsonl").write_text("\n".join(lines))
    (corpus / "rows.parquet").unlink()
    with pytest.raises(GatesRefused, match=r"it was null; the rest of 2 files beyond corpus\.max_rows not"):
        nightly(make_job(*settings), Stages())
    nightly(make_job(*settings, "gates.max_deleted="), Stages())
    choices = current_manifest(tmp_path / "releases").choices
    (choice,) = (each for each in choices if each.what == "corpus")
    assert "2 of 2 files were read, the rest of 2 files beyond corpus.max_rows not read;" in choice.sentence


@pytest.mark.parametrize(("kept", "passes"), [(32, True), (31, False)])
def test_a_fifth_of_the_rows_may_vanish(night: Callable[..., NightOutcome], kept: int, passes: bool):
    night(ROWS)
    if passes:
        assert gates(night(ROWS[:kept]))["deleted_rows"].value == pytest.approx(0.2)
    else:
        assert "9 of 40 rows" in str(refused(night, ROWS[:kept]))
        assert night(ROWS[:kept], "gates.max_deleted=").status == "published", "null switches the gate off"


def test_few_rows_are_not_compared(night: Callable[..., NightOutcome]):
    night(ROWS[:9])
    assert night(ROWS[:2]).status == "published"


def test_other_ids_are_refused_with_the_setting_that_changed(
    night: Callable[..., NightOutcome], make_job: Callable[..., Job], tmp_path: Path
):
    def write() -> None:
        table = pa.table(
            {"id": [row[0] for row in ROWS], "key": list("ab" * 20), "text": [row[1] for row in ROWS]}
        )
        table = table.set_column(1, "key", pa.array([f"key-{number}" for number in range(40)]))
        pq.write_table(table, tmp_path / "corpus" / "rows.parquet")

    write()
    nightly(make_job(*RELEASED), Stages())
    with pytest.raises(GatesRefused, match=r"40 of 40 rows .*; corpus.id is 'key', it was 'id'; check"):
        nightly(make_job(*RELEASED, "corpus.id=key"), Stages())
    other = [(f"other-{number}", text) for number, (_, text) in enumerate(ROWS)]
    assert "40 of 40 rows" in str(refused(night, other))


def test_equal_ids_of_another_type_are_not_deleted(night: Callable[..., NightOutcome]):
    night([(str(number), text) for number, (_, text) in enumerate(ROWS)])
    outcome = night([(number, text) for number, (_, text) in enumerate(ROWS[:-1])])
    assert gates(outcome)["deleted_rows"].value == pytest.approx(1 / 40)


def test_documents_are_counted_not_chunks(night: Callable[..., NightOutcome], make_job: Callable[..., Job]):
    long = [(name, " ".join(f"{text}." for _, text in ROWS[:12])) for name, _ in ROWS[:2]]
    chunked = ("corpus.chunk.by=sentences", "corpus.chunk.max_tokens=34")
    night([*ROWS[2:], *long])
    outcome = night([*ROWS[2:], *long], *chunked)
    assert gates(outcome)["deleted_rows"].value == 0, "the same documents, now in chunks"
    assert gates(outcome)["shorter_texts"].value is None, "chunks are not compared with texts"
    assert outcome.facts["counts"]["chunks"] > 50
    outcome = night([*ROWS[2:], long[0], (long[1][0], "Short now.")], *chunked)
    assert outcome.facts["counts"]["deleted"] > 5
    assert gates(outcome)["deleted_rows"].value == 0, "chunks are gone, but no document"
    assert "10 of 40 documents" in str(refused(night, [*ROWS[12:], *long], *chunked))


def test_another_encoder_does_not_hide_deleted_rows(night: Callable[..., NightOutcome]):
    night(ROWS)
    assert "39 of 40 rows" in str(refused(night, ROWS[:1], "encoder.pooling=cls"))


@pytest.mark.parametrize(
    ("texts", "gate", "sentence"),
    [
        ([text if number % 3 else None for number, (_, text) in enumerate(ROWS)], "empty_texts", "no text"),
        (
            [text[:9] + str(number) for number, (_, text) in enumerate(ROWS)],
            "shorter_texts",
            "bytes on average",
        ),
        (
            ["the same notice for all rows of the corpus, as an error page has it"] * 40,
            "repeated_texts",
            "97.5%",
        ),
    ],
)
def test_texts_that_are_suddenly_bad_are_refused(
    night: Callable[..., NightOutcome], texts: list[str | None], gate: str, sentence: str
):
    night(ROWS)
    rows = [(row_id, text) for (row_id, _), text in zip(ROWS, texts, strict=True)]
    error = refused(night, rows, "gates.max_deleted=")
    assert [name for name, each in error.gates.items() if not each["passed"]] == [gate]
    assert sentence in str(error)
    assert f"set gates.max_{gate}=1 for one night" in str(error)
    assert night(rows, "gates.max_deleted=", f"gates.max_{gate}=").status == "published"
    assert night([*rows, ("more", "a further row")]).status == "published", "bad texts are the usual ones now"


def test_texts_of_a_release_without_their_counts_are_compared(
    night: Callable[..., NightOutcome], tmp_path: Path
):
    night([(row_id, "a man reads a book") for row_id, _ in ROWS])
    releases = Releases(open_store(tmp_path / "releases"))
    manifest = current_manifest(tmp_path / "releases")
    counts = {name: count for name, count in manifest.counts.items() if name != "distinct_texts"}
    releases.publish(manifest.model_copy(update={"counts": counts, "parent": 1}), lambda _: "")
    found = gates(night(ROWS))["repeated_texts"]
    assert found.sentence.startswith("0.0% of the texts repeat another one, 97.5% in release 2")


def test_a_release_whose_corpus_is_gone_is_compared_by_its_number_of_rows(
    night: Callable[..., NightOutcome], tmp_path: Path
):
    night(ROWS)
    (tmp_path / "releases" / current_manifest(tmp_path / "releases").corpus.path).unlink()
    assert "at least 30 of 40 rows" in str(refused(night, ROWS[:10]))
    outcome = night(ROWS[:35])
    assert gates(outcome)["empty_texts"].sentence == "not checked: the corpus of release 1 cannot be read"
    assert "not checked" in Path(outcome.report).read_text()


def test_a_refused_night_can_be_pruned_and_run_again(night: Callable[..., NightOutcome], tmp_path: Path):
    night(ROWS)
    refused(night, ROWS[:10])
    prune(Releases(open_store(tmp_path / "releases")), keep=1)
    assert "30 of 40 rows" in str(refused(night, ROWS[:10]))
    assert night(ROWS).status == "unchanged"


def test_rows_that_are_only_quarantined_are_counted_by_a_night_without_changes(
    night: Callable[..., NightOutcome], make_job: Callable[..., Job], tmp_path: Path
):
    night(ROWS)
    bad = pa.table({"id": ["id-01", "id-02", "x"], "text": ["twice", "twice", ""]})
    pq.write_table(bad, tmp_path / "corpus" / "zz.parquet")
    metrics_file = tmp_path / "manta.prom"
    outcome = nightly(make_job(*RELEASED, f"release.metrics_file={metrics_file}"), Stages())
    counts = outcome.facts["counts"]
    assert (outcome.status, outcome.rows, counts["total"], counts["quarantined"]) == ("unchanged", 40, 43, 3)
    assert (counts["quarantined_duplicate_id"], counts["quarantined_empty"]) == (2, 1)
    assert pq.read_table(outcome.facts["quarantine"]).num_rows == 3
    [note] = outcome.facts["notes"]
    assert "3 rows of the corpus are quarantined: duplicate_id 2 (before 0), empty 1 (before 0); see" in note
    metrics = metrics_file.read_text()
    assert 'ray_manta_quarantined_rows_total{reason="duplicate_id"} 2' in metrics
    assert "ray_manta_release_number 1.0\n" in metrics


def test_files_that_are_left_out_are_counted_by_a_night_without_changes(
    night: Callable[..., NightOutcome], tmp_path: Path
):
    night(ROWS)
    (tmp_path / "corpus" / "zz.jsonl.gz").write_bytes(b"damaged")
    outcome = night(ROWS, "corpus.bad_files=skip")
    assert (outcome.status, outcome.facts["counts"]["bad_files"]) == ("unchanged", 1)
    [note] = outcome.facts["notes"]
    assert "files of the corpus left out: unreadable files 1 (before 0); see" in note
    assert pq.read_table(outcome.facts["quarantine"])["reason"].to_pylist() == ["bad_file"]
    assert night([*ROWS, ("id-99", "one more")], "corpus.bad_files=skip").facts["counts"]["bad_files"] == 1


def test_gates_that_were_set_later_are_said_to_be_unmeasured(night: Callable[..., NightOutcome]):
    night(ROWS)
    assert night(ROWS).facts["notes"] == []
    [note] = night(ROWS, "gates.p99_ms=1e-9", "gates.max_deleted=0.5").facts["notes"]
    assert note == (
        "not measured, because there is no new candidate: gates.p99_ms; `manta evaluate` with these settings "
        "measures release 1"
    )


def test_a_refused_night_reports_the_current_release(night: Callable[..., NightOutcome], tmp_path: Path):
    night(ROWS)
    metrics_file = tmp_path / "manta.prom"
    for overrides in ((), ("gates.max_deleted=", "gates.max_size_gib=1e-9")):
        refused(night, ROWS[:20], f"release.metrics_file={metrics_file}", *overrides)
        metrics = metrics_file.read_text()
        assert "ray_manta_release_number 1.0\n" in metrics
        assert "ray_manta_release_rows 40.0\n" in metrics
        assert "ray_manta_release_published_timestamp_seconds" in metrics
        assert 'ray_manta_nights_total{exit_code="5",outcome="refused"} 1.0\n' in metrics
    assert 'ray_manta_gate_passed{gate="size_gib"} 0.0' in metrics


def test_another_space_can_be_forbidden(night: Callable[..., NightOutcome]):
    night(ROWS)
    error = refused(night, ROWS, "encoder.pooling=cls", "gates.space=same")
    assert "another space than those of release 1: encoder.pooling changed" in str(error)
    assert gates(night(ROWS, "encoder.pooling=cls"))["space"].passed


def test_a_unit_that_is_gone_hardly_changes_the_mean_length_of_many(monkeypatch: pytest.MonkeyPatch):
    lengths = {ordinal: 5_000 if ordinal % 5 == 0 else 200 for ordinal in range(300)}
    monkeypatch.setattr(corpus_gates, "_mean_bytes_of_unit", lambda _, unit: lengths[unit.ordinal])
    units = [SimpleNamespace(ordinal=ordinal, rows=100, dead=0) for ordinal in lengths]
    mean = corpus_gates._mean_bytes(None, units)
    assert corpus_gates._mean_bytes(None, units[:64]) == sum(list(lengths.values())[:64]) / 64
    for gone in range(len(units)):
        others = units[:gone] + units[gone + 1 :]
        assert abs(corpus_gates._mean_bytes(None, others) - mean) <= 4_800 / 64


def test_rows_that_a_new_filter_leaves_out_are_judged_apart_from_deleted_rows(
    night: Callable[..., NightOutcome], tmp_path: Path
):
    """6 of 40 rows are deleted and 8 filtered, each less than 20 %; then 16 are filtered."""
    night(ROWS)
    some = night(ROWS[:34], "corpus.where=id not like '%-0%' or id = 'id-00' or id = 'id-01'")
    assert (some.status, some.rows) == ("published", 26)
    assert (some.facts["counts"]["filtered"], some.facts["counts"]["total"]) == (8, 34)
    found = gates(some)
    assert found["deleted_rows"].value == pytest.approx(6 / 40)
    assert found["filtered_rows"].value == pytest.approx(8 / 40)
    assert found["row_conservation"].passed
    page = Path(some.report).read_text()
    assert "filtered: corpus.where" in page
    assert "8 rows filtered (corpus.where 8)" in page
    where = "corpus.where=id like '%-2%'"
    error = refused(night, ROWS[:34], where)
    assert error.refusals == (
        "16 of 26 rows of release 2 (61.5%) are left out by corpus.where; 20% at most; corpus.where is "
        "\"id like '%-2%'\", it was \"id not like '%-0%' or id = 'id-00' or id = 'id-01'\"; 24 rows filtered "
        "(corpus.where 24); check the corpus; if this is intended, set gates.max_deleted=1 for one night",
    )
    assert error.gates["deleted_rows"]["value"] == 0
    assert night(ROWS[:34], where, "gates.max_deleted=1").rows == 10
    everything = night(ROWS[:34])
    assert (everything.rows, everything.facts["counts"]["new"]) == (34, 24)
    assert "filtered_rows" not in gates(everything)
    assert "filtered" not in everything.facts["counts"]


def test_a_night_in_which_only_filtered_rows_changed_counts_them(night: Callable[..., NightOutcome]):
    where = "corpus.where=id not like 'x%'"
    night([*ROWS, ("x-1", "a text")], where)
    outcome = night([*ROWS, ("x-1", "a text"), ("x-2", None)], where)
    assert outcome.status == "unchanged"
    assert (outcome.facts["counts"]["filtered"], outcome.facts["counts"]["total"]) == (2, 42)

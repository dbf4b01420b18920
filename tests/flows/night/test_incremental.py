"""Nights that change: after any sequence, the release equals that of a first night on the same corpus."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.planning.night_plan import plan
from pipeline.flows.night.publish import NightOutcome
from pipeline.index.search.search import open_release
from pipeline.log import Stages, listening
from pipeline.settings import Job
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import open_store
from pipeline.store.records.dead import Dead
from pipeline.store.records.release_units import UnitTable
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.rows.schema import vector_matrix
from tests.flows.conftest import ANY_CORPUS, job_arguments, part_size, sentences
from tests.models.folders import save_folder

pytestmark = pytest.mark.usefixtures("cluster")
TEXTS = sentences(80, seed=3)
Corpus = dict[str, list[tuple[str, str]]]


class Night:
    """A folder of input files that is edited, and the root of its nights."""

    def __init__(self, folder: Path, encoder: Path, *overrides: str) -> None:
        self.folder, self.input = folder, folder / "corpus"
        self.input.mkdir(parents=True)
        arguments = [
            argument for argument in job_arguments(folder, encoder) if not argument.startswith("corpus.keep")
        ]
        self.job: Job = load_settings(
            Job,
            None,
            (
                *arguments,
                "encode.unit_rows=16",
                "index.queries=20",
                "corpus.keep=[]",
                "corpus.max_quarantined=1",
                *ANY_CORPUS,
                *overrides,
            ),
        )
        self.files: Corpus = {}
        self.clock = 0

    def put(self, files: Corpus) -> None:
        """Make the folder contain exactly these files, each with a modification time of its own."""
        for name in self.files.keys() - files.keys():
            (self.input / name).unlink()
        for name, rows in files.items():
            if self.files.get(name) != rows:
                self.clock += 1
                columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                pq.write_table(pa.table(columns, names=["id", "text"]), self.input / name)
                os.utime(self.input / name, ns=(self.clock, self.clock))
        self.files = dict(files)

    def run(self) -> NightOutcome:
        return nightly(self.job, Stages())

    def current(self) -> ReleaseManifest:
        found = Releases(open_store(self.job.release.root)).current()
        assert found is not None
        return found


def live_vectors(night: Night) -> dict[str, bytes]:
    """Read the bytes of each live vector, by id, from the release's units."""
    manifest, store = night.current(), open_store(night.job.release.root)
    dead = Dead.load(store, manifest.dead)
    found: dict[str, bytes] = {}
    for unit in manifest.units:
        table = pq.read_table(store.open(unit.path, unit.sha256))
        rows = np.delete(np.arange(unit.rows + len(unit.dropped)), unit.dropped)
        live = ~np.isin(rows, dead.rows_of(unit.ordinal))
        vectors = vector_matrix(table["vector"])[live]
        ids = table["id"].filter(pa.array(live)).to_pylist()
        assert not found.keys() & set(ids)
        found |= dict(zip(ids, (row.tobytes() for row in vectors), strict=True))
    assert len(found) == manifest.rows
    return found


def moments(night: Night) -> Moments:
    manifest, store = night.current(), open_store(night.job.release.root)
    assert manifest.moments is not None
    return Moments.from_bytes(manifest.moments.read(store))


def assert_equal_releases(incremental: Night, scratch: Night) -> None:
    """Compare two releases: vectors bit for bit, moments to rounding, answers but for the order of ties."""
    vectors, expected_vectors = live_vectors(incremental), live_vectors(scratch)
    assert vectors == expected_vectors
    found, expected = moments(incremental), moments(scratch)
    assert found.count == expected.count == len(vectors)
    scale = np.abs(expected.scatter).max()
    np.testing.assert_allclose(found.scatter, expected.scatter, rtol=0, atol=1e-10 * scale)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=0, atol=1e-10 * np.abs(expected.mean).max())
    queries = np.stack([np.frombuffer(vector, np.float32) for vector in list(vectors.values())[:10]])
    answers = [
        open_release(night.job.release.root).search(queries, len(vectors)) for night in (incremental, scratch)
    ]
    for query in range(len(queries)):
        rows = [table.filter(pa.array(table["query"].to_numpy() == query)) for table in answers]
        scores = [
            dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True)) for table in rows
        ]
        assert scores[0].keys() == scores[1].keys() == vectors.keys()
        assert all(abs(scores[0][name] - scores[1][name]) < 2e-6 for name in vectors)
        ranked = [np.array(table["score"].to_pylist()) for table in rows]
        assert (np.diff(ranked[0]) <= 0).all()
    counts = incremental.current().counts
    assert counts["total"] == incremental.current().rows + counts["quarantined"]


rows = st.lists(
    st.tuples(st.sampled_from([f"id-{number}" for number in range(40)]), st.sampled_from([*TEXTS[:40], ""])),
    min_size=1,
    max_size=30,
)
corpora = st.dictionaries(
    st.sampled_from(["a.parquet", "b.parquet", "c.parquet"]), rows, min_size=1, max_size=3
)
BASE = [(f"base-{number}", TEXTS[40 + number]) for number in range(40)]
index_settings = st.tuples(
    st.sampled_from([part_size(rows) for rows in (20, 50, 1_000)]),
    st.sampled_from(["index.rewrite_gib=2", "index.rewrite_gib=1e-9"]),  # in place, or a delta
)


@settings(max_examples=settings.default.max_examples // 10)  # an example is four nights
@given(st.lists(st.tuples(corpora, st.sampled_from([0, 1_000])), min_size=3, max_size=3), index_settings)
def test_an_incremental_night_equals_one_from_scratch(tmp_path, encoder, monkeypatch, sequence, of_index):
    """The index has one part or several, and is changed in place or by a delta."""
    top = tmp_path / uuid.uuid4().hex
    night = Night(top / "nights", encoder, "index.kind=flat", "whiten.mode=off", *of_index)
    for files, most_listed in sequence:
        monkeypatch.setattr("pipeline.store.records.release_units.MAX_LISTED", most_listed)
        night.put({"0.parquet": BASE, **files})
        night.run()
    scratch = Night(top / "scratch", encoder, "index.kind=flat", "whiten.mode=off")
    scratch.put(night.files)
    scratch.run()
    assert_equal_releases(night, scratch)


@pytest.fixture
def nights(tmp_path: Path, encoder: Path) -> Callable[..., Night]:
    return lambda *overrides: Night(tmp_path / uuid.uuid4().hex, encoder, *overrides)


def test_only_new_and_changed_texts_are_encoded_and_known_ones_are_copied(nights: Callable[..., Night]):
    night = nights("index.kind=flat")
    night.put({"a.parquet": BASE})
    night.run()
    # base-0 has a new text, base-32 to base-39 are deleted, "other" has a known text, and "new" a new one.
    changed = [("base-0", TEXTS[0]), *BASE[1:30], ("other", TEXTS[45]), ("new", TEXTS[1])]
    night.put({"a.parquet": changed, "renamed.parquet": BASE[30:32]})
    outcome = night.run()
    expected = {"new": 2, "changed": 1, "deleted": 8, "encoded": 2, "reused": 32}
    assert {name: outcome.facts["counts"][name] for name in expected} == expected
    decisions = {choice["what"]: choice for choice in outcome.facts["decisions"]}
    assert decisions["corpus"]["numbers"]["changed"] == 1
    assert decisions["index"]["chosen"] == "in place"
    scratch = nights("index.kind=flat")
    scratch.put(night.files)
    scratch.run()
    assert_equal_releases(night, scratch)


def test_a_corpus_whose_rows_are_all_replaced_is_published(nights: Callable[..., Night]):
    """Rows of last night's queries are then in no unit of the new release."""
    night = nights("index.queries=1000")
    night.put({"a.parquet": [(f"old-{number}", text) for number, text in enumerate(sentences(90, seed=1))]})
    night.run()
    night.put({"a.parquet": [(f"new-{number}", text) for number, text in enumerate(sentences(90, seed=2))]})
    outcome = night.run()
    assert (outcome.status, night.current().rows) == ("published", 90)
    report = Path(night.job.release.root) / "releases" / "00000002" / "report.html"
    assert "new-" in report.read_text().split("answer")[-1]


def test_files_that_only_moved_publish_nothing(nights: Callable[..., Night]):
    night = nights()
    night.put({"a.parquet": BASE[:20], "b.parquet": BASE[20:]})
    night.run()
    night.put({"moved.parquet": BASE[:20], "b.parquet": BASE[20:]})
    outcome = night.run()
    assert (outcome.status, outcome.release) == ("unchanged", 1)


def test_a_text_that_changes_back_has_its_old_vector(nights: Callable[..., Night]):
    night = nights()
    night.put({"a.parquet": BASE})
    night.run()
    first = live_vectors(night)
    night.put({"a.parquet": [("base-0", TEXTS[0]), *BASE[1:]]})
    night.run()
    assert live_vectors(night)["base-0"] != first["base-0"]
    night.put({"a.parquet": BASE})
    outcome = night.run()
    assert live_vectors(night) == first
    assert outcome.facts["counts"]["encoded"] == 0


@pytest.mark.usefixtures("unit_form")
def test_a_night_after_a_rollback_continues_from_the_current_release(nights: Callable[..., Night]):
    night = nights("index.kind=flat")
    releases = Releases(open_store(night.job.release.root))
    night.put({"a.parquet": BASE[:20]})
    night.run()
    night.put({"a.parquet": BASE[:20], "b.parquet": BASE[20:]})
    night.run()
    late = {unit.ordinal for unit in releases.get(2).units}
    releases.rollback(1)
    night.put(
        {"a.parquet": BASE[:20], "c.parquet": [(f"other-{number}", TEXTS[number]) for number in range(5)]}
    )
    outcome = night.run()
    assert outcome.facts["counts"]["new"] == 5
    assert night.current().parent == 1
    fresh = {unit.ordinal for unit in night.current().units} - {
        unit.ordinal for unit in releases.get(1).units
    }
    assert min(fresh) > max(late), "new rows get no address of the release that was rolled back"
    scratch = nights("index.kind=flat")
    scratch.put(night.files)
    scratch.run()
    assert_equal_releases(night, scratch)


def test_a_night_continues_from_the_release_before_a_release_whose_table_of_units_is_lost(
    nights: Callable[..., Night], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.store.records.release_units.MAX_LISTED", 0)
    night = nights("index.kind=flat")
    for count in (20, 40):
        night.put({"a.parquet": BASE[:count]})
        night.run()
    before, units = live_vectors(night), night.current().units
    assert isinstance(units, UnitTable)
    Path(night.job.release.root, units.file.path).unlink()
    with listening() as messages:
        outcome = night.run()
    assert any(
        f"release 2 is skipped: {night.job.release.root}/{units.file.path}" in line for line in messages
    )
    assert (outcome.status, outcome.release, night.current().parent) == ("published", 3, 1)
    assert live_vectors(night) == before


def test_another_encoder_starts_a_new_base_with_a_reason(nights: Callable[..., Night], tmp_path: Path):
    night = nights()
    night.put({"a.parquet": BASE})
    night.run()
    night.put({"a.parquet": [*BASE[5:], ("new", TEXTS[0])]})
    night.run()
    space = night.current().space_id
    other = save_folder(tmp_path / "other", "bert", seed=5)
    night.job = night.job.model_copy(
        update={"encoder": night.job.encoder.model_copy(update={"path": str(other)})}
    )
    outcome = night.run()
    now = night.current()
    assert now.space_id != space
    assert {unit.space_id for unit in now.units} == {now.space_id}
    assert (outcome.facts["counts"]["encoded"], now.dead) == (36, None)
    corpus = next(choice for choice in outcome.facts["decisions"] if choice["what"] == "corpus")
    assert space in corpus["sentence"]
    assert now.space_id in corpus["sentence"]


def test_duplicates_become_live_and_dead_with_the_winning_row(nights: Callable[..., Night]):
    night = nights("index.kind=flat")
    night.put({"a.parquet": BASE, "b.parquet": [("base-0", TEXTS[0]), ("base-1", TEXTS[41])]})
    outcome = night.run()
    assert outcome.facts["counts"]["quarantined_duplicate_id"] == 2
    first = live_vectors(night)
    night.put({"a.parquet": BASE[2:], "b.parquet": [("base-0", TEXTS[0]), ("base-1", TEXTS[41])]})
    outcome = night.run()
    # Both repeated ids are live now, base-0 with another text, base-1 with the text of the deleted row.
    assert (outcome.facts["counts"]["changed"], outcome.facts["counts"]["quarantined"]) == (1, 0)
    now = live_vectors(night)
    assert now["base-0"] != first["base-0"]
    assert now["base-1"] == first["base-1"]
    night.put({"a.parquet": BASE, "b.parquet": [("base-0", TEXTS[0]), ("base-1", TEXTS[41])]})
    night.run()
    assert live_vectors(night) == first


def test_a_plan_reports_changes_since_the_current_release(nights: Callable[..., Night]):
    night = nights()
    night.put({"a.parquet": BASE[:20], "b.parquet": BASE[20:]})
    assert plan(night.job, Stages(), seconds=0.1).release is None
    night.run()
    assert plan(night.job, Stages(), seconds=0.1).changed_files == 0
    night.put({"a.parquet": BASE[:20], "b.parquet": BASE[20:35]})
    found = plan(night.job, Stages(), seconds=0.1)
    assert (found.release, found.changed_files) == (1, 1)
    assert 10 < (found.tonight_rows or 0) < 25
    index = Releases(open_store(night.job.release.root)).get(1).index
    assert (found.index.kind, found.index.dim) == (index.kind, index.dim)
    assert found.recall_at_10 == 1.0, "an exact index"
    night.job = night.job.model_copy(
        update={"encoder": night.job.encoder.model_copy(update={"dim": index.dim // 2})}
    )
    found = plan(night.job, Stages(), seconds=0.1)
    assert (found.changed_files, found.index.dim) == (2, index.dim // 2), "built again for another space"

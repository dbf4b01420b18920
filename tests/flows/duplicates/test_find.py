"""Near-duplicates of a release are those of all pairs of its rows, and a stopped search continues."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import TransientError
from pipeline.flows.duplicates import find
from pipeline.flows.duplicates.compare import DuplicateSearch
from pipeline.flows.duplicates.find import FoundDuplicates, find_duplicates
from pipeline.flows.night.nightly import nightly
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.conftest import CommandResult
from tests.flows.conftest import sentences
from tests.report.pages import Page, assert_shown_as_text

pytestmark = pytest.mark.usefixtures("cluster")
SCRIPT = "<script>alert(1)</script> runs over the old bank"


@pytest.fixture
def publish(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., str]:
    """Publish a release of texts, some of which are equal or nearly so. Returns its root."""

    def run(*overrides: str, rows: int = 160) -> str:
        texts = sentences(160)
        texts[100:140] = 40 * [texts[3]]
        texts[140:150] = [f"{text}." for text in texts[:10]]
        texts[150:] = [SCRIPT + ending for ending in (" a", " a.", *map(str, range(8)))]
        for file in (tmp_path / "corpus").glob("*"):
            file.unlink()
        ids = [f"row-{number:03}" for number in range(len(texts))]
        table = pa.table({"id": ids, "text": texts, "lang": ids}).slice(0, rows)
        pq.write_table(table, tmp_path / "corpus" / "part.parquet")
        return nightly(make_job("gates.recall_at_10=", *overrides), Stages()).root

    return run


def search_of(root: str, threshold: float) -> DuplicateSearch:
    releases = Releases(open_store(root))
    return DuplicateSearch(releases.store, releases.get_or_current(None), threshold)


def exact_cosines(release: OpenRelease, root: str) -> tuple[list[str], np.ndarray]:
    """Return the ids of the live rows in address order, and their cosines, by search for all rows."""
    ids = release.search(np.ones((1, 48), np.float32), len(release))["id"].to_pylist()
    units = pa.concat_tables([pq.read_table(Path(root, unit.path)) for unit in release.manifest.units])
    raw = dict(zip(units["id"].to_pylist(), np.stack(units["vector"].to_pylist()), strict=True))
    names = [name for name in raw if name in set(ids)]
    found = release.search(np.stack([raw[name] for name in names]).astype(np.float32), len(release))
    cosines, position = np.zeros((len(names),) * 2), {name: row for row, name in enumerate(names)}
    columns = [position[name] for name in found["id"].to_pylist()]
    cosines[found["query"].to_numpy(), columns] = found["score"].to_numpy()
    return names, cosines


def components(is_near: np.ndarray) -> list[int]:
    """Return the first row of the component of each row, by spreading the lowest number."""
    firsts = np.arange(len(is_near))
    for _ in range(len(is_near)):
        firsts = np.array([min(firsts[row], *firsts[is_near[row]]) for row in range(len(is_near))])
    return firsts.tolist()


@pytest.mark.parametrize(
    "overrides",
    [
        ("index.kind=flat", "whiten.mode=off"),
        ("index.kind=IVF4,Flat", "whiten.mode=on", "whiten.transform=standardize"),
        ("index.kind=hnsw",),
    ],
)
def test_the_groups_are_those_of_all_pairs(publish, overrides):
    root = publish(*overrides)
    release = open_release(root)
    exact = open_release(root)
    for index in exact._files._parts.indexes:
        find_all(index)
    names, cosines = exact_cosines(exact, root)
    values = np.sort(cosines[np.triu_indices(len(names), 1)])[-1_500:-700]
    gap = int(np.diff(values).argmax())  # no cosine is so near the threshold that rounding decides
    threshold = float((values[gap] + values[gap + 1]) / 2)
    was_done, found = find_duplicates(search_of(root, threshold), Stages())
    table = pq.read_table(Path(root, found.file.path)).to_pylist()
    firsts = components(cosines >= threshold)
    expected = {names[row]: names[first] for row, first in enumerate(firsts) if firsts.count(first) > 1}
    assert not was_done
    assert {row["id"]: row["first_id"] for row in table} == expected
    assert [row["group"] for row in table] == sorted(row["group"] for row in table)
    assert (found.rows, found.grouped, found.groups) == (160, len(expected), len(set(expected.values())))
    assert found.pairs == int(np.triu(cosines >= threshold, k=1).sum())
    assert found.largest >= 41
    place = {name: row for row, name in enumerate(names)}
    for row in table:
        assert row["cosine"] == pytest.approx(cosines[place[row["id"]], place[row["first_id"]]], abs=1e-5)
    assert release.number == found.release


def find_all(index: Any) -> None:
    """Set the effort of an index so high that a search is exact."""
    from pipeline.index.structure import set_index_effort

    set_index_effort(index, 1_000)


def test_copies_are_found_at_a_threshold_of_one(publish):
    """The cosine of a float32 vector with itself is often a little below 1."""
    root = publish("index.kind=flat", "whiten.mode=off")
    found = find_duplicates(search_of(root, 1.0), Stages())[1]
    assert (found.largest, found.grouped) == (41, 41)


def test_rows_that_are_dropped_leave_one_row_of_each_group_in_the_next_release(
    publish, manta: Callable[..., CommandResult], tmp_path: Path
):
    overrides, file = ("index.kind=flat", "whiten.mode=off"), tmp_path / "drop.txt"
    root = publish(*overrides)
    arguments = ("duplicates", root, "--threshold", "0.9999", "--drop", str(file))
    facts = json.loads(manta(*arguments, "--json").out)
    table = pq.read_table(facts["file"]).to_pylist()
    repeated = sorted(row["id"] for row in table if row["id"] != row["first_id"])
    assert file.read_text().splitlines() == repeated
    assert facts["dropped"] == facts["drop_ids"] == facts["repeated"] == len(repeated)
    assert f"drop    {file}: 0 ids added, {len(repeated)} in all" in manta(*arguments).out
    overrides = (*overrides, f"corpus.exclude={file}", "gates.max_deleted=0.5")
    publish(*overrides)
    release = open_release(root)
    assert len(release) == 160 - len(repeated)
    assert release.manifest.counts["filtered_exclude"] == len(repeated)
    assert json.loads(manta(*arguments, "--json").out)["dropped"] == 0
    assert file.read_text().splitlines() == repeated, "ids of rows that are gone stay"
    assert find_duplicates(search_of(root, 0.9999), Stages())[1].groups == 0


def test_dead_rows_are_in_no_group(publish):
    overrides = ("index.kind=hnsw", "whiten.mode=off")
    first = find_duplicates(search_of(publish(*overrides), 0.9999), Stages())[1]
    root = publish(*overrides, "gates.max_deleted=0.3", rows=125)
    found = find_duplicates(search_of(root, 0.9999), Stages())[1]
    names = pq.read_table(Path(root, found.file.path))["id"].to_pylist()
    assert (first.release, first.largest) == (1, 41)
    assert (found.release, found.largest, found.rows) == (2, 26, 125)
    assert names == ["row-003", *(f"row-{number}" for number in range(100, 125))]


def test_a_stopped_search_continues_and_a_finished_one_is_kept(publish, monkeypatch):
    root = publish("index.kind=flat", "whiten.mode=off")
    search, searched = search_of(root, 0.98), []
    candidates = find.candidate_pairs

    def stop_at_the_third(*arguments: Any) -> Any:
        searched.append(int(arguments[1][0]) >> 32)
        if len(searched) == 3:
            raise KeyboardInterrupt
        return candidates(*arguments)

    monkeypatch.setattr(find, "candidate_pairs", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        find_duplicates(search, Stages())
    folder = Path(root, search.folder)
    assert not (folder / "duplicates.json").exists()
    assert not list(folder.glob("*.parquet"))
    was_done, found = find_duplicates(search, Stages())
    assert not was_done
    assert searched == [0, 1, 2, 2, 3]
    assert find_duplicates(search, Stages()) == (True, found)
    assert len(searched) == 5
    Path(root, found.page.path).unlink()
    assert find_duplicates(search, Stages())[1].page.rows == found.page.rows


def test_prune_is_refused_while_a_search_reads_the_release(publish, monkeypatch):
    root = publish("index.kind=flat", "whiten.mode=off")
    releases, candidates, refused = Releases(open_store(root)), find.candidate_pairs, []

    def prune_during_the_search(*arguments: Any) -> Any:
        with pytest.raises(TransientError, match="search for duplicates") as caught:
            prune(releases, keep=1)
        refused.append(caught.value)
        return candidates(*arguments)

    monkeypatch.setattr(find, "candidate_pairs", prune_during_the_search)
    find_duplicates(search_of(root, 0.98), Stages())
    assert len(refused) == 4
    assert prune(releases, keep=1).removed == ()


def test_the_command_prints_the_result_and_the_page_escapes_texts(
    publish, manta: Callable[..., CommandResult]
):
    root = publish("index.kind=flat", "whiten.mode=off")
    ended = manta("duplicates", root, "--threshold", "0.9", "--json")
    facts = json.loads(ended.out)
    assert (ended.code, facts["status"], facts["rows"]) == (0, "done", 160)
    assert facts["repeated"] == facts["grouped"] - facts["groups"] > 0
    assert pq.read_table(facts["file"]).column_names == ["group", "id", "first_id", "cosine"]
    page = Path(facts["report"]).read_text()
    assert f"{facts['groups']:,} groups" in Page(page).words
    assert_shown_as_text(page, "<script>alert(1)</script>")
    ended = manta("duplicates", root, "--threshold", "0.9")
    assert ended.out.startswith("these were found before; nothing to do\n")
    assert facts["report"] in ended.out
    none = json.loads(manta("duplicates", root, "--threshold", "1", "--json").out)
    assert none["largest"] == facts["largest"] or none["groups"] <= facts["groups"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--threshold", "0.1"], 2, "greater than or equal to 0.5"),
        (["--threshold", "x"], 2, "a valid number"),
        (["--release", "7"], 3, "7"),
    ],
)
def test_wrong_input_is_explained(publish, manta: Callable[..., CommandResult], arguments, code, sentence):
    root = publish("index.kind=flat", "whiten.mode=off")
    ended = manta("duplicates", root, *arguments)
    assert ended.code == code
    assert sentence in ended.err


def test_a_release_without_near_duplicates_has_an_empty_table(make_job, tmp_path):
    root = nightly(make_job("index.kind=flat", "gates.recall_at_10="), Stages()).root
    search = search_of(root, 1.0)
    assert isinstance(find_duplicates(search, Stages())[1], FoundDuplicates)
    found = find_duplicates(search, Stages())[1]
    assert (found.groups, found.grouped, found.largest, found.repeated) == (0, 0, 0, 0)
    assert pq.read_table(Path(root, found.file.path)).num_rows == 0
    assert "0 groups" in Page(Path(root, found.page.path).read_text()).words

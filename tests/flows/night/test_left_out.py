"""Rows that an erasure leaves out for good stay out of every later night, as if corpus.exclude named them."""

import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.flows.night.approval import promote
from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.commits import Commit
from pipeline.store.releases.left_out import add_left_out, load_left_out
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.waiting import load_waiting
from tests.erased.roots import Nights, people, person
from tests.flows.export.nights import released_rows

SETTINGS = ("whiten.mode=off", "index.kind=flat", "index.queries=20")


def leave_out(root: str, *ids: str) -> Commit:
    """Make a commit that leaves rows out, as `manta erase --forever` does, without erasing anything."""
    releases = Releases(open_store(root))
    current = releases.get_or_current(None)
    last = releases.history()[-1]
    commit = Commit(
        commit=releases.commits.next_number(),
        kind="erase",
        release=current.release,
        manifest=last.manifest,
        sha256=last.sha256,
        erasure="e" * 24,
        left_out=add_left_out(releases.store, releases.commits.left_out(), ids),
    )
    assert releases.commits.create(commit)
    return commit


def ids_of(root: str) -> set[str]:
    current = Releases(open_store(root)).get_or_current(None)
    return set(released_rows(Path(root), current.release))


@given(first=st.sets(st.text()), second=st.sets(st.text()), other=st.text())
def test_ids_are_recognized_and_the_file_has_none_of_them(first: set[str], second: set[str], other: str):
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(folder)
        before = add_left_out(store, None, first)
        after = add_left_out(store, before, second)
        assert add_left_out(store, after, first).sha256 == after.sha256, "the same ids, with the same key"
        table = pq.read_table(Path(folder, after.path))
        assert len(table) == len(first | second)
        content = Path(folder, after.path).read_bytes()
        assert not [each for each in first | second if len(each) > 8 and each.encode() in content]
        commits = Releases(store).commits
        assert load_left_out(commits, store) is None, "no commit names the file"
        commits.create(Commit(commit=1, kind="erase", left_out=after))
        found = load_left_out(commits, store)
        assert found is not None
        assert all(each in found for each in first | second)
        assert (other in found) == (other in first | second)
        assert None not in found


def test_two_roots_have_different_hashes_of_one_id(tmp_path: Path):
    one, other = (add_left_out(LocalStore(str(tmp_path / name)), None, ["person"]) for name in ("a", "b"))
    assert one.sha256 != other.sha256


@pytest.mark.usefixtures("cluster")
def test_a_night_equals_one_with_corpus_exclude_and_counts_the_rows_apart(tmp_path: Path):
    gone = [person(number)["id"] for number in (3, 17)]
    nights, other = (Nights(tmp_path / name, *SETTINGS) for name in ("forever", "excluded"))
    nights.night(people(range(40)))
    other.night(people(range(40)))
    leave_out(nights.root, *gone)
    (tmp_path / "ids.txt").write_text("".join(f"{each}\n" for each in gone))
    assert nights.night().status == "published", "the files did not change, and are read again"
    other.night(None, f"corpus.exclude={tmp_path / 'ids.txt'}")
    assert released_rows(Path(nights.root), 3) == released_rows(Path(other.root), 2)
    one, two = Releases(open_store(nights.root)).get(3), Releases(open_store(other.root)).get(2)
    assert (one.counts["filtered_erased"], two.counts["filtered_exclude"]) == (2, 2)
    assert one.counts["filtered"] == two.counts["filtered"] == 2
    assert one.row_counts == two.row_counts
    page = (Path(nights.root) / "releases/00000003/report.html").read_text()
    assert "filtered: manta erase --forever" in page
    assert nights.night().status == "unchanged"


@pytest.mark.usefixtures("cluster")
def test_no_later_night_brings_a_row_back(tmp_path: Path):
    nights = Nights(tmp_path, *SETTINGS)
    gone = {person(number)["id"] for number in (3, 17)}
    nights.night([row for row in people(range(40)) if row["id"] not in gone])
    leave_out(nights.root, *gone)
    nights.night(people(range(42)))
    assert not gone & ids_of(nights.root)
    nights.night([person(number, version=1) for number in range(44)])
    assert not gone & ids_of(nights.root), "with other texts"
    releases = Releases(open_store(nights.root))
    releases.rollback(1)
    prune(Releases(open_store(nights.root)), keep=1)
    nights.write(people(range(20)), "further")
    nights.night(people(range(20, 46)))
    assert not gone & ids_of(nights.root), "after a rollback, a prune, and in another file"
    nights.night(None, "encoder.normalize=true")
    assert not gone & ids_of(nights.root), "in another space, from scratch"
    nights.night(people(range(50)), "release.publish=approval")
    releases = Releases(open_store(nights.root))
    record = load_waiting(releases.store)
    assert record is not None
    assert promote(releases, record.candidate, "Ann").is_new
    assert not gone & ids_of(nights.root), "in a candidate that was promoted"


@pytest.mark.usefixtures("cluster")
def test_all_chunks_of_a_document_are_left_out(tmp_path: Path):
    nights = Nights(tmp_path, *SETTINGS, "corpus.chunk.by=sentences", "corpus.chunk.max_characters=40")
    documents = [
        {**row, "text": ". ".join(person(100 + 3 * number + part)["text"] for part in range(3)) + "."}
        for number, row in enumerate(people(range(12)))
    ]
    nights.night(documents)
    gone = person(5)["id"]
    assert len([each for each in ids_of(nights.root) if each.startswith(f"{gone}#")]) > 1
    leave_out(nights.root, gone)
    nights.night()
    assert not [each for each in ids_of(nights.root) if each.startswith(f"{gone}#")]
    manifest = Releases(open_store(nights.root)).get_or_current(None)
    assert (manifest.counts["filtered_erased"], manifest.counts["documents"]) == (1, 11)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_night_stops_if_the_file_is_missing_or_damaged(tmp_path: Path, harm: str):
    nights = Nights(tmp_path, *SETTINGS)
    nights.night(people(range(10)))
    commit = leave_out(nights.root, person(3)["id"])
    assert commit.left_out is not None
    file = Path(nights.root, commit.left_out.path)
    (Path(nights.root) / "erasures" / "receipt.json").write_text("{}")
    file.unlink() if harm == "missing" else file.write_bytes(file.read_bytes()[:-7] + b"changed")
    with pytest.raises(DataError):
        nights.night(people(range(11)))

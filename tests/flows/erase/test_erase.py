"""Erased rows are in no file below a root; releases can still be searched, and the next night goes on."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, TransientError
from pipeline.flows.erase.choose import EraseRequest
from pipeline.flows.erase.erase import erase
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.store.files.lease import SERVED, lease
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.commits import Commit
from pipeline.store.releases.erasures import ErasureReceipt
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import content_faults
from tests.erased.roots import DIM, Nights, people, person
from tests.erased.scan import Sought, Trace, traces
from tests.flows.conftest import encoded_units

pytestmark = pytest.mark.usefixtures("cluster")
GONE = [person(number)["id"] for number in (13, 120, 310)]


def three_nights(folder: Path, *settings: str) -> Nights:
    """Publish three releases of 300, 320 and 317 rows; of the three deleted rows, one changed before."""
    nights = Nights(folder, *settings)
    nights.night(people(range(300)))
    nights.night(changed_rows())
    nights.night(remaining_rows())
    return nights


def changed_rows() -> list[dict[str, Any]]:
    return [person(number, version=number in (13, 40, 170)) for number in range(320)]


def remaining_rows() -> list[dict[str, Any]]:
    return [row for row in changed_rows() if row["id"] not in GONE]


def erase_rows(root: str, ids: Sequence[str] = GONE, **options: Any) -> ErasureReceipt | None:
    request = EraseRequest(frozenset(ids), reason="request 17")._replace(**options)
    return erase(Releases.open(root), request, Stages())


def left_of(root: str, sought: Sought) -> list[Trace]:
    """Return the traces of rows except their addresses, which are in the list of dead rows."""
    return [each for each in traces([Path(root)], sought) if each.what != "address"]


def check_releases(root: str, numbers: Sequence[int]) -> None:
    releases = Releases.open(root)
    assert releases.numbers() == list(numbers)
    for number in numbers:
        assert content_faults(releases.store, releases.get(number)) == []


def check_erased_root(folder: Path, kind: str, *settings: str) -> None:
    """Erase rows of three releases, and check what is left, what is found, and the night after."""
    nights = three_nights(folder, f"index.kind={kind}", *settings)
    root = nights.root
    sought = Sought.of(Path(root), GONE)
    before = {number: search(root, number) for number in (1, 2, 3)}
    receipt = erase_rows(root)
    assert receipt is not None
    assert (receipt.ids, receipt.ids_found, receipt.rows) == (3, 3, 4), "one of them had two texts"
    rows = [(each.release, each.rows_before, each.rows_after) for each in receipt.releases]
    assert rows == [(1, 300, 298), (2, 320, 317), (3, 317, 317)]
    assert left_of(root, sought) == []
    check_releases(root, [1, 2, 3])
    for number in (1, 2, 3):
        found = search(root, number)
        assert not ids_of(found) & set(GONE)
        assert found.keys() >= {each for each in before[number] if not ids_of([each]) & set(GONE)}
        for row_id in found.keys() & before[number].keys():
            assert found[row_id] == pytest.approx(before[number][row_id], abs=1e-4)
    assert nights.night().status == "unchanged"
    encoded = encoded_units(Path(root))
    outcome = nights.night([*remaining_rows()[:-1], person(400)])
    assert (outcome.status, outcome.facts["counts"]["encoded"]) == ("published", 1)
    assert len(encoded_units(Path(root))) == len(encoded) + 1
    assert left_of(root, sought) == []


def search(root: str, number: int) -> dict[str, float]:
    """Return the scores of the nearest rows of some queries, by number of the query and id."""
    queries = np.random.default_rng(1).normal(size=(5, DIM)).astype(np.float32)
    found = open_release(root, number).search(queries, 20).to_pylist()
    return {f"{row['query']} {row['id']}": row["score"] for row in found}


def ids_of(found: Iterable[str]) -> set[str]:
    """Return the ids of the rows that `search` has found."""
    return {each.split()[1] for each in found}


def test_erased_rows_are_in_no_file_and_the_next_night_encodes_only_new_rows(tmp_path: Path):
    check_erased_root(tmp_path / "nights", "flat", "whiten.mode=off")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["IVF8,Flat", "ivf_sq8", "IVF8,PQ4x4fs", "ivf_rabitq_refine", "hnsw"])
def test_erased_rows_are_in_no_file_of_any_kind_of_index(tmp_path: Path, kind: str):
    check_erased_root(tmp_path / "nights", kind, "whiten.mode=on")


def last_commit(root: str) -> Commit:
    return Releases.open(root).history()[-1]


def test_erased_roots_are_pruned_rolled_back_and_erased_again(tmp_path: Path):
    root = three_nights(tmp_path / "nights", "index.kind=flat", "whiten.mode=off").root
    sought = Sought.of(Path(root), GONE)
    planned = erase_rows(root, dry_run=True)
    assert planned is not None
    assert (planned.rows, planned.commit) == (4, None)
    assert last_commit(root).commit == 3, "a dry run changes nothing"
    erase_rows(root, GONE[:1])
    assert left_of(root, sought) != []
    again = erase_rows(root, GONE[1:])
    assert again is not None
    assert (again.rows, last_commit(root).kind) == (2, "erase")
    assert left_of(root, sought) == []
    assert erase_rows(root) is None, "nothing is left of them"
    prune(Releases.open(root), 2, grace_s=0)
    check_releases(root, [2, 3])
    Releases.open(root).rollback(2)
    assert len(open_release(root)) == 317
    assert not ids_of(search(root, 2)) & set(GONE)


def test_rows_of_a_condition_need_their_number_and_rows_of_the_corpus_are_refused(tmp_path: Path):
    nights = three_nights(tmp_path / "nights", "index.kind=flat", "whiten.mode=off")
    root, where = nights.root, "mail in ('mail00120@example.org', 'mail00310@example.org')"
    with pytest.raises(ConfigError, match="--expect with the number of ids"):
        erase_rows(root, [], where=where)
    with pytest.raises(ConfigError, match=r"3 ids that pass the condition .* found 2"):
        erase_rows(root, [], where=where, expect=3)
    with pytest.raises(ConfigError, match="expected one of the columns id, mail"):
        erase_rows(root, [], where="post = 'mail'", expect=3)
    with pytest.raises(ConfigError, match="ids that are not in the corpus any more, found 1 row"):
        erase_rows(root, [*GONE, person(14)["id"]])
    assert last_commit(root).commit == 3
    receipt = erase_rows(root, [], where=where, expect=2)
    assert receipt is not None
    assert (receipt.ids_found, receipt.rows) == (2, 2)


def test_rows_of_the_corpus_are_erased_forever(tmp_path: Path):
    nights = Nights(tmp_path / "nights", "index.kind=flat", "whiten.mode=off")
    nights.night(people(range(60)))
    root, row_id = nights.root, person(14)["id"]
    sought = Sought.of(Path(root), [row_id])
    receipt = erase_rows(root, [row_id], forever=True)
    assert receipt is not None
    assert [(each.rows_before, each.rows_after) for each in receipt.releases] == [(60, 59)]
    assert left_of(root, sought) == []
    current = Releases.open(root).get(1)
    assert current.row_counts.filtered == 1
    current.row_counts.check(root, "corpus")
    for rows in (people(range(60)), people(range(61))):
        nights.night(rows)
        assert left_of(root, sought) == []
        assert row_id not in open_release(root).search(np.ones((1, DIM), np.float32), 61)["id"].to_pylist()


def test_a_root_in_use_is_not_erased_and_no_night_begins_meanwhile(tmp_path: Path):
    nights = Nights(tmp_path / "nights", "index.kind=flat", "whiten.mode=off")
    nights.night(people(range(40)))
    nights.night(people(range(39)))
    root, gone = nights.root, [person(39)["id"]]
    store = open_store(root)
    for folder, facts in (("candidates", {}), (SERVED, {"release": 2})):
        with lease(store, folder, **facts), pytest.raises(TransientError, match=folder):
            erase_rows(root, gone)
    with lease(store, "erasures"), pytest.raises(TransientError, match="no running erasure"):
        nights.night(people(range(38)))
    with lease(store, "erasures"), pytest.raises(TransientError, match="no running erasure"):
        prune(Releases.open(root), 1)
    assert [commit.kind for commit in Releases.open(root).history()] == ["publish", "publish"]
    assert erase_rows(root, gone) is not None

"""Every night the index holds exactly the live rows, and every decision about it records its numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.flows.index.extend import extend_index
from pipeline.flows.index.records import load_queries, load_truth
from pipeline.flows.workers.interface import Workers
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings.index_kinds import KINDS
from tests.flows.index.extending import DIM, Chain

pytestmark = pytest.mark.usefixtures("cluster")
# The indexes of a test sample other queries, which may choose another nprobe for codes as coarse as these.
COARSE = [name for name, kind in KINDS.items() if kind.code_recall and kind.code_recall[8][-1] < 0.95]
WIDE = ("index.nprobe=99",)  # all lists: then an IVF index is exhaustive


@pytest.mark.parametrize("kind", ["flat", "ivf_flat"])
def test_rows_are_added_and_removed_in_place(cluster: Workers, tmp_path: Path, kind: str):
    chain = (
        Chain(tmp_path / "root", cluster, (f"index.kind={kind}", "index.nlist=8", *WIDE))
        .add(300, dropped=[3, 4])
        .add(250)
        .kill(7)
    )
    chain.night()
    chain.assert_sound()
    assert chain.built.trained_on["rows"] == 543
    follower = open_release(chain.root)
    for change in (
        lambda: chain.add(40).kill(20),
        lambda: chain.kill(9),
        lambda: chain.add(30, dropped=[0]),
        lambda: chain.kill(None, [2]).add(5),
    ):
        change()
        chain.night()
        chain.assert_sound()
        assert (chain.built.parts, chain.built.tombstones, len(chain.built.files)) == (1, None, 1)
        assert chain.chosen() == {"index": "in place", "index training": "kept", "index truth": "carried"}
        assert chain.built.trained_on["rows"] == 543
        assert follower.refresh()
        found = follower.search(np.array([chain.vectors[address] for address in chain.live()[:50]]), 1)
        assert found["id"].to_pylist() == [
            f"u{address >> 32}-{address & 0xFFFFFFFF}" for address in chain.live()[:50]
        ]
    chain.units = [unit for unit in chain.units if unit.ordinal != 2]  # all of its rows are dead
    chain.night()
    chain.assert_sound()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) if kind == "opq_ivf_pq" else kind for kind in KINDS],
)
def test_after_deleting_a_topic_answers_equal_an_index_built_without_it(
    cluster: Workers, tmp_path: Path, kind: str
):
    effort = ("index.nprobe=3",) if kind in COARSE else ()
    chain = (
        Chain(tmp_path / "root", cluster, (f"index.kind={kind}", "gates.recall_at_10=0.9", *effort))
        .add(2_850)
        .add(130, spread=0.3, centre=5)
    )
    chain.night()
    chain.kill(None, [1]).add(1)
    chain.night()
    never = replace(
        chain.copy(tmp_path / "never"), overrides=(*chain.overrides, "index.seed=1")
    )  # other settings: the index is rebuilt
    never.night()
    live = np.array(chain.live())
    raw = np.array([chain.vectors[address] for address in live.tolist()])
    asked = (chain.centres[5] + 0.3 * np.random.default_rng(1).normal(size=(60, DIM)) + 0.3).astype(
        np.float32
    )
    exact = live[np.argsort(-(asked @ (raw / np.linalg.norm(raw, axis=1, keepdims=True)).T), axis=1)[:, :10]]
    found = [each.parts().search(asked, 10)[1] for each in (chain, never)]
    assert not np.isin(found[0], chain.dead).any()
    after, without = (
        np.mean([np.isin(right, answers).mean() for right, answers in zip(exact, each, strict=True)])
        for each in found
    )
    assert after >= without - 0.05


@pytest.mark.parametrize("kind", ["ivf_flat", "ivf_sq8"])
@pytest.mark.parametrize("whole_unit", [True, False])
def test_a_rebuilt_index_finds_live_rows_near_a_deleted_topic(
    cluster: Workers, tmp_path: Path, kind: str, whole_unit: bool
):
    overrides = (f"index.kind={kind}", "index.queries=500", "index.nlist=50")
    chain = Chain(tmp_path / "root", cluster, overrides, clusters=21, dim=64).add(2_600)
    for unit in range(1, 2 + (not whole_unit)):
        chain.add(70 * (1 + whole_unit), centre=0) if unit == 1 else chain.add(70, centre=0)
    chain.night()
    topic = [address for address in chain.vectors if address >> 32]
    if whole_unit:
        chain.units.pop()
    else:
        chain.dead += topic[:-1]
    chain.overrides = (*overrides, "index.seed=1")
    built = chain.night()
    assert chain.chosen()["index"] == "built anew"
    near = built.measured.recall_near_dead
    assert near is not None
    assert near.value >= 0.95
    assert built.trained_on["recall_near_dead"] == near.value
    live = np.array(chain.live())
    raw = np.array([chain.vectors[address] for address in live.tolist()])
    asked = np.array([chain.vectors[address] for address in topic[1::3]])
    exact = live[np.argsort(-(asked @ (raw / np.linalg.norm(raw, axis=1, keepdims=True)).T), axis=1)[:, :10]]
    found = chain.parts().search(asked, 10)[1]
    assert np.mean([np.isin(right, mine).mean() for right, mine in zip(exact, found, strict=True)]) >= 0.9
    chain.overrides = overrides = (*overrides, "index.seed=1")
    chain.add(5).night()
    assert chain.chosen()["index"] == "in place", "the same figure near dead rows is no reason to build again"


def test_queries_for_recall_cover_deleted_regions(cluster: Workers, tmp_path: Path):
    chain = Chain(tmp_path / "root", cluster, ("index.kind=flat", "index.queries=200")).add(500)
    chain.night()
    chain.kill(100)
    built = chain.night()
    assert chain.chosen()["index truth"] == "scanned"
    asked = load_queries(chain.store, built.queries).addresses
    assert (len(asked), int(np.isin(asked, chain.dead).sum())) == (200, 10)
    assert built.measured.recall_near_dead is not None
    assert built.measured.recall_near_dead.value == 1.0
    chain.assert_sound()


@pytest.mark.parametrize(
    "overrides",
    [
        ("index.kind=ivf_flat", "index.nlist=8", "index.on_disk=always", *WIDE),
        ("index.kind=hnsw",),
        ("index.kind=flat", "index.rewrite_gib=1e-9"),
    ],
    ids=["on disk", "hnsw", "large"],
)
def test_without_removal_a_delta_grows_until_it_is_too_large(
    cluster: Workers, tmp_path: Path, overrides: tuple[str, ...]
):
    chain = Chain(tmp_path / "root", cluster, overrides).add(400).add(400).kill(5)
    base, exhaustive = chain.night(), "hnsw" not in overrides[0]
    follower = open_release(chain.root)
    changes = (
        lambda: chain.kill(8),
        lambda: chain.add(30).kill(5),
        lambda: chain.add(25).kill(4, [2]),
        lambda: chain.kill(3),
    )
    for change, parts in zip(changes, (1, 2, 2, 2), strict=True):
        change()
        built = chain.night()
        chain.assert_sound(exhaustive=exhaustive)
        assert chain.chosen() == {
            "index": "base and delta",
            "index training": "kept",
            "index compaction": "kept",
            "index truth": "carried",
        }
        assert (built.parts, built.files[: len(base.files)], built.base_ordinals) == (parts, base.files, 2)
        assert follower.refresh()
        assert len(follower) == len(chain.live())
    chain.add(60)  # now 111 of 899 rows
    built = chain.night()
    chain.assert_sound(exhaustive=exhaustive)
    assert chain.chosen() == {"index compaction": "built anew"}
    assert chain.choices[0].numbers["delta_share"] == pytest.approx(
        sum(a >> 32 >= 2 for a in chain.live()) / built.rows
    )
    assert (built.parts, built.tombstones, built.base_ordinals) == (1, None, 5)
    assert follower.refresh()


def test_equal_nights_give_equal_bytes_and_reuse_them(cluster: Workers, tmp_path: Path):
    made = []
    for name in ("one", "two"):
        chain = Chain(tmp_path / name, cluster, ("index.kind=ivf_sq8", "index.nlist=8")).add(500)
        chain.night()
        last = chain.before
        chain.add(30).kill(10)
        made.append(chain.night())
        stages = Stages()
        again, _ = extend_index(chain.context(stages), chain.vectors_to_index(), last)
        assert again == made[-1]
        assert stages.finished == []
    assert [made[0].files, made[0].ids, made[0].truth] == [made[1].files, made[1].ids, made[1].truth]


def test_a_delta_does_not_depend_on_the_number_of_workers(cluster: Workers, tmp_path: Path):
    chain = Chain(
        tmp_path / "root", cluster, ("index.kind=ivf_sq8", "index.nlist=8", "index.rewrite_gib=1e-9")
    ).add(500)
    chain.night()
    chain.add(12).add(12).add(12)
    made = []
    for each, workers in ((chain, 1), (chain.copy(tmp_path / "other"), 2)):
        each.overrides = (*each.overrides, "index.shards=null", f"cluster.index_workers={workers}")
        made.append(each.night())
        each.assert_sound(exhaustive=False)
    assert made[0].files == made[1].files


def test_short_rankings_are_searched_again_and_dead_queries_replaced(cluster: Workers, tmp_path: Path):
    chain = Chain(tmp_path / "root", cluster, ("index.kind=flat",)).add(700)
    chain.night()
    queries = load_queries(chain.store, chain.built.queries).addresses
    truth = load_truth(chain.store, chain.built.truth)
    chain.dead += [address for address in truth.addresses[0].tolist() if address not in queries][:50]
    asked = chain.built.queries
    chain.night()
    chain.assert_sound()
    choice = chain.choices[-1]
    assert (choice.what, choice.chosen, chain.built.queries) == ("index truth", "scanned", asked)
    assert choice.numbers["short_queries"] >= 1
    chain.dead += queries[:6].tolist()
    chain.add(3).night()
    chain.assert_sound()
    assert (chain.choices[-1].chosen, chain.choices[-1].numbers["dead_queries"]) == (
        "scanned",
        pytest.approx(6 / 40),
    )
    assert np.isin(load_queries(chain.store, chain.built.queries).addresses, chain.live()).sum() == 38, (
        "one in twenty lies where rows were deleted"
    )

"""The search effort is chosen by texts of users as well, and later nights keep their exact neighbours."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from pipeline.flows.index.records import load_queries
from pipeline.flows.workers.interface import Workers
from pipeline.index.measure.search_effort import candidate_efforts
from tests.flows.index.extending import DIM, Chain
from tests.flows.index.test_several_parts import parts_of

IVF = ("index.kind=ivf_flat", "index.nlist=40", "index.train_rows=1600", "index.queries=300")


def far_from_rows(count: int, seed: int = 3) -> np.ndarray:
    """Make vectors between the clusters of the rows: their neighbours are in many lists."""
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def near_rows(chain: Chain, count: int) -> np.ndarray:
    """Make vectors near rows, which are as easy to find."""
    rows = np.array([chain.vectors[address] for address in chain.live()[:count]])
    return (rows + 0.01).astype(np.float32)


def recall_of(chain: Chain, users: np.ndarray, effort: int) -> float:
    """Compute recall@10 of vectors by numpy, at an effort."""
    live = np.array(chain.live())
    raw = np.array([chain.vectors[address] for address in live.tolist()])
    exact = users @ (raw / np.linalg.norm(raw, axis=1, keepdims=True)).T
    nearest = live[np.argsort(-exact, axis=1)[:, :10]]
    found = chain.parts().search(users, 10, effort)[1]
    return float(np.mean([np.isin(*each).mean() for each in zip(nearest, found, strict=True)]))


def chain_with(cluster: Workers, root: Path, users: np.ndarray | None, *overrides: str) -> Chain:
    chain = Chain(root, cluster, (*IVF, "gates.recall_at_10=0.9", *overrides), users=users)
    return chain.add(1_000).add(600)


def test_the_effort_suffices_for_rows_and_for_users(cluster: Workers, tmp_path: Path):
    users = far_from_rows(200)
    alone = chain_with(cluster, tmp_path / "alone", None).night().measured
    chain = chain_with(cluster, tmp_path / "both", users)
    measured = chain.night().measured
    chain.assert_sound(exhaustive=False)
    assert (measured.rows_effort, measured.user_queries) == (alone.effort, 200)
    assert measured.effort > alone.effort
    assert recall_of(chain, users[0::2], measured.effort) > 0.9
    lower = [effort for effort in candidate_efforts(chain.parts()) if effort < measured.effort]
    point = next(point for point in measured.user_curve if point.effort == lower[-1])
    assert point.low < 0.9, "the next lower effort does not suffice for users"
    assert point.recall_at_10 == pytest.approx(recall_of(chain, users[0::2], lower[-1]), abs=1e-9)
    reported = recall_of(chain, users[1::2], measured.effort)
    assert measured.user_recall.value == pytest.approx(reported, abs=1e-9)
    assert measured.effort in {point.effort for point in measured.curve}, "the report draws it for rows, too"
    assert measured.recall.keys() == alone.recall.keys()
    assert measured.queries == alone.queries, "rows are counted without texts of users"


def test_users_that_are_only_reported_or_have_a_fixed_effort_change_nothing(cluster: Workers, tmp_path: Path):
    users = far_from_rows(100)
    alone = chain_with(cluster, tmp_path / "alone", None).night().measured
    reported = chain_with(cluster, tmp_path / "0", users, "gates.queries=any", "gates.recall_at_10_queries=0")
    reported = reported.night().measured
    assert (reported.effort, reported.rows_effort) == (alone.effort, alone.effort)
    assert reported.user_recall.value < 0.9
    fixed = chain_with(cluster, tmp_path / "fixed", users, "index.nprobe=2").night().measured
    assert (fixed.effort, fixed.user_recall.value < 0.9) == (2, True)


@pytest.mark.parametrize("parts", ["one", "several"])
def test_later_nights_carry_the_neighbours_of_users_over(cluster: Workers, tmp_path: Path, parts: str):
    users = far_from_rows(120)
    overrides = [parts_of(700, "ivf_flat")] if parts == "several" else []
    chain = chain_with(cluster, tmp_path, users, *overrides)
    first = chain.night()
    second = chain.add(40).kill(20).night()
    assert (second.parts > 1) == (parts == "several")
    assert (chain.chosen()["index truth"], second.queries) == ("carried", first.queries)
    chain.assert_sound(exhaustive=False)
    assert second.measured.effort >= first.measured.effort
    assert second.measured.rows_effort == first.measured.rows_effort
    chain.users = users[::-1][:80]
    third = chain.add(10).night()
    assert chain.chosen()["index truth"] == "carried", "no text is new"
    assert (load_queries(chain.store, third.queries).vectors[-80:] == users[::-1][:80]).all()
    chain.assert_sound(exhaustive=False)
    chain.users = np.concatenate([users[:40], far_from_rows(3, seed=9)])
    chain.add(10).night()
    assert chain.chosen()["index truth"] == "scanned"
    assert "gates.queries" in chain.choices[-1].sentence
    chain.assert_sound(exhaustive=False)


def test_only_the_effort_of_a_kept_index_changes(cluster: Workers, tmp_path: Path):
    chain = chain_with(cluster, tmp_path, None)
    alone = chain.night()
    chain.users = far_from_rows(200)
    asked = chain.night()
    assert (chain.chosen()["index"], chain.chosen()["index training"]) == ("in place", "kept")
    assert (asked.measured.rows_effort, asked.trained) == (alone.measured.effort, alone.trained)
    assert asked.measured.effort > alone.measured.effort
    assert stored_nprobe(chain) == asked.settings["effort"] == asked.measured.effort
    chain.users = near_rows(chain, 200)
    easier = chain.night()
    assert (chain.chosen()["index"], chain.chosen()["index training"]) == ("in place", "kept")
    assert alone.measured.effort <= easier.measured.effort < asked.measured.effort
    chain.users = far_from_rows(200)
    again = chain.night()
    assert again.measured.effort == asked.measured.effort, "as on a first night with these texts"
    chain.users = None
    without = chain.night()
    assert chain.chosen()["index training"] == "kept", "recall fell with the effort, not with the index"
    assert stored_nprobe(chain) == without.measured.effort == alone.measured.effort
    assert without.measured.user_recall is None
    chain.assert_sound(exhaustive=False)


def stored_nprobe(chain: Chain) -> int:
    """Return the effort that a reader with plain faiss gets."""
    [file] = chain.built.files
    return faiss.extract_index_ivf(faiss.read_index(str(file.local(chain.store)))).nprobe


def test_the_effort_of_a_graph_with_a_delta_is_chosen_by_users(cluster: Workers, tmp_path: Path):
    users = far_from_rows(200)
    chain = Chain(tmp_path, cluster, ("index.kind=hnsw", "gates.recall_at_10=0.98"), dim=DIM, users=None)
    first = chain.add(2_000, spread=2.0).night()
    chain.users = users
    second = chain.add(50).kill(10).night()
    assert chain.chosen()["index"] == "base and delta"
    assert second.measured.rows_effort == first.measured.effort
    assert second.measured.user_recall.value >= 0.97
    assert second.settings["effort"] == second.measured.effort
    chain.assert_sound(exhaustive=False)


@pytest.mark.parametrize(("count", "suffices"), [(4, True), (200, False)])
def test_few_texts_count_by_their_recall_since_their_interval_is_wide(
    cluster: Workers, tmp_path: Path, count: int, suffices: bool
):
    users = far_from_rows(count)
    chain = chain_with(cluster, tmp_path, users)
    measured = chain.night().measured
    point = next(point for point in measured.user_curve if point.effort == measured.effort)
    assert point.recall_at_10 >= 0.9
    assert (point.low < 0.9) == suffices


def test_a_rebuilt_index_samples_rows_again_and_keeps_texts_of_users(cluster: Workers, tmp_path: Path):
    users = far_from_rows(60)
    chain = chain_with(cluster, tmp_path, users)
    chain.night()
    chain.overrides = (*chain.overrides, "index.seed=1")
    chain.kill(100)
    built = chain.night()
    assert chain.chosen()["index"] == "built anew"
    queries = load_queries(chain.store, built.queries)
    assert queries.of_users.sum() == 60
    assert not np.isin(queries.addresses[~queries.of_users], chain.dead).all()
    chain.assert_sound(exhaustive=False)

"""An index of several parts answers like one of a single part; only changed parts are written again."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

import manta
from pipeline.flows.index import extend_tasks
from pipeline.flows.workers.interface import Workers
from pipeline.index.build.index_shape import GIB
from pipeline.store.rows.address import ordinal_of
from tests.flows.index.extending import DIM, Chain

ROW_BYTES = {"flat": 4 * DIM + 8, "ivf_flat": 4 * DIM + 8, "ivf_sq8": DIM + 8, "opq_ivf_pq": 3 + 8}


def parts_of(rows: int, kind: str = "flat") -> str:
    """Return the setting for parts of at most `rows` rows."""
    return f"index.part_gib={(rows + 0.5) * ROW_BYTES[kind] / GIB:.12f}"


def chain_of(root: Path, cluster: Workers, *overrides: str) -> Chain:
    """Return a root with six units of 200 rows, some of them dead."""
    chain = Chain(root, cluster, ("gates.recall_at_10=0.9", *overrides))
    for _ in range(6):
        chain.add(200)
    return chain.kill(30)


@pytest.mark.parametrize("lists", ["in memory", "on disk"])
@pytest.mark.parametrize("kind", ROW_BYTES)
def test_several_parts_answer_like_one(kind: str, lists: str, cluster: Workers, tmp_path: Path):
    if lists == "on disk" and kind == "flat":
        pytest.skip("a flat index has no lists")
    settings = [f"index.kind={kind}", "index.train_rows=1100"]
    if lists == "on disk":
        settings.append("index.on_disk=always")
    one = chain_of(tmp_path / "one", cluster, *settings)
    several = chain_of(tmp_path / "several", cluster, *settings, parts_of(500, kind))
    one.night()
    built = several.night()
    several.assert_sound(exhaustive=kind == "flat")
    assert built.parts >= 3
    assert built.settings == one.built.settings
    assert {k: found.value for k, found in built.measured.recall.items()} == {
        k: found.value for k, found in one.built.measured.recall.items()
    }
    asked = np.array([several.vectors[address] for address in several.live()[::11]]) + 0.01
    expected, found = one.parts().search(asked, 10), several.parts().search(asked, 10)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
    # rows with equal codes may change places
    assert (np.sort(found[1]) == np.sort(expected[1])).mean() > 0.99


def test_a_kind_that_cannot_be_merged_has_several_parts_too(cluster: Workers, tmp_path: Path):
    chain = chain_of(tmp_path, cluster, "index.kind=hnsw", "index.part_gib=0.00015")
    assert chain.night().parts >= 3
    chain.assert_sound()


def test_parts_hold_the_rows_of_consecutive_units(cluster: Workers, tmp_path: Path):
    chain = chain_of(tmp_path, cluster, "index.kind=flat", parts_of(400))
    chain.night()
    first = 0
    for part, index in zip(chain.before.index_parts(), chain.parts().indexes, strict=True):
        held = np.concatenate(list(type(chain.parts())([index]).addresses()))
        assert len(held) == part.rows <= 400
        assert ordinal_of(held).min() >= first
        assert ordinal_of(held).max() + 1 == part.next_ordinal
        first = part.next_ordinal


def test_only_parts_with_changed_rows_are_written_again(cluster: Workers, tmp_path: Path):
    chain = chain_of(tmp_path, cluster, "index.kind=ivf_flat", "index.nlist=8", parts_of(400))
    chain.night()
    before = chain.before.index_parts()
    assert len(before) == 3
    chain.kill(5, units=[2, 3]).add(20)
    chain.night()
    chain.assert_sound(exhaustive=False)
    after = chain.before.index_parts()
    assert [new.files == old.files for new, old in zip(after, before, strict=True)] == [True, False, False]
    assert after[1].ids == before[1].ids  # ids of dead rows stay
    assert after[2].ids[:-1] == before[2].ids
    assert chain.chosen()["index"] == "in place"


def test_rows_that_a_full_part_has_no_room_for_become_a_new_part(cluster: Workers, tmp_path: Path):
    chain = chain_of(tmp_path, cluster, "index.kind=flat", parts_of(400))
    chain.night()
    before = chain.before.index_parts()
    chain.add(150)  # 1.25 times a full part is the most
    chain.night()
    chain.assert_sound()
    assert [part.files for part in chain.before.index_parts()[:3]] == [part.files for part in before]
    assert len(chain.before.index_parts()) == 4
    chain.add(30).kill(10)
    chain.night()
    chain.assert_sound()
    assert len(chain.before.index_parts()) == 4


def test_a_part_without_live_rows_is_left_out(cluster: Workers, tmp_path: Path):
    chain = chain_of(tmp_path, cluster, "index.kind=flat", parts_of(200))
    chain.night()
    assert chain.built.parts == 6
    chain.kill(None, units=[1])
    chain.night()
    chain.assert_sound()
    assert chain.built.parts == 5
    chain.kill(5).add(10)
    chain.night()
    chain.assert_sound()


def test_a_delta_beside_several_parts_has_several_parts(cluster: Workers, tmp_path: Path):
    settings = ("index.kind=flat", "index.rewrite_gib=1e-9")
    chain = chain_of(tmp_path, cluster, *settings, parts_of(400))
    chain.night()
    base = chain.before.index_parts()
    chain.overrides = (*chain.overrides, parts_of(30))
    chain.add(25).add(25).kill(5, units=[0])
    chain.night()
    chain.assert_sound()
    parts = chain.before.index_parts()
    assert parts[: len(base)] == base
    assert len(parts) == len(base) + 2
    chain.add(10).kill(3)
    chain.night()
    chain.assert_sound()
    assert chain.before.index_parts()[: len(base)] == base


def test_many_files_of_ids_become_one_without_dead_rows(cluster: Workers, tmp_path: Path):
    chain = Chain(tmp_path, cluster, ("index.kind=flat",)).add(200)
    chain.night()
    counts = []
    for _ in range(extend_tasks.MAX_IDS_FILES + 1):
        chain.add(3).kill(1)
        chain.night()
        counts.append(len(chain.built.ids))
    assert max(counts) == extend_tasks.MAX_IDS_FILES
    assert counts[-1] < 5
    chain.assert_sound()


def test_readers_open_some_of_the_parts(cluster: Workers, tmp_path: Path):
    chain = chain_of(tmp_path, cluster, "index.kind=flat", parts_of(400))
    chain.night()
    whole = manta.open_release(tmp_path)
    parts = [manta.open_release(tmp_path, parts=[number]) for number in range(3)]
    assert sum(map(len, parts)) == len(whole) == len(chain.live())
    asked = np.array([chain.vectors[address] for address in chain.live()[::50]])
    expected = whole.search(asked, 5)
    for query in range(len(asked)):
        answers = [
            answer for part in parts for answer in part.search(asked[query : query + 1], 5).to_pylist()
        ]
        best = sorted(answers, key=lambda answer: -answer["score"])[:5]
        wanted = expected.filter(pc.equal(expected["query"], query))["id"].to_pylist()
        assert [answer["id"] for answer in best] == wanted

"""Moments of live rows are those of their vectors, and vectors are read only of units with new dead rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.rows import LiveRows
from pipeline.flows.transform.moments import MergedMoments, MergeMoments, UnitToMerge
from pipeline.flows.workers.interface import Workers
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.flows.conftest import sentences
from tests.flows.index.extending import SPACE, Chain

pytestmark = pytest.mark.usefixtures("cluster")


def merged(chain: Chain, known: tuple[FileRef | None, ...] | None = None) -> MergedMoments:
    items = zip(chain.units, known or (None,) * len(chain.units), strict=True)
    source = LiveRows(chain.store, SPACE, "id", chain.dead_file())
    return MergeMoments(source).start()(tuple(UnitToMerge(*item) for item in items))


def assert_of_live_rows(chain: Chain, found: MergedMoments) -> None:
    live = np.array([chain.vectors[address] for address in chain.live()], np.float64)
    moments = Moments.from_bytes(found.merged.read(chain.store))
    assert moments.count == len(live)
    np.testing.assert_allclose(moments.mean, live.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(moments.covariance(), np.cov(live.T, bias=True), atol=1e-10)


def test_only_units_with_new_dead_rows_are_read_again(cluster: Workers, tmp_path: Path):
    chain = Chain(tmp_path / "root", cluster).add(300).add(400, dropped=(3, 70)).add(500)
    chain.kill(20, units=(0,)).kill(385, units=(1,))
    first = merged(chain)
    assert [file is not None for file in first.live] == [True, True, False]
    assert_of_live_rows(chain, first)
    chain.kill(7, units=(2,))
    from_vectors = merged(chain)
    for unit in chain.units[:2]:
        chain.store.delete(unit.path)
    from_stored = merged(chain, first.live)
    assert from_stored == from_vectors, "the same bits from the stored moments as from the vectors"
    assert_of_live_rows(chain, from_stored)
    chain.kill(1, units=(0,))
    # other dead rows than the stored moments were computed without
    with pytest.raises(DataError, match="no such file"):
        merged(chain, from_stored.live)


def test_missing_moments_are_computed_again_and_changed_ones_refused(cluster: Workers, tmp_path: Path):
    chain = Chain(tmp_path / "root", cluster).add(300).kill(20)
    first = merged(chain)
    assert first.live[0] is not None
    chain.store.delete(first.live[0].path)
    assert merged(chain, first.live) == first
    assert first.live[0].is_complete(chain.store)
    chain.store.write(first.live[0].path, b"changed")
    with pytest.raises(DataError, match="sha256"):
        merged(chain, first.live)


def test_moments_of_small_units_are_not_stored(cluster: Workers, tmp_path: Path):
    chain = Chain(tmp_path / "root", cluster).add(60).kill(2)
    found = merged(chain)
    assert found.live == (None,)
    assert_of_live_rows(chain, found)


def test_a_unit_whose_vectors_are_all_dead_is_left_out(cluster: Workers, tmp_path: Path):
    chain = Chain(tmp_path / "root", cluster).add(30, dropped=(4,)).add(50).kill(None, units=(0,))
    found = merged(chain)
    assert len(found.live) == 2
    assert_of_live_rows(chain, found)


def test_a_release_names_the_moments_without_dead_rows(make_job: Callable[..., Job], tmp_path: Path):
    job = make_job("encode.unit_rows=400", "whiten.mode=off", "index.kind=flat")
    store = open_store(job.release.root)

    def publish(rows: int) -> FileRef | None:
        table = pa.table({"id": ["row-00000"], "text": sentences(rows)[-1:], "lang": ["en"]})
        pq.write_table(table, tmp_path / "corpus" / "a-change.parquet")
        assert nightly(job, Stages()).status == "published"
        manifest = Releases(store).current()
        assert manifest is not None
        return manifest.units[0].live_moments

    assert nightly(job, Stages()).status == "published"
    first = publish(401)
    assert first is not None
    assert publish(402) == first, "the row of the first unit was replaced once"
    prune(Releases(store), keep=1, grace_s=-60)
    assert first.is_complete(store)

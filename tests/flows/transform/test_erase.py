"""Moments without erased rows are those of the vectors that stay, and so are those of a kept whitening."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.transform.erase import erase_from_moments
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages, listening
from pipeline.stats.moments import Moments
from pipeline.store.records.dead import write_addresses
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import store_by_content, store_table_by_content
from pipeline.store.releases.manifest import ReleaseManifest, WhiteningDecision
from pipeline.store.rows.address import ordinal_of, row_of
from pipeline.store.rows.schema import vector_matrix
from tests.flows.index.extending import Chain


def with_moments(chain: Chain, fitted_on: FileRef | None = None) -> ReleaseManifest:
    """Return the manifest of the last release with moments, and a whitening decided on them or earlier."""
    assert chain.before is not None
    live = np.array([chain.vectors[address] for address in chain.live()])
    content = Moments.of(live).to_bytes()
    moments = store_by_content(chain.store, content, "moments/merged", ".safetensors", len(live))
    decision = WhiteningDecision(fitted_on=fitted_on or moments, used=False, sentence="kept")
    return chain.before.model_copy(update={"moments": moments, "whitening": decision})


def test_moments_are_computed_from_the_rows_that_stay(child: LocalWorkers, tmp_path: Path):
    chain = Chain(tmp_path, child, ("index.kind=flat",)).add(300).add(200)
    chain.night()
    first = with_moments(chain)
    chain.add(50)
    chain.night()
    second = with_moments(chain, first.whitening.fitted_on)
    addresses = np.array([3, 5, (1 << 32) + 7])
    erased = write_addresses(chain.store, addresses, "erasures/e/addresses")
    units = [unit if unit.ordinal == 2 else without(chain, unit, addresses) for unit in chain.units]
    new = []
    for manifest in (first, second):
        after = manifest.model_copy(update={"units": tuple(units[: len(manifest.units)])})
        new.append(erase_from_moments(chain.context(Stages()), manifest, after, erased, "erasures/e/work"))
    for manifest, rows in zip(new, (497, 547), strict=True):
        found = Moments.from_bytes(manifest.moments.read(chain.store))
        kept = [chain.vectors[address] for address in sorted(chain.vectors) if address not in addresses]
        expected = Moments.of(np.array(kept[:rows]))
        assert found.count == manifest.moments.rows == rows
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)
        np.testing.assert_allclose(found.scatter, expected.scatter, atol=1e-9)
        assert manifest.whitening.fitted_on == new[0].moments


def test_moments_of_a_pruned_release_stay_and_are_named(child: LocalWorkers, tmp_path: Path):
    chain = Chain(tmp_path, child, ("index.kind=flat",)).add(60)
    chain.night()
    pruned = FileRef(path="moments/merged-0.safetensors", sha256="0" * 64, rows=70)
    manifest = with_moments(chain, pruned)
    erased = write_addresses(chain.store, np.array([3]), "erasures/e/addresses")
    with listening() as messages:
        after = erase_from_moments(chain.context(Stages()), manifest, manifest, erased, "erasures/e/work")
    assert after.whitening.fitted_on == pruned
    assert any("mean and scatter of 70 rows of a release that was pruned" in each for each in messages)


def without(chain: Chain, unit: VectorUnit, addresses: np.ndarray) -> VectorUnit:
    """Write a unit again without some rows, which join `dropped`."""
    rows = row_of(addresses[ordinal_of(addresses) == unit.ordinal])
    table = pq.read_table(unit.file.open(chain.store))
    kept = table.filter(pa.array(~np.isin(np.arange(len(table)), rows)))
    file = store_table_by_content(chain.store, kept, f"units/{unit.ordinal}")
    moments = Moments.of(vector_matrix(kept["vector"])).to_bytes()
    changes = {
        "dropped": tuple(rows.tolist()),
        "moments": store_by_content(chain.store, moments, f"moments/{unit.ordinal}", ".safetensors"),
    }
    return unit.model_copy(update=dict(file) | changes)

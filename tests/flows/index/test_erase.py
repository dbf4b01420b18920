"""An index is written again without erased rows: nothing of them is left, and others are found as before."""

from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import DataError
from pipeline.flows.index.erase import erase_from_index
from pipeline.flows.index.records import load_queries, load_truth
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.build.build import read_index
from pipeline.index.files.ids import Ids
from pipeline.index.files.parts import Parts, load_index
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.index.structure import ivf_of
from pipeline.log import Stages
from pipeline.store.records.dead import Dead, write_addresses
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import ReleaseManifest
from tests.flows.index.extending import Chain

EXACT = ("index.nprobe=99", "gates.recall_at_10=0.9")  # all lists: then answers depend on the codes alone


def erased_release(chain: Chain, addresses: np.ndarray, work: str = "erasures/e/work") -> ReleaseManifest:
    """Erase rows from the index of the last release; returns the new manifest, which is not published."""
    assert chain.before is not None
    erased = write_addresses(chain.store, np.sort(addresses), "erasures/e/addresses")
    return erase_from_index(chain.context(Stages()), chain.before, erased, work)


def opened(chain: Chain, manifest: ReleaseManifest) -> Parts:
    """Open the index of a manifest."""
    return load_index(chain.store, manifest.index, manifest.tombstones)


def contents(chain: Chain, manifest: ReleaseManifest) -> bytes:
    """Return all files of the index of a manifest, one after the other."""
    index = manifest.index
    small = (index.trained, index.queries, index.truth, manifest.tombstones)
    files = (*index.files, *manifest.ids, *(file for file in small if file))
    return b"".join(file.read(chain.store) for file in files)


def assert_erased(
    chain: Chain, before: ReleaseManifest, after: ReleaseManifest, addresses: np.ndarray
) -> None:
    """Assert that nothing of the rows is in the files, and that others have the same scores."""
    all_bytes = contents(chain, after)
    for address in addresses.tolist():
        raw = chain.vectors[address]
        unit = raw / np.linalg.norm(raw)
        assert not any(pattern.tobytes() in all_bytes for pattern in (raw, raw.astype(np.float16), unit))
        row_id = f"u{address >> 32}-{address & 0xFFFFFFFF}".encode()
        tables = [pa.ipc.open_file(file.read(chain.store)).read_all() for file in after.ids]
        assert all(row_id.decode() not in table["id"].to_pylist() for table in tables)
    others = np.setdiff1d(chain.live(), addresses)
    was, now = opened(chain, before), opened(chain, after)
    held = np.concatenate(list(now.addresses()))
    assert not np.isin(held, addresses).any()
    assert now.ntotal == len(others)
    asked = np.array([chain.vectors[address] for address in others[::13].tolist()])
    (old_scores, old), (scores, found) = was.search(asked, was.ntotal), now.search(asked, now.ntotal)
    for row in range(len(asked)):
        stays = ~np.isin(old[row], addresses) & (old[row] >= 0)
        np.testing.assert_array_equal(found[row][found[row] >= 0], old[row][stays])
        np.testing.assert_array_equal(scores[row][found[row] >= 0], old_scores[row][stays])
    queries, truth = (
        load_queries(chain.store, file_of(after.index.queries)),
        load_truth(chain.store, file_of(after.index.truth)),
    )
    assert len(queries) == len(truth.addresses)
    assert not np.isin(queries.addresses, addresses).any()
    assert not np.isin(truth.addresses, addresses).any()
    is_answer = truth.addresses != NO_NEIGHBOUR
    assert (is_answer[:, :-1] | ~is_answer[:, 1:]).all()  # answers come before places without one
    names = Ids([file.local(chain.store) for file in after.ids]).take(others)["id"].to_pylist()
    assert names == [f"u{a >> 32}-{a & 0xFFFFFFFF}" for a in others.tolist()]


def file_of(reference: FileRef | None) -> FileRef:
    """Return a reference that exists."""
    assert reference is not None
    return reference


@pytest.mark.parametrize(
    "overrides",
    [
        ("index.kind=flat", "index.part_gib=0.00004"),
        ("index.kind=ivf_sq8", "index.nlist=8"),
        ("index.kind=ivf_flat", "index.nlist=8", "index.on_disk=always"),
        ("index.kind=ivf_rabitq_refine", "index.nlist=8"),
        ("index.kind='IVF8,PQ4x4fs'",),
    ],
    ids=["parts", "sq8", "on disk", "refined", "fast scan"],
)
def test_rows_leave_base_delta_ids_and_measurements(
    child: LocalWorkers, tmp_path: Path, overrides: tuple[str, ...]
):
    chain = Chain(tmp_path, child, (*overrides, *EXACT)).add(300, dropped=[3]).add(250)
    chain.night()
    chain.add(20).kill(6)
    chain.night()
    before = chain.before
    assert before is not None
    queried = load_queries(chain.store, file_of(before.index.queries)).addresses[:2]
    dead = np.array(chain.dead[:3])
    lived = np.random.default_rng(0).choice(chain.live(), 12, replace=False)
    addresses = np.unique(np.concatenate([queried, dead, lived]))
    after = erased_release(chain, addresses)
    assert_erased(chain, before, after, addresses)
    assert erased_release(chain, addresses) == after
    tombstones = Dead.load(chain.store, after.tombstones).addresses
    assert np.isin(tombstones, chain.dead).all()
    assert not np.isin(tombstones, addresses).any()


def test_a_part_without_other_rows_goes_and_parts_without_erased_rows_stay(
    child: LocalWorkers, tmp_path: Path
):
    chain = Chain(tmp_path, child, ("index.kind=flat", "index.part_gib=0.00002", *EXACT))
    chain.add(200).add(200).add(200)
    chain.night()
    assert chain.before is not None
    assert chain.before.index.parts == 3
    of_second = np.array([address for address in chain.live() if address >> 32 == 1])
    after = erased_release(chain, of_second)
    assert after.index_parts() == (chain.before.index_parts()[0], chain.before.index_parts()[2])
    assert_erased(chain, chain.before, after, of_second)


def test_an_index_without_other_rows_is_refused(child: LocalWorkers, tmp_path: Path):
    chain = Chain(tmp_path, child, ("index.kind=flat", *EXACT)).add(60)
    chain.night()
    with pytest.raises(DataError, match="release 1: expected rows that stay in the index"):
        erased_release(chain, np.array(chain.live()))


@pytest.mark.parametrize("kind", ["ivf_flat", "ivf_sq8"])
def test_centroids_of_lists_with_one_row_go_with_it(child: LocalWorkers, tmp_path: Path, kind: str):
    overrides = (f"index.kind={kind}", "index.nlist=60", "index.part_gib=0.00001", *EXACT)
    chain = Chain(tmp_path, child, overrides).add(60).add(60)
    chain.night()
    before = chain.before
    assert before is not None
    assert before.index.parts > 1 or kind == "ivf_sq8"
    live, old = np.array(chain.live()), centroids(chain, before)
    units = np.array([chain.vectors[address] for address in live.tolist()])
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    nearest = np.linalg.norm(units[:, None] - old[None], axis=2).min(axis=1)
    alone = live[nearest < 1e-5][:5]
    assert len(alone) == 5
    after = erased_release(chain, alone)
    assert_erased(chain, before, after, alone)
    new = centroids(chain, after)
    distances = np.linalg.norm(units[np.isin(live, alone)][:, None] - new[None], axis=2)
    assert distances.min() > 1e-3
    changed = ~(new == old).all(axis=1)
    assert changed.sum() == 5
    assert opened(chain, after).fingerprints() == {after.index.settings["fingerprint"]}
    assert after.index.settings["fingerprint"] != before.index.settings["fingerprint"]


def centroids(chain: Chain, manifest: ReleaseManifest) -> np.ndarray:
    """Return the centroids (nlist, d) of the trained index of a manifest."""
    trained = read_index(file_of(manifest.index.trained).local(chain.store), mapped=False)
    ivf = ivf_of(trained)
    assert ivf is not None
    return np.asarray(faiss.downcast_index(ivf.quantizer).reconstruct_n(0, ivf.nlist))

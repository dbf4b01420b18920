"""An index that is built is stored as it was measured."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.flows.workers.workers import Workers
from pipeline.index.effort import get_effort
from tests.flows.index.extending import Chain

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize("on_disk", ["never", "always"])
def test_a_build_writes_files_with_the_measured_values(cluster: Workers, tmp_path: Path, on_disk: str):
    overrides = ("index.kind=ivf_flat", "index.nlist=30", f"index.on_disk={on_disk}", "index.queries=200")
    chain = Chain(tmp_path / "root", cluster, overrides).add(1_000).add(2_000)
    built = chain.night()
    chain.assert_sound(exhaustive=False)
    suffixes = [".faiss", ".ivfdata"] if on_disk == "always" else [".faiss"]
    assert [Path(file.path).suffix for file in built.files] == suffixes
    measured, parts = built.measured, chain.parts()
    assert (measured.rows, measured.queries, measured.duplicate_addresses) == (3_000, 100, 0)
    assert measured.file_bytes == sum(chain.store.size(file.path) for file in built.files)
    assert measured.recall["10"].value > 0.9
    assert measured.effort == get_effort(parts)
    for example in built.examples:
        found = parts.search(chain.vectors[example.query][None], 5)[1][0]
        others = found[found != example.query][: len(example.neighbours)]
        np.testing.assert_array_equal([address for address, _ in example.neighbours], others)

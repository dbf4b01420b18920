"""Every named kind of index has the layout and file size of its plan, and finds its rows."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.index.build.build import fill, remove, train, write_index
from pipeline.index.build.index_shape import plan_index
from pipeline.index.structure import inspect_factory, is_exact, ivf_of, make_ann
from pipeline.settings import IndexSettings
from pipeline.settings.index_kinds import DIMS_PER_BYTE, KINDS, IndexShape
from tests.index.clustered import clustered

ROWS = 20_000


@pytest.mark.parametrize("dim", [32, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layout_matches_the_index_that_faiss_builds(kind: str, dim: int):
    entry = KINDS[kind]
    for nlist in (7, 100) if entry.has_lists else (0,):
        for dims_per_byte in entry.code_recall or (DIMS_PER_BYTE,):
            layout = entry.layout(IndexShape(dim, nlist, dims_per_byte))
            inspected = inspect_factory(layout.factory, dim)
            assert asdict(inspected) | {"fixed_bytes": 0} == asdict(layout) | {"fixed_bytes": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_has_the_planned_size_finds_its_rows_and_removes_them(kind: str, tmp_path: Path):
    vectors, settings = clustered(ROWS), IndexSettings(kind=kind)
    plan = plan_index(ROWS, 32, settings)
    index = train(plan, None, vectors.raw[: max(1, plan.train_rows)])
    fill(index, vectors.batches())
    write_index(index, tmp_path / "index.faiss")
    assert (tmp_path / "index.faiss").stat().st_size == pytest.approx(plan.file_bytes, rel=0.05)
    if (ivf := ivf_of(index)) is not None:
        ivf.nprobe = ivf.nlist
    found = index.search(vectors.raw[:200], 10)[1]
    assert np.mean([own in row for own, row in zip(vectors.addresses[:200], found, strict=True)]) > 0.95
    if plan.removable:
        assert remove(index, vectors.addresses[:100]) == 100
        assert not np.isin(index.search(vectors.raw[:100], 10)[1], vectors.addresses[:100]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_only_kinds_with_lists_and_without_refinement_keep_them_on_disk(kind: str):
    settings = IndexSettings(kind=kind, on_disk="always")
    if KINDS[kind].mappable:
        assert plan_index(ROWS, 32, settings).on_disk
    else:
        with pytest.raises(ConfigError, match="name ivf_flat, "):
            plan_index(ROWS, 32, settings)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_that_compress_vectors_in_lists_have_a_measured_recall(kind: str):
    index = make_ann(plan_index(ROWS, 32, IndexSettings(kind=kind)).factory, 32)
    assert bool(KINDS[kind].code_recall) == (ivf_of(index) is not None and not is_exact(index))
    assert all(0 < value <= 1 for recall in KINDS[kind].code_recall.values() for value in recall)

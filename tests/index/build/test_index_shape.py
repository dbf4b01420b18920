"""The plan depends on rows, dimension and memory, and gives its reason."""

import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError

from pipeline.errors import ConfigError, DataError
from pipeline.index.build.build import train
from pipeline.index.build.index_shape import plan_extension, plan_index, plan_variant, variants_to_measure
from pipeline.index.measure.kind_recall import CAPTION_RECALLS
from pipeline.settings import IndexSettings


@pytest.mark.parametrize(
    ("rows", "memory_gib", "kind"),
    [
        (5_000, 8, "flat"),
        (1_000_000, 8, "ivf_flat"),
        (1_000_000, 1, "ivf_sq8"),
        (1_000_000, 0.2, "ivf_rabitq_refine"),
        (10_000_000, 8, "ivf_sq8"),
    ],
)
def test_auto_takes_a_kind_that_fits_and_is_exact_enough(rows, memory_gib, kind):
    plan = plan_index(rows, 384, IndexSettings(memory_gib=memory_gib))
    assert plan.kind == kind
    assert plan.memory_bytes <= memory_gib * 2**30
    assert not plan.on_disk


def test_auto_reports_the_recall_that_it_expects_and_where_that_was_measured():
    why = plan_index(1_000_000, 384, IndexSettings(memory_gib=1)).why
    assert f"where a recall@10 of 0.95 needs 0.975 (measured on {CAPTION_RECALLS.source})" in why


def test_auto_measures_only_where_vectors_must_be_compressed():
    settings = IndexSettings(memory_gib=1)
    assert not variants_to_measure(10_000, 384, settings, 0.95)
    assert not variants_to_measure(500_000, 384, settings, 0.95)
    assert ("ivf_sq8", 8) in variants_to_measure(1_000_000, 384, settings, 0.95)
    assert not variants_to_measure(1_000_000, 384, IndexSettings(memory_gib=1, kind="ivf_flat"), 0.95)


def test_an_extension_keeps_the_kind_that_was_measured():
    settings = IndexSettings(memory_gib=1)
    variants = variants_to_measure(1_000_000, 384, settings, 0.95)
    assert variants
    for variant in variants:
        plan = plan_variant(1_000_000, 384, settings, variant)
        extension = plan_extension(1_100_000, 384, settings, plan.kind, plan.factory)
        assert extension.factory == plan.factory.replace("IVF4000", "IVF4195")
    assert plan_extension(10_000, 384, settings, "ivf_sq8", "IVF4000,SQ8").kind == "flat"


def test_an_index_larger_than_memory_is_stored_on_disk_unless_forbidden():
    settings = IndexSettings(kind="ivf_sq8", memory_gib=1)
    assert plan_index(100_000_000, 384, settings).on_disk
    assert not plan_index(100_000_000, 384, settings.model_copy(update={"on_disk": "never"})).on_disk
    always = plan_index(5_000, 384, IndexSettings(on_disk="always"))
    assert (always.kind, always.on_disk) == ("ivf_flat", True)
    with pytest.raises(ConfigError, match=r"index\.on_disk is always"):
        plan_index(5_000, 384, IndexSettings(kind="hnsw", on_disk="always"))


@pytest.mark.parametrize("rows", [1, 10, 38, 39, 100, 5_000, 10**6, 10**9])
def test_lists_can_always_be_trained(rows):
    plan = plan_index(rows, 64, IndexSettings(kind="ivf_flat", on_disk="never"))
    assert 1 <= plan.nlist <= max(1, plan.train_rows // 39)
    assert plan.train_rows <= rows
    assert plan.nlist <= 4 * rows**0.5 + 1


def test_many_lists_are_searched_through_a_graph():
    assert "_HNSW32" not in plan_index(10**6, 64, IndexSettings(kind="ivf_flat")).factory
    assert "_HNSW32" in plan_index(10**8, 64, IndexSettings(kind="ivf_flat")).factory


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (IndexSettings(kind="ivf_flat", nlist=500), "at least 500 rows to train on, found 100"),
        (IndexSettings(kind="opq_ivf_pq"), "at least 256 rows to train on, found 100"),
        (IndexSettings(kind="IVF200,Flat"), "at least 200 rows to train on, found 100"),
        (IndexSettings(kind="PQ8"), "at least 256 rows to train on, found 100"),
        (IndexSettings(kind="IVF_pancake"), "index.kind: IVF_pancake"),
        (IndexSettings(kind="IVF8,PQ7"), "index.kind: IVF8,PQ7"),
        (IndexSettings(kind="PCA64,Flat"), "PCAMatrix from 32 to 64 dimensions"),
        (IndexSettings(kind="ITQ64,Flat"), "ITQTransform from 32 to 64 dimensions"),
        (IndexSettings(kind="OPQ5_8,Flat"), "5 sub-quantizers of 8 dimensions"),
        (IndexSettings(kind="PCA0,Flat"), "PCAMatrix to no dimensions"),
        (IndexSettings(kind="IVF0,Flat"), "no inverted lists"),
        (IndexSettings(kind="HNSW0"), "a graph with fewer than 2 links for each row"),
        (IndexSettings(kind="HNSW1,SQ8"), "a graph with fewer than 2 links for each row"),
        (IndexSettings(kind="IVF8_HNSW1,Flat"), "a graph with fewer than 2 links for each row"),
        (IndexSettings(kind="OPQ4_8,Flat"), "at least 256 rows to train on, found 100"),
        (IndexSettings(kind="IDMap,IVF8,Flat"), "IndexIDMap"),
        (IndexSettings(kind="IDMap2,Flat"), "leave out IDMap"),
        (IndexSettings(kind="IVF8,Flat,RFlat"), "IndexRefineFlat"),
        (IndexSettings(kind="IVF8,SQ4,Refine(HNSW8)"), "like, found IndexHNSWFlat"),
        (IndexSettings(kind="SQ4,Refine(Flat)"), "leave out IDMap"),
        (IndexSettings(kind="IVF8,FlatDedup"), "IndexIVFFlatDedup"),
        (IndexSettings(kind="NSG32"), "IndexNSGFlat"),
    ],
)
def test_settings_that_cannot_be_built_are_refused_by_name(settings, words):
    with pytest.raises(ConfigError, match=words):
        plan_index(100, 32, settings)


@pytest.mark.parametrize("kind", ["PCA8,Flat", "PCAR8,Flat", "PCAW8,Flat", "ITQ8,Flat", "PCA8,L2norm,Flat"])
def test_components_need_as_many_rows(kind: str):
    rows = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
    assert train(plan_index(8, 32, IndexSettings(kind=kind)), None, rows).is_trained
    for few in (1, 7):
        with pytest.raises(ConfigError, match=f"at least 8 rows to train on, found {few}"):
            plan_index(few, 32, IndexSettings(kind=kind))


def test_a_factory_string_is_planned_as_faiss_builds_it():
    plan = plan_index(10_000, 32, IndexSettings(kind="PCA16,IVF64,SQ4"))
    assert (plan.kind, plan.nlist, plan.shardable) == ("factory", 64, True)
    assert 10_000 * (8 + 8) < plan.file_bytes < 1.2 * 10_000 * (8 + 8)
    assert not plan_index(10_000, 32, IndexSettings(kind="HNSW16")).shardable


def test_an_index_without_rows_is_refused():
    with pytest.raises(DataError, match="at least one vector"):
        plan_index(0, 32, IndexSettings())
    with pytest.raises(ValidationError):
        IndexSettings(memory_gib=0)


def test_a_plan_of_a_named_kind_does_not_import_faiss():
    code = """
import sys
from pipeline.index.build.index_shape import plan_index
from pipeline.settings import IndexSettings
plan_index(10**6, 384, IndexSettings())
print("faiss" in sys.modules)
"""
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False\n"
    )


def test_without_faiss_the_error_names_the_extras():
    code = """
import sys
from pipeline.errors import ConfigError
sys.modules["faiss"] = None
try:
    import pipeline.index.build.build
except ConfigError as error:
    print(error)
"""
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(extra in message for extra in ("[cpu]", "[gpu]", "[local]"))

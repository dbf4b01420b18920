"""The plan follows from rows, dimension and memory, and says why."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from pipeline.errors import ConfigError, DataError
from pipeline.index.plan import plan_index
from pipeline.settings import IndexSettings


@pytest.mark.parametrize(
    ("rows", "memory_gib", "kind"),
    [
        (5_000, 8, "flat"),
        (1_000_000, 8, "ivf_flat"),
        (1_000_000, 1, "ivf_sq8"),
        (1_000_000, 0.2, "opq_ivf_pq"),
        (10_000_000, 8, "ivf_sq8"),
    ],
)
def test_auto_takes_the_most_exact_kind_that_fits(rows, memory_gib, kind):
    plan = plan_index(rows, 384, IndexSettings(memory_gib=memory_gib))
    assert plan.kind == kind
    assert plan.memory_bytes <= memory_gib * 2**30
    assert not plan.on_disk


def test_auto_says_what_did_not_fit():
    assert "IVF4000,Flat would take 1.4" in plan_index(1_000_000, 384, IndexSettings(memory_gib=1)).why


def test_what_no_memory_holds_goes_to_disk_unless_forbidden():
    assert plan_index(100_000_000, 384, IndexSettings(memory_gib=1)).on_disk
    assert not plan_index(100_000_000, 384, IndexSettings(memory_gib=1, on_disk="never")).on_disk
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


def test_many_lists_are_found_through_a_graph():
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
        (IndexSettings(kind="IDMap,IVF8,Flat"), "IndexIDMap"),
        (IndexSettings(kind="IDMap2,Flat"), "leave out IDMap"),
        (IndexSettings(kind="IVF8,Flat,RFlat"), "IndexRefineFlat"),
        (IndexSettings(kind="IVF8,FlatDedup"), "IndexIVFFlatDedup"),
        (IndexSettings(kind="NSG32"), "IndexNSGFlat"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(settings, words):
    with pytest.raises(ConfigError, match=words):
        plan_index(100, 32, settings)


def test_a_factory_string_is_planned_as_faiss_makes_it():
    plan = plan_index(10_000, 32, IndexSettings(kind="PCA16,IVF64,SQ4"))
    assert (plan.kind, plan.nlist, plan.shardable) == ("factory", 64, True)
    assert 10_000 * (8 + 8) < plan.file_bytes < 1.2 * 10_000 * (8 + 8)
    assert not plan_index(10_000, 32, IndexSettings(kind="HNSW16")).shardable


def test_no_rows_are_no_index():
    with pytest.raises(DataError, match="at least one vector"):
        plan_index(0, 32, IndexSettings())
    with pytest.raises(ValidationError):
        IndexSettings(memory_gib=0)


def test_a_plan_of_a_named_kind_does_not_import_faiss():
    code = """
import sys
from pipeline.index.plan import plan_index
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
    import pipeline.index.build
except ConfigError as error:
    print(error)
"""
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(extra in message for extra in ("[cpu]", "[gpu]", "[local]"))

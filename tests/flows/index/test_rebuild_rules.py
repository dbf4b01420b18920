"""Every rule causes a rebuild beyond its bound, not at the bound, and reports the numbers it compared."""

import pytest

from pipeline.flows.index import rebuild_rules
from pipeline.flows.index.rebuild_rules import KEPT, REBUILT
from pipeline.index.build.index_shape import plan_index
from pipeline.index.measure.metrics import IndexMetrics, Latency, Proportion
from pipeline.settings import GateSettings, IndexSettings, Job
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import EncoderFiles, IndexFiles, ReleaseManifest

FILE = FileRef(path="indexes/a.faiss", sha256="0" * 64, bytes=3 * 2**30)
INDEX = IndexFiles(
    kind="ivf_flat",
    factory="IVF100,Flat",
    dim=32,
    files=(FILE,),
    settings={"nlist": 100, "effort": 8},
    trained_on={"rows": 1_000, "imbalance": 1.2, "recall_at_10": 0.96},
)


def manifest(job: Job, **changed: object) -> ReleaseManifest:
    """Make a manifest of a release with two units."""
    units = tuple(
        VectorUnit(
            ordinal=n,
            path=f"u{n}",
            rows=10,
            sha256=f"{n}" * 64,
            space_id="s",
            numerics_id="n",
            corpus=FILE,
            record=f"r{n}",
        )
        for n in (0, 2)
    )
    known = {
        "space_id": "s",
        "numerics": {},
        "rows": 20,
        "units": units,
        "next_ordinal": 3,
        "index": INDEX,
        "ids": (),
        "corpus": FILE,
    }
    return ReleaseManifest.model_validate(
        {
            **known,
            "encoder": EncoderFiles(path="e", files=()),
            "settings": job.model_dump(mode="json"),
            **changed,
        }
    )


def proportion(value: float, high: float) -> Proportion:
    """Make a proportion with an upper end of its interval."""
    return Proportion(hits=0, trials=100, value=value, low=0.3, high=high)


def measured(imbalance: float = 1.2, recall: float = 0.96, near: Proportion | None = None) -> IndexMetrics:
    """Make measurements with these values."""
    return IndexMetrics(
        rows=1_000,
        recall={"10": proportion(recall, 1.0)},
        effort=8,
        effort_name="nprobe",
        curve=(),
        latency=Latency(queries=1, p50_ms=1.0, p99_ms=1.0),
        queries=1,
        duplicate_addresses=0,
        file_bytes=1,
        nlist=100,
        imbalance=imbalance,
        fingerprint="f",
        recall_near_dead=near,
    )


@pytest.mark.parametrize(
    ("value", "high", "chosen"),
    [(0.40, 0.44, REBUILT), (0.84, 0.85, REBUILT), (0.84, 0.87, KEPT), (0.96, 0.97, KEPT)],
)
def test_low_recall_near_deleted_rows_causes_a_rebuild(value, high, chosen):
    choice = rebuild_rules.quantizer_fit(INDEX, 1_000, measured(near=proportion(value, high)))
    assert choice.chosen == chosen
    assert choice.numbers["recall_near_dead"] == value
    assert ("recall@10 near dead rows is" in choice.sentence) == (chosen == REBUILT)


@pytest.mark.parametrize(
    ("delta", "tombstones", "chosen"), [(100, 50, KEPT), (101, 0, REBUILT), (0, 51, REBUILT), (0, 0, KEPT)]
)
def test_a_delta_above_a_tenth_or_tombstones_above_a_twentieth_are_compacted(delta, tombstones, chosen):
    choice = rebuild_rules.compaction(delta, tombstones, 1_000)
    assert (choice.what, choice.chosen) == ("index compaction", chosen)
    assert choice.numbers == {
        "delta_share": delta / 1_000,
        "delta_bound": 0.1,
        "tombstone_share": tombstones / 1_000,
        "tombstone_bound": 0.05,
    }


@pytest.mark.parametrize("factory", ["Flat", "HNSW32", "L2norm,Flat"])
def test_an_index_without_a_quantizer_has_no_decision_about_it(factory):
    index = INDEX.model_copy(update={"factory": factory, "settings": {}})
    kept = rebuild_rules.quantizer_fit(index, 1_000, measured())
    assert kept.sentence == "recall@10 of the extended index is 0.9600; it was 0.9600 when it was built"
    lost = rebuild_rules.quantizer_fit(index, 1_000, measured(recall=0.9))
    assert lost.chosen == rebuild_rules.REBUILT
    assert lost.sentence.startswith("built from scratch: recall@10 fell")


@pytest.mark.parametrize(
    ("imbalance", "recall", "chosen", "words"),
    [
        (1.2 * 1.25, 0.96 - 0.01, KEPT, "kept"),
        (1.501, 0.96, REBUILT, "from 1.200 to 1.501"),
        (1.2, 0.9499, REBUILT, "from 0.9600 to 0.9499"),
        (0.5, 1.0, KEPT, "kept"),
    ],
)
def test_an_outdated_quantizer_is_trained_again(imbalance, recall, chosen, words):
    choice = rebuild_rules.quantizer_fit(INDEX, 1_000, measured(imbalance, recall))
    assert (choice.what, choice.chosen) == ("index training", chosen)
    assert words in choice.sentence
    assert choice.numbers["imbalance"] == imbalance
    assert choice.numbers["imbalance_bound"] == pytest.approx(1.5)
    assert choice.numbers["recall_at_10"] == recall
    assert choice.numbers["recall_bound"] == pytest.approx(0.95)


@pytest.mark.parametrize(("rows", "chosen"), [(1_999, KEPT), (2_000, REBUILT), (501, KEPT), (500, REBUILT)])
def test_twice_or_half_the_rows_change_the_number_of_lists(rows, chosen):
    for metrics in (None, measured()):
        assert rebuild_rules.quantizer_fit(INDEX, rows, metrics).chosen == chosen
    flat = INDEX.model_copy(update={"settings": {"nlist": 0}})
    assert rebuild_rules.quantizer_fit(flat, rows, None).chosen == KEPT  # there is no quantizer


@pytest.mark.parametrize(("kept", "fires"), [(500, False), (499, True), (0, True)])
def test_an_index_with_less_than_half_of_its_rows_left_is_rebuilt(kept, fires):
    choice = rebuild_rules.turnover(kept, 1_000)
    assert (choice is not None) == fires
    if choice:
        assert choice.numbers == {"rows_kept": kept, "rows_before": 1_000, "bound": 500}


@pytest.mark.parametrize(
    ("previous", "space_id", "new_addresses", "reason"),
    [
        (None, "s", True, "the first of this root"),
        (manifest(Job()), "t", True, "all rows have new addresses"),
        (manifest(Job()), "t", False, "the vectors are of another space"),
    ],
)
def test_an_index_of_other_vectors_is_not_extended(previous, space_id, new_addresses, reason):
    choice = rebuild_rules.nothing_to_extend(previous, space_id, new_addresses=new_addresses)
    assert (choice.chosen, choice.sentence) == (REBUILT, f"built from scratch: {reason}")
    assert rebuild_rules.nothing_to_extend(manifest(Job()), "s", new_addresses=False) is None


@pytest.mark.parametrize(
    ("section", "change", "word"),
    [
        ("index", {"queries": 50}, "index.queries"),
        ("index", {"nlist": 7, "nprobe": 3}, "index.nlist, index.nprobe"),
        ("gates", {"recall_at_10": 0.9}, "gates.recall_at_10"),
        ("index", {"shards": 3, "rewrite_gib": 1.0, "memory_gib": 2.0}, None),
        ("gates", {"p99_ms": 5.0}, None),
    ],
)
def test_settings_of_the_index_layout_cause_a_rebuild(section, change, word):
    before = manifest(Job())
    sections = {"index": IndexSettings, "gates": GateSettings}
    choice = rebuild_rules.changed_settings(
        Job.model_validate({section: sections[section](**change)}), before, None, 32
    )
    assert (choice is None) == (word is None)
    assert word is None or word in choice.sentence


@pytest.mark.parametrize("name", ["on_disk", "queries"])
def test_a_setting_that_the_previous_release_did_not_know_had_its_default(name):
    before = manifest(Job())
    settings = {key: value for key, value in before.settings["index"].items() if key != name}
    before = before.model_copy(update={"settings": before.settings | {"index": settings}})
    assert rebuild_rules.changed_settings(Job(), before, None, 32) is None
    other = {"on_disk": "always", "queries": 50}[name]
    choice = rebuild_rules.changed_settings(
        Job(index=IndexSettings.model_validate({name: other})), before, None, 32
    )
    assert choice.sentence.endswith(f": index.{name}")


def test_another_dimension_or_transform_causes_a_rebuild():
    assert rebuild_rules.changed_settings(Job(), manifest(Job()), None, 32) is None
    assert rebuild_rules.changed_settings(Job(), manifest(Job()), None, 31).numbers == {
        "dim": 31,
        "dim_before": 32,
    }
    assert (
        "the transform has changed"
        in rebuild_rules.changed_settings(Job(), manifest(Job(), transform_id="t"), None, 32).sentence
    )


@pytest.mark.parametrize(
    ("ordinal", "sha256", "fires"),
    [(0, "0" * 64, False), (2, "9" * 64, True), (3, "9" * 64, False), (1, "9" * 64, True)],
)
def test_a_changed_unit_at_a_used_ordinal_causes_a_rebuild(ordinal, sha256, fires):
    before = manifest(Job())
    unit = before.units[0].model_copy(update={"ordinal": ordinal, "sha256": sha256})
    assert (rebuild_rules.changed_units([unit], before) is not None) == fires


@pytest.mark.parametrize(
    ("rows", "settings", "fires"),
    [
        (300_000, {"kind": "auto"}, False),
        (150_000, {"kind": "auto"}, False),
        (10_000, {"kind": "auto"}, True),
        (300_000, {"kind": "auto", "memory_gib": 0.02}, True),
        (300_000, {"kind": "ivf_flat", "on_disk": "always"}, True),
    ],
)
def test_another_kind_chosen_by_auto_causes_a_rebuild(rows, settings, fires):
    choice = rebuild_rules.changed_kind(plan_index(rows, 32, IndexSettings(**settings)), INDEX)
    assert (choice is not None) == fires


@pytest.mark.parametrize(
    ("kind", "changes", "gib", "words"),
    [
        ("ivf_flat", {}, 3.0, None),
        ("ivf_flat", {}, 2.9, "3.0 GiB is larger than index.rewrite_gib (2.9)"),
        ("hnsw", {}, 64.0, "rows cannot be removed from"),
        ("IVF16,PQ4x4fs", {}, 64.0, "rows cannot be removed from"),
        ("IVF16_HNSW8,Flat", {}, 64.0, None),
        ("ivf_flat", {"delta_ids": 1}, 64.0, "a delta already"),
        ("ivf_flat", {"files": (FILE, FileRef(path="a.ivfdata", sha256=""))}, 64.0, "lists are on disk"),
    ],
)
def test_an_index_that_cannot_be_changed_in_place_gets_a_delta(kind, changes, gib, words):
    plan = plan_index(100_000, 32, IndexSettings(kind=kind))
    found = rebuild_rules.delta_reason(plan, INDEX.model_copy(update=changes), gib)
    assert found is None if words is None else words in found

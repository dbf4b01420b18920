"""The page of an augmented corpus matches the rows of its units."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.augment import build_augmenters
from pipeline.flows.augment.augment import augment
from pipeline.flows.augment.page import report_of
from pipeline.flows.augment.result import Augmentation
from pipeline.log import Stages
from pipeline.report.augmentation_report import AugmentationReport
from pipeline.settings import Job
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.report.pages import Page

EDITS = (
    "augment.unit_rows=50",
    "augment.variants.cut={method: crop, options: {share: 0.5}}",
    "augment.variants.less={method: delete, options: {count: 2}}",
)
STRICT = "augment.keep.length_ratio=[0.5, 2.0]"
MakeJob = Callable[..., Job]
pytestmark = pytest.mark.usefixtures("cluster")


def rows_of(made: Augmentation) -> list[dict[str, Any]]:
    return [
        row
        for unit in made.manifest.units
        for row in pq.read_table(made.store.open(unit.path, unit.sha256)).to_pylist()
    ]


def page_of(made: Augmentation) -> str:
    return made.store.read(made.series.page(made.number)).decode()


def reported(made: Augmentation, job: Job, most: int) -> AugmentationReport:
    return report_of(made, build_augmenters(job.augment), job, 1.0, most)


def test_page_is_beside_its_manifest_and_matches_the_units(make_job: MakeJob):
    job = make_job(STRICT, "augment.keep.similarity=[0.2, 0.99]", *EDITS)
    made = augment(job, Stages())
    assert made.report == made.uri.removesuffix(".json") + ".html"
    shown, rows = " ".join(Page(page_of(made)).words.replace("\u00a0", " ").split()), rows_of(made)
    kept = sum(row[f"variant_{label}"] is not None for row in rows for label in made.manifest.labels)
    assert f"{kept:,} of 1,200 variants are kept" in shown
    report = reported(made, job, most=1_000)
    assert report.sample.rows == len(rows) == 400
    for number in range(3):
        assert report.sample.texts_by_kept[number] == sum(
            sum(row[f"variant_{label}"] is not None for label in made.manifest.labels) > number
            for row in rows
        )
    assert report.reasons == dict(
        Counter(
            row[f"reason_{label}"] for row in rows for label in made.manifest.labels if row[f"reason_{label}"]
        )
    )
    for method in report.methods:
        assert method.ratios is not None
        assert method.similarities is not None
        spots = [
            (row[f"variant_{label}"], row[f"rejected_{label}"], row[f"similarity_{label}"], row["text"])
            for row in rows
            for label in method.labels
        ]
        lengths = [len((variant or rejected).strip()) / len(text) for variant, rejected, _, text in spots]
        expected = np.histogram(np.minimum(lengths, 3.0), np.arange(61) / 20)[0]
        np.testing.assert_array_equal(np.add(method.ratios.kept, method.ratios.rejected), expected)
        assert sum(method.ratios.kept) == sum(variant is not None for variant, *_ in spots)
        assert method.similarities.total == sum(similarity is not None for _, _, similarity, _ in spots)


def test_examples_are_rows_and_reproducible(make_job: MakeJob, tmp_path: Path):
    job = make_job(STRICT, *EDITS)
    made = augment(job, Stages())
    sample, rows = reported(made, job, most=1_000).sample, {row["text"]: row for row in rows_of(made)}
    assert len({example.text for example in sample.examples}) == 20
    for example in sample.examples:
        row = rows[example.text]
        shown = {
            label: row[f"variant_{label}"] if row[f"reason_{label}"] is None else row[f"rejected_{label}"]
            for label in made.manifest.labels
        }
        assert example.variants == tuple(
            (label, text, row[f"reason_{label}"]) for label, text in shown.items()
        )
    assert sample.rejected
    for reason, rejected in sample.rejected.items():
        assert len(rejected) == 5
        assert all(
            rows[example.text][f"reason_{example.label}"] == reason
            and rows[example.text][f"rejected_{example.label}"] == example.variant
            for example in rejected
        )
    other_job = make_job(STRICT, *EDITS, "augment.unit_rows=130", f"release.root={tmp_path / 'other'}")
    other_sample = reported(augment(other_job, Stages()), other_job, most=1_000).sample
    assert {example.text for example in other_sample.examples} == {
        example.text for example in sample.examples
    }, "the examples do not depend on the units"


def test_sample_is_bounded_and_finds_rare_reasons(make_job: MakeJob, tmp_path: Path):
    texts = [f"sentence number {number} of them all" for number in range(300)]
    texts[270] = "word"  # a crop of it is itself
    pq.write_table(
        pa.table({"id": [f"{number:03d}" for number in range(300)], "text": texts}), tmp_path / "rare.parquet"
    )
    source = ("corpus.keep=[text]", f"corpus.uri={tmp_path / 'rare.parquet'}", "augment.unit_rows=20")
    job = make_job(*source, "augment.variants.cut={method: crop, options: {share: 0.4}}")
    made = augment(job, Stages())
    assert made.outcome_counts()["cut"]["identical"] == 1
    for most in (30, 45):
        sample = reported(made, job, most).sample
        assert sample.rows == most
        assert [example.text for example in sample.rejected["identical"]] == ["word"]


def test_missing_page_is_written_again_and_existing_page_is_kept(make_job: MakeJob):
    settings = EDITS
    made = augment(make_job(*settings), Stages())
    first = page_of(made)
    assert augment(make_job(*settings), Stages()).report == made.report
    assert page_of(made) == first
    made.store.delete(made.series.page(1))
    stages = Stages()
    assert augment(make_job(*settings), stages).status == "unchanged"
    assert "400 texts" in page_of(made)
    assert set(stages.seconds()) == {"report"}


def test_prune_deletes_the_page_with_its_manifest(make_job: MakeJob, tmp_path: Path):
    settings = EDITS
    augment(make_job(*settings), Stages())
    pq.write_table(
        pa.table({"id": ["new"], "text": ["one more sentence than before"], "lang": ["en"]}),
        tmp_path / "corpus" / "part-9.parquet",
    )
    made = augment(make_job(*settings), Stages())
    assert "1 new, 0 changed, 0 deleted rows" in " ".join(Page(page_of(made)).words.split())
    prune(Releases(made.store), keep=1, grace_s=-60)
    assert sorted(entry.path for entry in made.store.list(made.series.folder)) == [
        made.series.page(2),
        made.series.path(2),
    ]

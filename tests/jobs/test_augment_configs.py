"""Every example of an augmentation is one that would start, and what trains on its own variants reads what it
makes.
"""

from pathlib import Path

import pytest

from pipeline.augment import build_augmenters
from pipeline.augment.keep import check_keep
from pipeline.config import load_settings
from pipeline.settings import Job

ROOT = Path(__file__).parent.parent.parent
CONFIGS = ROOT / "jobs" / "configs"
BOTH = [
    file for file in sorted((CONFIGS / "train").glob("*.yaml")) if load_settings(Job, file).augment.variants
]
FILES = [*sorted((CONFIGS / "augment").glob("*.yaml")), *BOTH]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_shipped_methods_accept_their_options_and_the_named_command(file: Path):
    pytest.importorskip("py3langid")
    comment = [
        line.removeprefix("#").strip()
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    ]
    called = f"manta augment --config {file.relative_to(ROOT)}"
    command = next(line for line in comment if line.startswith(called))
    job = load_settings(Job, file, tuple(command.removeprefix(called).split()))
    for each in build_augmenters(job.augment):
        assert each.labels
        check_keep(each.settings.keep or job.augment.keep, "augment.keep")


@pytest.mark.parametrize("file", BOTH, ids=lambda file: file.stem)
def test_a_shipped_config_trains_on_its_own_variants(file: Path):
    job = load_settings(Job, file)
    (source,) = job.train.data
    assert source.uri == f"{job.release.root}/augmented/{job.augment.name}"
    made = {
        job.corpus.text,
        *(f"variant_{label}" for each in build_augmenters(job.augment) for label in each.labels),
    }
    assert source.columns
    assert made >= set(source.columns.values())


def test_cert_pairs_translations_through_chinese_and_german_and_keeps_equal_ones():
    job = load_settings(Job, CONFIGS / "train" / "cert.yaml")
    assert job.train.data[0].columns == {"anchor": "variant_zh", "positive": "variant_de"}
    assert (job.augment.keep.identical, job.augment.keep.duplicates) == (True, True)

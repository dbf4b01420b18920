"""The shipped settings of augmentations can be run as their comments say, and settings that also train on
their variants read the columns that they make.
"""

from pathlib import Path

import pytest

from pipeline.augment import build_augmenters
from pipeline.augment.keep import check_keep
from pipeline.config import load_settings
from pipeline.settings import Job
from tests.jobs.configs import CONFIGS, arguments_in_comment

TRAINED_ON_VARIANTS = [
    file for file in sorted((CONFIGS / "train").glob("*.yaml")) if load_settings(Job, file).augment.variants
]
FILES = [*sorted((CONFIGS / "augment").glob("*.yaml")), *TRAINED_ON_VARIANTS]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_shipped_methods_accept_their_options_and_the_named_command(file: Path):
    pytest.importorskip("py3langid")
    job = load_settings(Job, file, arguments_in_comment(file, "augment"))
    augmenters = build_augmenters(job.augment)
    assert augmenters
    for each in augmenters:
        assert each.labels
        check_keep(each.settings.keep or job.augment.keep, "augment.keep")


@pytest.mark.parametrize("file", TRAINED_ON_VARIANTS, ids=lambda file: file.stem)
def test_a_shipped_config_trains_on_its_own_variants(file: Path):
    job = load_settings(Job, file)
    (source,) = job.train.data
    assert source.uri == f"{job.release.root}/augmented/{job.augment.name}"
    variants = {f"variant_{label}" for each in build_augmenters(job.augment) for label in each.labels}
    assert source.columns
    assert {job.corpus.text, *variants} >= set(source.columns.values())


def test_cert_pairs_translations_through_chinese_and_german_and_keeps_equal_ones():
    job = load_settings(Job, CONFIGS / "train" / "cert.yaml")
    assert job.train.data[0].columns == {"anchor": "variant_zh", "positive": "variant_de"}
    assert (job.augment.keep.identical, job.augment.keep.duplicates) == (True, True)

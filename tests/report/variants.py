"""Reports of augmented corpora: the smallest one, one with all values, and ones with given counts."""

from dataclasses import replace

import numpy as np

from pipeline.augment import ModelStats, ModelWork
from pipeline.charts.augmentation import VariantHistogram
from pipeline.report.augmentation_report import (
    AugmentationReport,
    AugmentedExample,
    ExampleVariant,
    RejectedVariant,
    VariantMethod,
    VariantSample,
)
from pipeline.settings.augment import KeepSettings

RNG = np.random.default_rng(0)
LOOSE = KeepSettings()
STRICT = KeepSettings(
    length_ratio=(0.4, 1.7), similarity=(0.6, 0.98), language="en", repeats=1, repeat_words=4
)
RATIOS = VariantHistogram.of(
    RNG.uniform(0.3, 1.9, 900), RNG.random(900) < 0.8, np.arange(61) / 20, (0.4, 1.7)
)
COSINES = VariantHistogram.of(
    RNG.uniform(0.1, 1, 900), RNG.random(900) < 0.8, np.arange(-50, 51) / 50, (0.6, 0.98)
)
SMALLEST = AugmentationReport(
    name="main",
    number=1,
    uri="/srv/a/augmented/main/00000001.json",
    units_uri="",
    corpus="texts.parquet",
    rows=0,
    units=0,
    counts={},
    methods=(),
)
FULL = AugmentationReport(
    name="main",
    number=3,
    uri="s3://a/augmented/main/00000003.json",
    units_uri="s3://a/units/augmented/e6cd",
    corpus="s3://texts/*.parquet",
    rows=1_000,
    units=4,
    counts={
        "de": {"kept": 840, "unlike": 100, "alike": 60},
        "cut_1": {"kept": 1_000},
        "cut_2": {"kept": 990, "duplicate": 10},
    },
    methods=(
        VariantMethod("de", "back_translation", ("de",), STRICT, RATIOS, COSINES),
        VariantMethod("cut", "crop", ("cut_1", "cut_2"), LOOSE, RATIOS),
    ),
    sample=VariantSample(
        1_000,
        (1_000, 995, 830),
        (
            AugmentedExample(
                "a <b>man</b> reads",
                (
                    ExampleVariant("de", "a man is reading", None),
                    ExampleVariant("cut_1", "a man", None),
                    ExampleVariant("cut_2", "a <b>man</b>", "duplicate"),
                ),
            ),
            AugmentedExample("long", (ExampleVariant("de", None, "too_long_for_model"),)),
        ),
        {
            "unlike": (RejectedVariant("de", "a dog runs", "a cat sleeps"),),
            "alike": (RejectedVariant("de", "a man runs", None), RejectedVariant("de", "a man", "")),
        },
    ),
    quarantined=7,
    changes={"new": 5, "changed": 2, "deleted": 1},
    encoder="some/encoder",
    seed=11,
    seconds=184.0,
    created="2026-01-02 03:04 UTC",
    model_work=(
        ModelWork("de: en-de", ModelStats(500, 6_000, 7_000, 2_000, 40.0), 20.0),
        ModelWork("de: de-en", ModelStats(), 0.4),
    ),
    settings_text="augment:\n  name: a<b\n",
    packages={"six": "1.0"},
)


def report_with_counts(
    method: str = "back_translation", keep: KeepSettings = STRICT, **counts: int
) -> AugmentationReport:
    return replace(
        FULL,
        counts={"de": {**counts}},
        methods=(VariantMethod("de", method, ("de",), keep),),
        sample=VariantSample(),
    )

"""Made-up trainings for tests of reports."""

import math
from dataclasses import replace
from typing import Any

from pipeline.report.training_report import EncoderSummary, SourceSummary, TrainingReport
from pipeline.settings.training import TrainSettings
from pipeline.train.metrics_line import MetricsLine

SETTINGS = TrainSettings.model_validate(
    {
        "objective": {"name": "simcse", "options": {"temperature": 0.05}},
        "order": {"batch_rows": 64, "seed": 3},
        "seed": 11,
        "dev": {"uri": "/srv/sts/STSB-dev.parquet"},
    }
)


def line(step: int, **values: Any) -> MetricsLine:
    usual: dict[str, Any] = {
        "loss": 1.0 / step,
        "parts": {"info_nce": 1.0 / step},
        "gradient_norm": 1.5,
        "learning_rate": 3e-5,
        "alignment": 0.3,
        "uniformity": -2.5,
        "positive_cosine": 0.85,
        "negative_cosine": 0.1,
        "tokens_per_s": 5000.0,
        "rows_per_s": 90.0,
        "waiting": 0.01,
        "rows": 640,
        "seconds": 7.0,
    }
    return MetricsLine(step=step, epoch=step / 100, **usual | values)


ON_DEV: dict[int, dict[str, Any]] = {
    250: {"dev": 84.5, "dev_geometry": {"alignment": 0.21, "uniformity": -2.6}},
    500: {"dev": 83.1, "dev_geometry": {"alignment": 0.26, "uniformity": -2.75}},
}
LINES = (
    MetricsLine(step=0, epoch=0.0, dev=81.24, dev_geometry={"alignment": 0.2, "uniformity": -1.5}),
    *(line(step, **ON_DEV.get(step, {})) for step in range(10, 501, 10)),
)
TRAINED_ENCODER = EncoderSummary("a1" * 32, 384, 256, ("mean",), True)
SMALLEST = TrainingReport(
    name="nli",
    uri="/srv/trainings/nli",
    settings=TrainSettings(),
    encoder="some/encoder",
    start_space="5f" * 32,
    sources=(),
    steps=1,
    planned_steps=1,
    steps_per_epoch=1,
    lines=(),
    trained_encoder=TRAINED_ENCODER,
)
FULL = TrainingReport(
    name="simcse-3fa9c2d1e0b7",
    uri="s3://models/simcse-3fa9c2d1e0b7",
    settings=SETTINGS,
    encoder="/home/somebody/MiniLM",
    start_space="5f" * 32,
    sources=(
        SourceSummary("s3://texts/wiki/*.parquet", 6_512, 112),
        SourceSummary("more.parquet", 100, 0, 2),
    ),
    steps=500,
    planned_steps=500,
    steps_per_epoch=100,
    lines=LINES,
    trained_encoder=TRAINED_ENCODER,
    best_step=250,
    device="2 workers, CPU",
    created="2026-01-02 03:04 UTC",
    settings_text="train:\n  name: a<b\n",
    packages={"torch": "2.13.0", "six": "1.0"},
)


def with_settings(**values: Any) -> TrainingReport:
    return replace(FULL, settings=TrainSettings.model_validate(SETTINGS.model_dump() | values))


def at_chance(candidates: int, **values: Any) -> tuple[MetricsLine, ...]:
    """Return lines with a constant loss, the logarithm of the number of candidates."""
    return tuple(
        line(step, loss=math.log(candidates), parts={"info_nce": math.log(candidates)}, dev=80.0, **values)
        for step in (10, 20)
    )

"""Publish a trained model: write its encoder folder, the report and the record of the result.

The first rank does this once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pipeline.config import to_yaml
from pipeline.flows.train.run_folder import ENCODER, REPORT, RESULT, ResultRecord, RunFolder, RunRecord
from pipeline.log import counted, packages
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.expansion import expand_vocabulary
from pipeline.models.trainable.saving import SavedHeads, save_folder, save_joined
from pipeline.objectives import TrainedModel
from pipeline.report.model_card import write_card
from pipeline.report.training import render
from pipeline.report.training_report import EncoderSummary, SourceSummary, TrainingReport
from pipeline.report.training_warnings import training_warnings
from pipeline.settings import EncoderSettings
from pipeline.settings.training import Measure, TrainSettings
from pipeline.store.files.base import Store
from pipeline.train.dev import BestScore
from pipeline.train.metrics import read_metrics
from pipeline.train.metrics_line import MetricsLine

_PACKAGES = ("manta-embeddings", "torch", "ray", "tokenizers", "transformers", "pyarrow")
# Uploaded last: without them a folder is not recognized as an encoder.
_COMPLETING_FILES = ("modules.json", "config.json")


@dataclass(frozen=True)
class Outcome:
    """State of a training at its end, for the report."""

    steps: int
    """number of steps taken"""
    best: BestScore
    """best score on dev; `best.score` is None if nothing was measured"""
    workers: int
    """number of ranks"""
    device: str
    """device of the first rank"""
    warnings: tuple[str, ...] = ()
    """the objective's warnings about its settings"""
    scores: Mapping[str, Mapping[Measure, float]] = field(default_factory=dict)
    """metrics of the trained model's predictions, times 100, by file (dev, test) and name"""


def publish(
    run: RunFolder,
    settings: TrainSettings,
    model: TrainedModel,
    outcome: Outcome,
    expansion: EncoderSettings | None = None,
) -> ResultRecord:
    """Store the trained encoder with its model card, then the report, and last the record of the result.

    Args:
        run: folder of the training.
        settings: settings of the training.
        model: the trained model.
        outcome: state of the training at its end.
        expansion: word vectors with which the vocabulary is expanded first, or None.
    """
    with run.store.scratch() as scratch:
        folder = _save(model, scratch / ENCODER)
        if expansion is not None:
            folder = expand_vocabulary(folder, open_folder(expansion), settings.expand.vocabulary)
        is_cross_encoder = model.classifier is not None and model.classifier.reads_pairs
        encoder = EncoderSummary.of(folder, head=model.head is not None, is_cross_encoder=is_cross_encoder)
        report = _report(run, settings, encoder, outcome)
        write_card(report, folder.path)
        _upload(folder, run.store)
    run.store.write(REPORT, render(report, training_warnings(report)).encode())
    best = outcome.best.score
    metrics = _metrics_at_start_and_end(report.lines) if best is None else {"dev": best}
    for file, scores in outcome.scores.items():
        metrics |= {f"{file}_{measure}": score for measure, score in scores.items()}
    result = ResultRecord(
        name=run.name,
        digest=run.digest,
        space_id=folder.space_id,
        steps=outcome.steps,
        best_step=report.best_step,
        metrics=metrics,
        ended=report.reason_for_early_end,
    )
    run.store.create(RESULT, result.to_json())
    return result


def _save(model: TrainedModel, path: Path) -> EncoderFolder:
    """Write the folder of the trained encoder, or of both encoders of an objective that trains two."""
    if model.twin is not None:
        return save_joined((model.encoder, model.twin), path, language_head=model.language_head)
    heads = SavedHeads(model.head, model.language_head, model.classifier)
    return save_folder(model.encoder, model.encoder.folder, path, heads)


def _metrics_at_start_and_end(lines: Sequence[MetricsLine]) -> dict[str, float]:
    """Return the metrics of `MetricsLine.same_rows` before the first step and after the last.

    The keys are same_rows (number of rows), start_loss, end_loss and so on; empty if they were not measured.
    """
    measured = [line.same_rows for line in lines if line.same_rows]
    if len(measured) < 2:
        return {}
    metrics = {"same_rows": measured[0]["rows"]}
    for prefix, values in (("start", measured[0]), ("end", measured[-1])):
        metrics |= {f"{prefix}_{name}": value for name, value in values.items() if name != "rows"}
    return metrics


def _report(
    run: RunFolder, settings: TrainSettings, encoder: EncoderSummary, outcome: Outcome
) -> TrainingReport:
    """Collect the data of the report."""
    record = run.record()
    # Trainings that began with an earlier version have no overlap and no count of missing texts.
    overlaps = record.lexical_overlap or ({},) * len(settings.data)
    sources = (
        SourceSummary(
            source.uri, counts["rows"], counts["unlabelled"], source.weight, counts.get("missing", 0), overlap
        )
        for source, counts, overlap in zip(settings.data, record.counts, overlaps, strict=True)
    )
    chosen_by_dev = outcome.best.score is not None and settings.dev.keep == "best"
    return TrainingReport(
        name=run.name,
        uri=run.store.uri,
        settings=settings,
        encoder=record.encoder,
        start_space=run.definition["encoder"]["space_id"],
        sources=tuple(sources),
        steps=outcome.steps,
        planned_steps=record.steps,
        steps_per_epoch=record.steps_per_epoch,
        lines=tuple(read_metrics(run.store)),
        trained_encoder=encoder,
        best_step=outcome.best.step if chosen_by_dev else None,
        reason_for_early_end=_reason_for_early_end(settings, record, outcome),
        device=_describe_device(settings, outcome),
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        objective_warnings=outcome.warnings,
        scores=outcome.scores,
        settings_text=to_yaml(settings),
        packages=packages(*_PACKAGES),
    )


def _reason_for_early_end(settings: TrainSettings, record: RunRecord, outcome: Outcome) -> str:
    """Return why the training ended before the last planned step; empty if all steps were taken."""
    if outcome.steps >= record.steps:
        return ""
    if outcome.best.ended:
        return f"dev was no better in {outcome.best.since} measurements (train.dev.patience)"
    return f"the learning rate fell below {settings.schedule.least:g} (train.schedule.least)"


def _describe_device(settings: TrainSettings, outcome: Outcome) -> str:
    """Describe the workers, such as "2 workers, CPU, 4 threads each"."""
    workers = counted(outcome.workers, "worker")
    if outcome.device.startswith("cuda"):
        return f"{workers}, GPU"
    return f"{workers}, CPU, {counted(settings.threads, 'thread')} each"


def _upload(folder: EncoderFolder, store: Store) -> None:
    """Upload all files, in an order in which no reader takes a partial upload for an encoder."""
    files = [path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()]
    for file in (*sorted(set(files) - set(_COMPLETING_FILES)), *_COMPLETING_FILES):
        if file in files:
            store.put(folder.path / file, f"{ENCODER}/{file}")

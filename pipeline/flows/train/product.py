"""The results of a training: an encoder folder in the training's folder, its report, and its record."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pipeline.config import to_yaml
from pipeline.flows.train.run_folder import ENCODER, REPORT, RESULT, ResultRecord, RunFolder, RunRecord
from pipeline.log import packages
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.settings.training import TrainSettings
from pipeline.store.base import Store
from pipeline.train.metrics_line import MetricsLine

if TYPE_CHECKING:
    from pipeline.objectives import Product
    from pipeline.report.training_report import TrainingReport
    from pipeline.train.dev import Best

_PACKAGES = ("manta-embeddings", "torch", "ray", "tokenizers", "transformers", "pyarrow")
_LAST = ("modules.json", "config.json")  # without them a folder is not read as an encoder


@dataclass(frozen=True)
class Outcome:
    """The end of a training.

    Attributes:
        steps: number of steps taken.
        best: best score on dev; its figure is None if nothing was measured.
        workers: number of ranks.
        device: device of the first rank.
        warnings: the objective's warnings about its settings.
    """

    steps: int
    best: "Best"
    workers: int
    device: str
    warnings: tuple[str, ...] = ()


def publish(run: RunFolder, settings: TrainSettings, product: "Product", outcome: Outcome) -> ResultRecord:
    """Store the trained encoder with its model card, the report of the training, and last its result."""
    from pipeline.models.trainable.saving import save_folder, save_joined
    from pipeline.report.card import write_card
    from pipeline.report.training import render
    from pipeline.report.training_warnings import training_warnings

    with run.store.scratch() as scratch:
        folder = (
            save_folder(product.encoder, product.encoder.folder, scratch / ENCODER, head=product.head)
            if product.twin is None
            else save_joined((product.encoder, product.twin), scratch / ENCODER)
        )
        report = _report(run, settings, folder, outcome, head=product.head is not None)
        write_card(report, folder.path)
        _upload(folder, run.store)
    run.store.write(REPORT, render(report, training_warnings(report)).encode())
    best = outcome.best.figure
    result = ResultRecord(
        name=run.name,
        digest=run.digest,
        space_id=folder.space_id,
        steps=outcome.steps,
        best_step=report.best_step,
        figures=_at_both_ends(report.lines) if best is None else {"dev": best},
        ended=report.ended,
    )
    run.store.create(RESULT, result.to_json())
    return result


def _at_both_ends(lines: Sequence[MetricsLine]) -> dict[str, float]:
    """Return the metrics of the same rows: same_rows (number of rows), start_loss, end_loss and so on."""
    measured = [line.same_rows for line in lines if line.same_rows]
    if len(measured) < 2:
        return {}
    found = {"same_rows": measured[0]["rows"]}
    for end, values in (("start", measured[0]), ("end", measured[-1])):
        found |= {f"{end}_{name}": value for name, value in values.items() if name != "rows"}
    return found


def _report(
    run: RunFolder, settings: TrainSettings, folder: EncoderFolder, outcome: Outcome, *, head: bool
) -> "TrainingReport":
    from pipeline.report.training_report import EncoderSummary, SourceSummary, TrainingReport
    from pipeline.train.metrics import read_metrics

    record = run.record()
    sources = (
        # trainings begun with an earlier version have no count of missing texts
        SourceSummary(
            source.uri, counts["rows"], counts["unlabelled"], source.weight, counts.get("missing", 0)
        )
        for source, counts in zip(settings.data, record.counts, strict=True)
    )
    chosen = outcome.best.figure is not None and settings.dev.keep == "best"
    return TrainingReport(
        name=run.name,
        uri=run.store.uri,
        settings=settings,
        encoder=record.encoder,
        start_space=run.definition["encoder"]["space_id"],
        sources=tuple(sources),
        steps=outcome.steps,
        planned=record.steps,
        steps_per_epoch=record.steps_per_epoch,
        lines=tuple(read_metrics(run.store)),
        product=EncoderSummary.of(folder, head=head),
        best_step=outcome.best.step if chosen else None,
        ended=_ended(settings, record, outcome),
        device=_device(settings, outcome),
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        objective_warnings=outcome.warnings,
        settings_text=to_yaml(settings),
        packages=packages(*_PACKAGES),
    )


def _ended(settings: TrainSettings, record: RunRecord, outcome: Outcome) -> str:
    """Return the reason for ending before the last planned step; empty if all steps were taken."""
    if outcome.steps >= record.steps:
        return ""
    if outcome.best.ended:
        return f"dev was no better in {outcome.best.since} measurements (train.dev.patience)"
    return f"the learning rate fell below {settings.schedule.least:g} (train.schedule.least)"


def _device(settings: TrainSettings, outcome: Outcome) -> str:
    workers = f"{outcome.workers} {'workers' if outcome.workers > 1 else 'worker'}"
    if outcome.device.startswith("cuda"):
        return f"{workers}, GPU"
    return f"{workers}, CPU, {settings.threads} {'threads' if settings.threads > 1 else 'thread'} each"


def _upload(folder: EncoderFolder, store: Store) -> None:
    """Upload all files; those that readers look for come last, so that no reader opens a partial encoder."""
    files = [path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()]
    for file in (*sorted(set(files) - set(_LAST)), *_LAST):
        if file in files:
            store.put(folder.path / file, f"{ENCODER}/{file}")

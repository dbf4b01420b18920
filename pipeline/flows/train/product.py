"""What a training leaves: an encoder folder in the training's own, and the record that says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
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
_LAST = ("modules.json", "config.json")  # without them nobody takes a folder for an encoder


@dataclass(frozen=True)
class Outcome:
    """What a training came to. steps: that were made; best: on dev, without a figure where nothing was
    measured; doubts: what the objective says of its settings.
    """

    steps: int
    best: "Best"
    workers: int
    device: str
    doubts: tuple[str, ...] = ()


def publish(run: RunFolder, settings: TrainSettings, product: "Product", outcome: Outcome) -> ResultRecord:
    """Store the trained encoder with its model card, the page of the training, and last its result."""
    from pipeline.report.card import write_card
    from pipeline.report.training import render
    from pipeline.report.training_warnings import training_warnings

    with run.store.scratch() as scratch:
        folder = _saved(product, scratch / ENCODER)
        report = _report(run, settings, folder, outcome, head=product.head is not None)
        write_card(report, folder.path)
        _upload(folder, run.store)
    run.store.write(REPORT, render(report, training_warnings(report)).encode())
    figures = _at_both_ends(report.lines) if outcome.best.figure is None else {"dev": outcome.best.figure}
    result = ResultRecord(
        name=run.name,
        digest=run.digest,
        space_id=folder.space_id,
        steps=outcome.steps,
        best_step=report.best_step,
        figures=figures,
        ended=report.ended,
    )
    run.store.create(RESULT, result.to_json())
    return result


def _at_both_ends(lines: Sequence[MetricsLine]) -> dict[str, float]:
    """Name the measures of the same rows: same_rows (how many), start_loss, end_loss and so on."""
    measured = [line.same_rows for line in lines if line.same_rows]
    if len(measured) < 2 or measured[0] is measured[-1]:
        return {}
    found = {"same_rows": measured[0]["rows"]}
    for end, values in (("start", measured[0]), ("end", measured[-1])):
        found |= {f"{end}_{name}": value for name, value in values.items() if name != "rows"}
    return found


def _saved(product: "Product", path: Path) -> EncoderFolder:
    from pipeline.models.trainable.saving import save_folder, save_joined

    if product.twin is not None:
        return save_joined((product.encoder, product.twin), path)
    return save_folder(product.encoder, product.encoder.folder, path, head=product.head)


def _report(
    run: RunFolder, settings: TrainSettings, folder: EncoderFolder, outcome: Outcome, *, head: bool
) -> "TrainingReport":
    from pipeline.report.training_report import EncoderSummary, SourceSummary, TrainingReport
    from pipeline.train.metrics import read_metrics

    record = run.record()
    sources = (
        SourceSummary(
            source.uri, counts["rows"], counts["unlabelled"], source.weight, counts.get("missing", 0)
        )  # a training that an earlier version began has none
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
        objective_warnings=outcome.doubts,
        settings_text=to_yaml(settings),
        packages=packages(*_PACKAGES),
    )


def _ended(settings: TrainSettings, record: RunRecord, outcome: Outcome) -> str:
    """Why a training ended before its last step."""
    if outcome.steps >= record.steps:
        return ""
    if outcome.best.ended:
        return f"dev was no better in {outcome.best.since} measurements (train.dev.patience)"
    return f"the learning rate fell below {settings.schedule.least:g} (train.schedule.least)"


def _device(settings: TrainSettings, outcome: Outcome) -> str:
    kind = (
        "GPU"
        if outcome.device.startswith("cuda")
        else f"CPU, {settings.threads} {'threads' if settings.threads > 1 else 'thread'} each"
    )
    return f"{outcome.workers} {'workers' if outcome.workers > 1 else 'worker'}, {kind}"


def _upload(folder: EncoderFolder, store: Store) -> None:
    """Each file whole, and last the one that readers look for first: nobody opens half of an encoder."""
    files = [path.relative_to(folder.path) for path in folder.path.rglob("*") if path.is_file()]
    for file in sorted(files, key=_turn):
        store.put(folder.path / file, f"{ENCODER}/{file.as_posix()}")


def _turn(file: Path) -> tuple[int, str]:
    name = file.as_posix()
    return (_LAST.index(name) + 1 if name in _LAST else 0), name

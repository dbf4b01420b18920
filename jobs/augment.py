"""Make variants of a corpus's texts, and keep the good ones.

manta augment corpus.uri=sentences.parquet augment.variants.crop=crop augment.variants.delete=delete
python -m jobs.augment --config jobs/configs/augment/back-translation.yaml corpus.uri=sentences.parquet
"""

from typing import TYPE_CHECKING

from jobs.command import Answer, CommandRun, job_command, standalone
from jobs.layout import table
from pipeline.log import counted

if TYPE_CHECKING:
    from pipeline.augment import ModelWork
    from pipeline.flows.augment.result import Augmentation


@job_command
def augment(run: CommandRun) -> Answer:
    """Make variants of a corpus's texts, and keep the good ones.

    Back-translation and other methods with models run on pools of workers; methods that edit words run at the
    same time. Parquet units hold each text with its variants, and the reason if one was rejected. A numbered
    manifest below augmented/ lists the units, and `manta train` takes it as train.data. Finished work is not
    repeated: a command that was stopped continues, and a later one processes new texts only.
    """
    from pipeline.flows.augment.augment import augment as run_augmentation

    made = run_augmentation(run.job, run.stages, verbose=run.verbose)
    manifest = made.manifest
    facts = {
        "status": made.status,
        "root": made.store.uri,
        "manifest": made.uri,
        "report": made.report,
        "number": made.number,
        "rows": manifest.rows,
        "variants": made.rates(),
        "units": [made.store.uri_of(unit.path) for unit in manifest.units],
        "counts": made.corpus.counts if made.corpus is not None else {},
        "models": [_facts(work) for work in made.model_work],
        "seconds": run.stages.seconds(),
    }
    rows = counted(manifest.rows, "row")
    lines = [f"nothing changed since {made.uri} ({rows})"]
    if made.status != "unchanged":
        quarantined = made.corpus.counts["quarantined"] if made.corpus is not None else 0
        lines = [
            _rates(made),
            *map(_speed, made.model_work),
            f"{rows} in {counted(len(manifest.units), 'unit')}, {quarantined:,} quarantined",
            f"manifest  {made.uri}",
        ]
    return Answer(facts, "\n".join([*lines, f"report    {made.report}"]))


def _rates(made: "Augmentation") -> str:
    """Return a table of the proportions of kept and rejected variants, with a line for each label."""
    rows, lines = max(made.manifest.rows, 1), []
    for label, counts in made.rates().items():
        shown = {reason: f"{count / rows:.1%}" for reason, count in counts.items()}
        kept = shown.pop("kept")
        rejected = ", ".join(f"{reason} {proportion}" for reason, proportion in shown.items())
        lines.append((label, f"{counts['kept']:,}", kept, rejected or "nothing"))
    return table(lines, ("variant", "kept", "of the rows", "rejected"))


def _facts(work: "ModelWork") -> dict[str, object]:
    names = ("texts", "tokens_in", "tokens_out", "padding", "seconds")
    stats = {name: getattr(work.stats, name) for name in names}
    return {"models": work.title, **stats, "wall_s": work.seconds}


def _speed(work: "ModelWork") -> str:
    if not work.stats.texts:
        return f"{work.title}: nothing new"
    return (
        f"{work.title}: {counted(work.stats.texts, 'text')}, {work.per_s('texts'):,.1f} a second "
        f"with all workers, {work.padding:.1%} padding"
    )


if __name__ == "__main__":
    standalone(augment)

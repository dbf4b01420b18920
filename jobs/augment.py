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
    same time. Parquet units hold each text with its variants, and the reason of each rejection. A numbered
    manifest below augmented/ lists the units, and `manta train` takes it as train.data. Finished work is not
    repeated: a command that was stopped continues, and a later command processes new texts only.
    """
    from pipeline.flows.augment.augment import augment as run_augmentation

    result = run_augmentation(run.job, run.stages, verbose=run.verbose)
    manifest = result.manifest
    facts = {
        "status": result.status,
        "root": result.store.uri,
        "manifest": result.uri,
        "report": result.report,
        "number": result.number,
        "rows": manifest.rows,
        "variants": result.outcome_counts(),
        "units": [result.store.uri_of(unit.path) for unit in manifest.units],
        "counts": result.corpus.counts if result.corpus is not None else {},
        "models": [_work_facts(work) for work in result.model_work],
        "seconds": run.stages.seconds(),
    }
    rows = counted(manifest.rows, "row")
    if result.status == "unchanged":
        lines = [f"nothing changed since {result.uri} ({rows})"]
    else:
        quarantined = result.corpus.counts["quarantined"] if result.corpus is not None else 0
        lines = [
            _variant_table(result),
            *map(_describe_work, result.model_work),
            f"{rows} in {counted(len(manifest.units), 'unit')}, {quarantined:,} quarantined",
            f"manifest  {result.uri}",
        ]
    return Answer(facts, "\n".join([*lines, f"report    {result.report}"]))


def _variant_table(result: "Augmentation") -> str:
    """Return a table of the proportions of kept and rejected variants, with a line for each label."""
    lines = []
    for label, counts in result.outcome_counts().items():
        percentages = {
            reason: f"{count / max(result.manifest.rows, 1):.1%}" for reason, count in counts.items()
        }
        kept = percentages.pop("kept")
        rejected = ", ".join(f"{reason} {percentage}" for reason, percentage in percentages.items())
        lines.append((label, f"{counts['kept']:,}", kept, rejected or "nothing"))
    return table(lines, ("variant", "kept", "of the rows", "rejected"))


def _work_facts(work: "ModelWork") -> dict[str, object]:
    """Return the statistics of one group of workers and their models, for --json."""
    return {
        "models": work.title,
        "texts": work.stats.texts,
        "tokens_in": work.stats.tokens_in,
        "tokens_out": work.stats.tokens_out,
        "padding": work.stats.padding,
        "seconds": work.stats.seconds,
        "wall_s": work.seconds,
    }


def _describe_work(work: "ModelWork") -> str:
    """Describe the speed of one group of workers and their models, as a line for people."""
    if not work.stats.texts:
        return f"{work.title}: nothing new"
    return (
        f"{work.title}: {counted(work.stats.texts, 'text')}, {work.per_s(work.stats.texts):,.1f} a second "
        f"with all workers, {work.padding:.1%} padding"
    )


if __name__ == "__main__":
    standalone(augment)

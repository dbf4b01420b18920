"""Make variants of a corpus's texts, and keep the good ones.

manta augment corpus.uri=sentences.parquet augment.variants.crop=crop augment.variants.delete=delete
python -m jobs.augment --config jobs/configs/augment/back-translation.yaml corpus.uri=sentences.parquet
"""

from typing import TYPE_CHECKING

from jobs.command import (
    Answer,
    CommandRun,
    Config,
    Json,
    Overrides,
    PrintConfig,
    Verbose,
    run_job,
    standalone,
)
from jobs.layout import table

if TYPE_CHECKING:
    from pipeline.augment import ModelWork
    from pipeline.flows.augment.result import Augmentation


def augment(
    config: Config = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make variants of a corpus's texts, and keep the good ones.

    Back-translation and other methods with models work on pools of the cluster; words are edited beside them.
    Units of Parquet hold each text with its variants, what was rejected and why; a numbered manifest below
    augmented/ names them, and `manta train` takes it as train.data. What is done is never done again: a
    command that was stopped goes on, and a later one works on new texts alone.
    """
    run_job(_augment, config, overrides, print_config, as_json, verbose)


def _augment(run: CommandRun) -> Answer:
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
        "models": [_facts(worked) for worked in made.worked],
        "seconds": run.stages.seconds(),
    }
    if made.status == "unchanged":
        return Answer(
            facts, f"nothing changed since {made.uri} ({manifest.rows:,} rows)\nreport    {made.report}"
        )
    quarantined = made.corpus.counts["quarantined"] if made.corpus is not None else 0
    rows = f"{manifest.rows:,} rows in {len(manifest.units)} units, {quarantined:,} quarantined"
    return Answer(
        facts,
        "\n".join(
            [
                _rates(made),
                *map(_told, made.worked),
                rows,
                f"manifest  {made.uri}",
                f"report    {made.report}",
            ]
        ),
    )


def _rates(made: "Augmentation") -> str:
    """Shares of kept and rejected variants, a line for each label."""
    rows, lines = max(made.manifest.rows, 1), []
    for label, counts in made.rates().items():
        rejected = ", ".join(
            f"{reason} {count / rows:.1%}" for reason, count in counts.items() if reason != "kept"
        )
        lines.append((label, f"{counts['kept']:,}", f"{counts['kept'] / rows:.1%}", rejected or "nothing"))
    return table(lines, ("variant", "kept", "of the rows", "rejected"))


def _facts(worked: "ModelWork") -> dict[str, object]:
    stats = worked.stats
    names = ("texts", "tokens_in", "tokens_out", "padding", "seconds")
    return {
        "models": worked.title,
        **{name: getattr(stats, name) for name in names},
        "wall_s": worked.seconds,
    }


def _told(worked: "ModelWork") -> str:
    if not worked.stats.texts:
        return f"{worked.title}: nothing new"
    return (
        f"{worked.title}: {worked.stats.texts:,} texts, {worked.per_s('texts'):,.1f} a second "
        f"with all workers, {worked.padding:.1%} padding"
    )


if __name__ == "__main__":
    standalone(augment)

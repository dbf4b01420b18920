"""Print what a night would do, without doing it.

manta plan --config jobs/configs/quickstart.yaml
python -m jobs.plan --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

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
from pipeline.log import duration, size


def plan(
    config: Config = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print what a night would do, without doing it.

    Lists and samples the corpus, loads the encoder and measures it for ten seconds on this machine; then
    prints rows, sampled tokens, units, estimated time, the kind of index with its bytes, and memory, all as
    if nothing were there; and which files changed since the live release. Writes nothing.
    """
    run_job(_plan, config, overrides, print_config, as_json, verbose)


def _plan(run: CommandRun) -> Answer:
    from pipeline.flows.night.plan import plan as estimate

    made = estimate(run.job, run.stages)
    index = made.index
    unusable = (
        f", {made.unusable_share:.1%} without a vector (to be quarantined)" if made.unusable_share else ""
    )
    lines = [
        (
            "rows",
            f"{made.rows:,} in {made.files} files" + ("" if made.exact else " (estimated from the sample)"),
        ),
        (
            "tokens",
            (
                f"{made.tokens_per_row:.1f} a row in {made.sampled:,} sampled texts, "
                f"{made.truncated_share:.1%} of them cut{unusable}"
            ),
        ),
        ("units", f"{made.units:,} of up to {run.job.encode.unit_rows:,} rows, on {made.workers} workers"),
        (
            "encode",
            f"about {duration(made.encode_s)}: one worker does {made.rows_per_s:,.0f} rows/s on this machine",
        ),
        ("vectors", size(made.vector_bytes)),
        ("index", f"{index.kind} ({index.factory}), {size(index.file_bytes)}: {index.why}"),
        ("memory", f"about {size(made.worker_bytes)} a worker, {size(index.memory_bytes)} a searcher"),
    ]
    if made.release is not None:
        seen = (
            f"{made.changed_files} of {made.files} files changed since release {made.release}: at most "
            f"{made.tonight_rows:,} rows are encoded"
        )
        lines.insert(1, ("tonight", seen))
    return Answer(made.facts(), "\n".join(f"{name:<8} {value}" for name, value in lines))


if __name__ == "__main__":
    standalone(plan)

"""Print what a night would do, without doing it.

manta plan --config jobs/configs/quickstart.yaml
python -m jobs.plan --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.log import counted, duration, size


@job_command
def plan(run: CommandRun) -> Answer:
    """Print what a night would do, without doing it.

    Lists and samples the corpus, loads the encoder and measures it for five seconds on this machine; then
    prints rows, sampled tokens, units, estimated time, the kind of index with its bytes, and memory, all as
    if nothing were there; and which files changed since the live release. Writes nothing.
    """
    from pipeline.flows.night.plan import plan as estimate

    made = estimate(run.job, run.stages)
    index = made.index
    unusable = (
        f", {made.unusable_share:.1%} without a vector (to be quarantined)" if made.unusable_share else ""
    )
    estimated = "" if made.exact else " (estimated from the sample)"
    lines = [
        ("rows", f"{made.rows:,} in {counted(made.files, 'file')}{estimated}"),
        (
            "tokens",
            f"{made.tokens_per_row:.1f} a row in {counted(made.sampled, 'sampled text')}, "
            f"{made.truncated_share:.1%} of them cut{unusable}",
        ),
        (
            "units",
            f"{made.units:,} of up to {counted(run.job.encode.unit_rows, 'row')}, "
            f"on {counted(made.workers, 'worker')}",
        ),
        (
            "encode",
            f"about {duration(made.encode_s)}: one worker does {made.rows_per_s:,.0f} rows/s on this machine",
        ),
        ("vectors", size(made.vector_bytes)),
        ("index", f"{index.kind} ({index.factory}), {size(index.file_bytes)}: {index.why}"),
        ("memory", f"about {size(made.worker_bytes)} a worker, {size(index.memory_bytes)} a searcher"),
    ]
    if made.release is not None:
        changed = (
            f"{made.changed_files} of {counted(made.files, 'file')} changed since release {made.release}"
        )
        encoded = f"at most {made.tonight_rows:,} rows are encoded"
        lines.insert(1, ("tonight", f"{changed}: {encoded}"))
    return Answer(made.facts(), "\n".join(f"{name:<8} {value}" for name, value in lines))


if __name__ == "__main__":
    standalone(plan)

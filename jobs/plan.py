"""Estimate what a night would do, without running it.

manta plan --config jobs/configs/quickstart.yaml
python -m jobs.plan --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.log import counted, duration, size


@job_command
def plan(run: CommandRun) -> Answer:
    """Estimate what a night would do, without running it.

    Lists and samples the corpus, and measures the speed of the encoder for five seconds on this machine. Then
    prints rows, tokens, units, time, the kind and size of the index, and memory of a first night; and how
    many files have changed since the current release, and the recall of its index. Writes nothing.
    """
    from pipeline.flows.night.plan import plan as plan_night

    night = plan_night(run.job, run.stages)
    index = night.index
    unusable = (
        f", {night.unusable_share:.1%} without a vector (to be quarantined)" if night.unusable_share else ""
    )
    estimated = "" if night.exact else " (estimated from the sample)"
    lines = [
        ("rows", f"{night.rows:,} in {counted(night.files, 'file')}{estimated}"),
        (
            "tokens",
            f"{night.tokens_per_row:.1f} a row in {counted(night.sampled, 'sampled text')}, "
            f"{night.truncated_share:.1%} of them cut{unusable}",
        ),
        (
            "units",
            f"{night.units:,} of up to {counted(run.job.encode.unit_rows, 'row')}, "
            f"on {counted(night.workers, 'worker')}",
        ),
        (
            "encode",
            f"about {duration(night.encode_s)}: one worker does {night.rows_per_s:,.0f} rows/s on this "
            "machine",
        ),
        ("vectors", size(night.vector_bytes)),
        ("index", f"{index.kind} ({index.factory}), {size(index.file_bytes)}: {index.why}"),
        ("memory", f"about {size(night.worker_bytes)} a worker, {size(index.memory_bytes)} a searcher"),
    ]
    if night.release is not None:
        tonight = (
            f"{night.changed_files} of {counted(night.files, 'file')} changed since release {night.release}: "
            f"at most {night.tonight_rows:,} rows are encoded"
        )
        lines.insert(1, ("tonight", tonight))
    if night.recall_at_10 is not None:
        lines.append(("recall", f"recall@10 was {night.recall_at_10:.4f} in release {night.release}"))
    return Answer(night.facts(), "\n".join(f"{name:<8} {value}" for name, value in lines))


if __name__ == "__main__":
    standalone(plan)

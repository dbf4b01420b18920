"""Build training rows from labelled, grouped or running text.

manta pairs pairs.kind=nli pairs.data=snli.parquet
python -m jobs.pairs pairs.kind=groups "pairs.data={uri: captions.parquet, columns: {group: image_id}}"
"""

import functools

from jobs.boundary import refuse_few_addresses
from jobs.command import Answer, CommandRun, announce_unused_root, job_command, standalone
from pipeline.log import counted


@functools.partial(job_command, loads_libraries=False)
def pairs(run: CommandRun) -> Answer:
    """Build training rows from labelled, grouped or running text.

    Reads pairs.data (Parquet) and builds the rows of pairs.kind: nli (anchor, positive and negative, from
    natural language inference), groups (anchor and positive of texts with the same group), sections (anchor,
    positive of the same section and negative of another section of the same document), neighbours (a
    sentence with the previous and the next one of its document). A folder below pairs.root receives
    train.parquet, for `manta train train.data=FILE`; with pairs.test also _test.parquet, which has the rows
    of the groups that were set aside. A command that was stopped continues where it was; a finished one is
    not repeated.

    The kind rescore reads rows of anchor, positive and hard negatives, and adds the scores of the
    cross-encoder encoder.path, computed by the workers of the cluster, to train.parquet.
    """
    announce_unused_root(run.job, "pairs")
    if run.job.pairs.kind == "rescore":
        return _rescore(run)
    from pipeline.text.pairs.build import build_rows, open_build

    build = open_build(run.job.pairs)
    status, built = build_rows(build, run.stages)
    files = {"train": built.train, **({"test": built.test} if built.test else {})}
    uris = {split: build.store.uri_of(file.path) for split, file in files.items()}
    facts = {
        "status": status,
        "root": build.store.uri,
        **uris,
        "rows": {split: file.rows for split, file in files.items()},
        "counts": built.counts,
        "seconds": run.stages.seconds(),
    }
    names = sorted(built.counts, key=lambda name: (name != "rows", name))
    counts = [f"{built.counts[name]:,} {name.replace('_', ' ')}" for name in names if built.counts[name]]
    lines = [
        *(["these rows were built before; nothing to do"] if status == "unchanged" else []),
        f"of {build.rows.name}: {', '.join(counts)}",
        *(f"{split:<6} {uris[split]}: {counted(file.rows, 'row')}" for split, file in files.items()),
    ]
    return Answer(facts, "\n".join(lines))


def _rescore(run: CommandRun) -> Answer:
    """Score rows with a cross-encoder."""
    refuse_few_addresses()
    from pipeline.flows.train.rescore import rescore

    rescored = rescore(run.job, run.stages, verbose=run.verbose)
    counts = rescored.result.counts
    facts = {
        "status": rescored.status,
        "root": rescored.store.uri,
        "train": rescored.train,
        "rows": {"train": counts["rows"]},
        "counts": counts,
        "seconds": run.stages.seconds(),
    }
    cut = f"; {counts['truncated']:,} pairs of texts are longer than it reads" if counts["truncated"] else ""
    lines = [
        *(["these rows were scored before; nothing to do"] if rescored.status == "unchanged" else []),
        f"of {rescored.name}: {counts['texts']:,} texts scored by {run.job.encoder.path}{cut}",
        f"train  {rescored.train}: {counted(counts['rows'], 'row')}",
    ]
    return Answer(facts, "\n".join(lines))


if __name__ == "__main__":
    standalone(pairs)

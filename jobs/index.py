"""Build the index without publishing it.

manta index --config jobs/configs/quickstart.yaml
python -m jobs.index --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

from jobs.command import Answer, CommandRun, job_command, standalone
from pipeline.log import counted, size


@job_command
def index(run: CommandRun) -> Answer:
    """Build the index without publishing it.

    Encodes and whitens the corpus first, unless an earlier run has done so; then samples, trains, fills
    shards in parallel, merges and measures. The index is the one that `nightly` would publish. It is stored
    below indexes/ as a plain faiss file.
    """
    from pipeline.flows.night.single_stage import index_corpus

    store, built = index_corpus(run.job, run.stages, verbose=run.verbose)
    at_10 = built.measured.recall["10"]
    facts = {
        "status": "done",
        "root": store.uri,
        "files": [store.uri_of(ref.path) for ref in built.files],
        "ids": [store.uri_of(ref.path) for ref in built.ids],
    }
    lines = [
        f"{built.kind} ({built.factory}), {counted(built.rows, 'row')}, "
        f"{size(sum(ref.bytes for ref in built.files))}, recall@10 {at_10.value:.4f} "
        f"[{at_10.low:.4f}, {at_10.high:.4f}]",
        *(f"  {uri}" for uri in facts["files"]),
    ]
    measured = built.model_dump(mode="json", include={"kind", "factory", "rows", "measured"})
    return Answer(facts | measured, "\n".join(lines))


if __name__ == "__main__":
    standalone(index)

"""Build the index without publishing it.

manta index --config jobs/configs/quickstart.yaml
python -m jobs.index --config jobs/configs/quickstart.yaml encode.unit_rows=4096
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
from pipeline.log import size


def index(
    config: Config = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build the index without publishing it.

    Encodes and whitens first what is not there yet; then samples, trains, fills shards in parallel, merges
    and measures. What it builds is what `nightly` would publish, and lies below indexes/ as a plain faiss
    file.
    """
    run_job(_index, config, overrides, print_config, as_json, verbose)


def _index(run: CommandRun) -> Answer:
    from pipeline.flows.night.stages import through_index

    store, built = through_index(run.job, run.stages, verbose=run.verbose)
    at_10 = built.measured.recall["10"]
    facts = {
        "status": "done",
        "root": store.uri,
        "files": [store.uri_of(ref.path) for ref in built.files],
        "ids": [store.uri_of(ref.path) for ref in built.ids],
    }
    total = size(sum(ref.bytes for ref in built.files))
    text = (
        f"{built.kind} ({built.factory}), {built.rows:,} rows, {total}, recall@10 {at_10.value:.4f} "
        f"[{at_10.low:.4f}, {at_10.high:.4f}]"
    )
    return Answer(
        facts | built.model_dump(mode="json", include={"kind", "factory", "rows", "measured"}),
        "\n".join([text, *(f"  {uri}" for uri in facts["files"])]),
    )


if __name__ == "__main__":
    standalone(index)

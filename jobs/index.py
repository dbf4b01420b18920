"""Build the index without publishing it.

    manta index --config jobs/configs/quickstart.yaml
    python -m jobs.index --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import typer

from jobs.command import Answer, Config, Json, Overrides, PrintConfig, Run, Verbose, run_job


def index(config: Config = None, overrides: Overrides = None, print_config: PrintConfig = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Build the index without publishing it.

    Encodes and whitens first what is not there yet; then samples, trains, fills shards in parallel, merges and measures. What it builds is what `nightly` would
    publish, and lies below indexes/ as a plain faiss file.
    """
    run_job(_index, config, overrides, print_config, as_json, verbose)


def _index(run: Run) -> Answer:
    raise AssertionError("not yet")


if __name__ == "__main__":
    typer.run(index)

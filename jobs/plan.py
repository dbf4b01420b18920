"""Print what a night would do, without doing it.

    manta plan --config jobs/configs/quickstart.yaml
    python -m jobs.plan --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import typer

from jobs.command import Answer, Config, Json, Overrides, PrintConfig, Run, Verbose, run_job


def plan(config: Config = None, overrides: Overrides = None, print_config: PrintConfig = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Print what a night would do, without doing it.

    Lists and samples the corpus, loads the encoder and measures it for ten seconds on this machine; then prints rows, sampled tokens, units, estimated time,
    the kind of index with its bytes, and memory. Writes nothing.
    """
    run_job(_plan, config, overrides, print_config, as_json, verbose)


def _plan(run: Run) -> Answer:
    raise AssertionError("not yet")


if __name__ == "__main__":
    typer.run(plan)

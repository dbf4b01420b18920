"""Measure the published release against the gates.

    manta evaluate --config jobs/configs/quickstart.yaml
    python -m jobs.evaluate --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import typer

from jobs.command import Answer, Config, Json, Overrides, PrintConfig, Run, Verbose, run_job


def evaluate(config: Config = None, overrides: Overrides = None, print_config: PrintConfig = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Measure the published release against the gates.

    Recall against exact search over the release's own vectors, size, latency, row counts, unique ids, finite vectors. Exit code 5 when a gate is not met.
    """
    run_job(_evaluate, config, overrides, print_config, as_json, verbose)


def _evaluate(run: Run) -> Answer:
    raise AssertionError("not yet")


if __name__ == "__main__":
    typer.run(evaluate)

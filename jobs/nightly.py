"""Make tonight's release: read, encode, whiten, index, check, publish.

    manta nightly --config jobs/configs/quickstart.yaml
    python -m jobs.nightly --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import typer

from jobs.command import Answer, Config, Json, Overrides, PrintConfig, Run, Verbose, run_job


def nightly(config: Config = None, overrides: Overrides = None, print_config: PrintConfig = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Make tonight's release: read, encode, whiten, index, check, publish.

    Publishes a new release below release.root when the corpus or the settings changed and every gate is passed; a refused candidate is kept for inspection and
    nothing is published. Stopped at any moment and started again, it goes on where it was.
    """
    run_job(_nightly, config, overrides, print_config, as_json, verbose)


def _nightly(run: Run) -> Answer:
    raise AssertionError("not yet")


if __name__ == "__main__":
    typer.run(nightly)

"""Fit a whitening to the encoded corpus.

    manta whiten --config jobs/configs/quickstart.yaml
    python -m jobs.whiten --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import typer

from jobs.command import Answer, Config, Json, Overrides, PrintConfig, Run, Verbose, run_job


def whiten(config: Config = None, overrides: Overrides = None, print_config: PrintConfig = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Fit a whitening to the encoded corpus.

    Merges the moments of all units, fits the transform (Su et al. 2021), compares raw and whitened vectors, and stores it below transforms/. With
    whiten.write_vectors=true the whitened vectors are written as units too. Encodes first what is not encoded yet.
    """
    run_job(_whiten, config, overrides, print_config, as_json, verbose)


def _whiten(run: Run) -> Answer:
    raise AssertionError("not yet")


if __name__ == "__main__":
    typer.run(whiten)

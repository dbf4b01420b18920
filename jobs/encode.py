"""Encode the corpus into units of raw vectors.

    manta encode --config jobs/configs/quickstart.yaml
    python -m jobs.encode --config jobs/configs/quickstart.yaml encode.unit_rows=4096
"""

import typer

from jobs.command import Answer, Config, Json, Overrides, PrintConfig, Run, Verbose, run_job


def encode(config: Config = None, overrides: Overrides = None, print_config: PrintConfig = False, as_json: Json = False, verbose: Verbose = False) -> None:
    """Encode the corpus into units of raw vectors.

    Reads the corpus, sets bad rows aside, and encodes on the cluster. Units that an earlier run finished are kept. Vectors are plain Parquet below units/vectors.
    """
    run_job(_encode, config, overrides, print_config, as_json, verbose)


def _encode(run: Run) -> Answer:
    raise AssertionError("not yet")


if __name__ == "__main__":
    typer.run(encode)

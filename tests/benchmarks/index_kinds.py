"""Measure the recall of the codes of every kind that `auto` may choose, as the pilot of a build does.

    python -m tests.benchmarks.index_kinds --rows 40000

Prints the lines of `TABLE` in `pipeline/index/measure/kind_recall.py`. With MANTA_EVAL_DATA, the vectors are
those of captions by the packaged all-MiniLM-L6-v2; without it, they are generated in clusters.
"""

import argparse
from pathlib import Path

import numpy as np

from pipeline.index.build.index_shape import variants_to_measure
from pipeline.index.build.kind_trial import Pilot
from pipeline.settings import IndexSettings
from tests.benchmarks.index import vectors
from tests.benchmarks.machine import machine


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=40_000)
    arguments.add_argument("--vectors", type=Path, help="a .npy file of vectors, instead of captions")
    arguments.add_argument(
        "--target",
        type=float,
        default=0.95,
        help="recall@10 to reach; with a lower one, more kinds are measured",
    )
    options = arguments.parse_args()
    raw, source = (
        (np.load(options.vectors), str(options.vectors)) if options.vectors else vectors(options.rows)
    )
    print(f"{len(raw):,} x {raw.shape[1]} ({source}); {machine()}")
    pilot = Pilot.of(raw, None)
    # so many rows that no exact kind fits the memory
    for variant in variants_to_measure(10**9, raw.shape[1], IndexSettings(), options.target):
        found = pilot.measure(variant)
        recalls = ", ".join(f"{each.value:.4f}" for each in found.recall)
        expected = ", ".join(f"{rows:.0e}: {found.expected(rows):.4f}" for rows in (10**7, 10**9))
        print(
            f'_table_entry("{variant.kind}", {variant.dims_per_byte}, {recalls}),  # '
            f"{found.rows}, {found.scan_ns:.0f} ns a row; at least {expected}",
            flush=True,
        )


if __name__ == "__main__":
    main()

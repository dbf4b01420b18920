"""Measure the recall of the codes of every kind with lists, as the pilot of a build does.

    python -m tests.benchmarks.index_kinds --rows 40000

Prints `code_recall` of each entry of `KINDS`, up to the #. With MANTA_EVAL_DATA, the vectors are those of
captions by the packaged all-MiniLM-L6-v2; without it, they are generated in clusters.
"""

import argparse
from pathlib import Path

import numpy as np

from pipeline.index.build.kind_trial import Pilot
from pipeline.index.measure.kind_recall import KindVariant
from pipeline.settings.index_kinds import DIMS_PER_BYTE, KINDS
from tests.benchmarks.index import vectors
from tests.benchmarks.machine import machine


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=40_000)
    arguments.add_argument("--vectors", type=Path, help="a .npy file of vectors, instead of captions")
    options = arguments.parse_args()
    raw, source = (
        (np.load(options.vectors), str(options.vectors)) if options.vectors else vectors(options.rows)
    )
    print(f"{len(raw):,} x {raw.shape[1]} ({source}); {machine()}")
    pilot = Pilot.of(raw, None)
    for name, kind in KINDS.items():
        for dims_per_byte in (kind.code_recall or (DIMS_PER_BYTE,)) if kind.has_lists else ():
            found = pilot.measure(KindVariant(name, dims_per_byte))
            recalls = ", ".join(f"{each.value:.4f}" for each in found.recall)
            expected = ", ".join(f"{rows:.0e}: {found.expected(rows):.4f}" for rows in (10**7, 10**9))
            print(
                f"{name}: {dims_per_byte}: ({recalls}),  # "
                f"{found.rows}, {found.scan_ns:.0f} ns a row; at least {expected}",
                flush=True,
            )


if __name__ == "__main__":
    main()

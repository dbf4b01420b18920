"""Compare what lower precision costs in quality, over more pairs than the test set of STS-B.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.encode_sts

The engines are those of `tests.benchmarks.encode`. Prints Spearman x100 of each on each STS set, then, for
two engines of one precision, the difference of their means with its standard error, by drawing pairs of
sentences again. Needs the extra `bench`. Takes about eight minutes on two cores.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.encode import BATCH_SIZES, engines, sts_pairs, sts_score
from tests.benchmarks.machine import machine, print_table

SETS = ("STSB-test", "STSB-dev", "STS12", "STS13", "STS15", "SICK-R-trial", "SICK-R-train")
RIVALS = (("Manta bfloat16", "OpenVINO bfloat16"), ("Manta int8", "ONNX Runtime int8"))
THREADS = 2
DRAWS = 200


def main(root: Path) -> None:
    """Encode all sets with every engine, and print both tables."""
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as work:
        by_name = engines(THREADS, Path(work))
        vectors: dict[str, list[np.ndarray]] = {name: [] for name in by_name}
        human = []
        for name in SETS:
            left, right, scores = sts_pairs(root, name)
            human.append(scores)
            for engine, encode in by_name.items():
                vectors[engine].append(encode(left + right, BATCH_SIZES[2]))
    rows = []
    for engine, of_sets in vectors.items():
        found = [sts_score(*each) for each in zip(of_sets, human, strict=True)]
        rows.append([engine, *(f"{score:.3f}" for score in [*found, np.mean(found)])])
    print_table(f"Spearman x100; {machine()}", rows, ("engine", *SETS, "mean"))
    rows = [
        [f"{ours} less {peer}", *difference(vectors[ours], vectors[peer], human)] for ours, peer in RIVALS
    ]
    print_table("Difference of the means", rows, ("engines", "difference", "standard error"))


def difference(ours: list[np.ndarray], peer: list[np.ndarray], human: list[np.ndarray]) -> tuple[str, str]:
    """Return the mean over sets of the difference in Spearman x100, and its standard error.

    The error is the standard deviation over bootstrap samples, the same rows for both engines.
    """
    generator = np.random.default_rng(0)
    draws = []
    for draw in range(DRAWS + 1):
        of_sets = []
        for left, right, scores in zip(ours, peer, human, strict=True):
            count = len(scores)
            rows = generator.integers(0, count, count) if draw else np.arange(count)
            both = np.concatenate([rows, count + rows])
            of_sets.append(sts_score(left[both], scores[rows]) - sts_score(right[both], scores[rows]))
        draws.append(np.mean(of_sets))
    return f"{draws[0]:+.3f}", f"{np.std(draws[1:]):.3f}"


if __name__ == "__main__":
    folder = os.environ.get("MANTA_EVAL_DATA") or sys.exit(
        "set MANTA_EVAL_DATA to the folder of evaluation data"
    )
    main(Path(folder))

"""Compare the speed of `Moments.of` with that of numpy's matrix product of the same block in float64.

python -m tests.benchmarks.moments
"""

import os
import time
from collections.abc import Callable

import numpy as np

from pipeline.stats.moments import Moments

ROWS = 32_768  # one unit
PAIRS = 15


def seconds(work: Callable[[], object]) -> float:
    """Measure the wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(dim: int, dtype: type[np.floating]) -> str:
    """Return a line of the table: Moments.of for x (n, d) of `dtype`, and X.T @ X in float64, in turn.

    numpy also computes X.T @ X as a symmetric update.
    """
    x = np.random.default_rng(0).normal(loc=0.1, size=(ROWS, dim)).astype(dtype)
    x_float64 = x.astype(np.float64)
    Moments.of(x), x_float64.T @ x_float64  # load the pages and start the BLAS threads before measuring
    pairs = [(seconds(lambda: x_float64.T @ x_float64), seconds(lambda: Moments.of(x))) for _ in range(PAIRS)]
    ratios = sorted(product_s / moments_s for product_s, moments_s in pairs)
    product_s, moments_s = np.median(pairs, axis=0)
    gflops = ROWS * dim**2 / moments_s / 1e9  # a symmetric update has n d^2 operations
    return (
        f"{dim:>4}  {np.dtype(dtype).name:<8} {product_s * 1e3:>9.1f} {moments_s * 1e3:>9.1f} "
        f"{gflops:>9.1f}   {np.median(ratios):.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def main() -> None:
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(
        f"{ROWS:,} rows, {PAIRS} interleaved pairs, {threads} threads of {os.cpu_count()}, load "
        f"{os.getloadavg()[0]:.2f} before"
    )
    print("   d  x          X.T @ X   Moments   GFLOP/s   ratio of speeds (smallest to largest)")
    for dim in (384, 768):
        for dtype in (np.float64, np.float32):
            print(compare(dim, dtype), flush=True)
    print(f"X.T @ X in float64, times in ms, medians; load {os.getloadavg()[0]:.2f} after")


if __name__ == "__main__":
    main()

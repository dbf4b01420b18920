"""Moments of a block of vectors against numpy's plain product of the same block, both float64: python -m
tests.benchmarks.moments
"""

import os
import time
from collections.abc import Callable

import numpy as np

from pipeline.stats.moments import Moments

ROWS = 32_768  # one unit
PAIRS = 15


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(dim: int, dtype: type[np.floating]) -> str:
    """Speed of Moments.of on x (n, d) of `dtype` over that of X.T @ X in float64, which numpy too computes as
    a symmetric update; pairs alternate.
    """
    x = np.random.default_rng(0).normal(loc=0.1, size=(ROWS, dim)).astype(dtype)
    peer = x.astype(np.float64)
    Moments.of(x), peer.T @ peer  # pages in, BLAS threads up
    pairs = [(seconds(lambda: peer.T @ peer), seconds(lambda: Moments.of(x))) for _ in range(PAIRS)]
    ratios = sorted(theirs / ours for theirs, ours in pairs)
    theirs, ours = np.median(pairs, axis=0)
    rate = ROWS * dim**2 / ours / 1e9  # a symmetric update: n d^2 operations
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    kind = np.dtype(dtype).name
    return (
        f"{dim:>4}  {kind:<8} {theirs * 1e3:>9.1f} {ours * 1e3:>9.1f} {rate:>9.1f}   "
        f"{np.median(ratios):.2f}  ({spread})"
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

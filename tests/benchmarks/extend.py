"""A night of 1 % new and 1 % dead rows: last night's index extended, against the same rows built anew, in
pairs: python -m tests.benchmarks.extend

Vectors are generated: 2,000 clusters. Both sides run on one local Ray, which is up before, in processes that
have loaded faiss.
"""

import argparse
import tempfile
import time
from pathlib import Path

from pipeline.flows.index.build import build_index
from pipeline.flows.index.extend import extend_index
from pipeline.flows.workers.cluster import connect
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from tests.benchmarks.machine import machine, print_table, spread
from tests.flows.index.extending import Chain

UNIT_ROWS = 32_768


def nights(chain: Chain, pairs: int, share: float) -> tuple[list[float], list[float], list[list[str]]]:
    """Seconds of each extended night and of its rows built anew, and what a night shows."""
    extended, anew, lines = [], [], []
    for number in range(pairs):
        count = int(share * len(chain.live()))
        chain.add(count).kill(count)
        start = time.perf_counter()
        built, choices = extend_index(chain.run(Stages()), chain.vectors_to_index(), chain.before)
        extended.append(time.perf_counter() - start)
        start = time.perf_counter()
        other = build_index(chain.run(Stages()), chain.vectors_to_index())
        anew.append(time.perf_counter() - start)
        recalls = [f"{each.measured['recall']['10']['value']:.4f}" for each in (built, other)]
        lines.append(
            [
                str(number + 1),
                choices[0].chosen,
                f"{extended[-1]:.2f}",
                f"{anew[-1]:.2f}",
                f"{anew[-1] / extended[-1]:.1f}",
                *recalls,
            ]
        )
        chain.night()  # taken up again, and published: the next night stands on it
    return extended, anew, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=135_070)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--set",
        nargs="*",
        default=["index.kind=ivf_flat", "index.queries=1000"],
        help="settings of the index",
    )
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder, connect(ClusterSettings(), Stages()) as cluster:
        chain = Chain(Path(folder, "root"), cluster, options.set, dim=options.dim, clusters=2_000)
        for start in range(0, options.rows, UNIT_ROWS):
            chain.add(min(UNIT_ROWS, options.rows - start))
        chain.night()
        extended, anew, lines = nights(chain, options.pairs, options.share)
    header = ["night", "form", "extended s", "anew s", "ratio", "recall@10 extended", "recall@10 anew"]
    print_table(
        (
            f"{options.rows:,} x {options.dim}, {options.share:.1%} new and as many dead a night, "
            f"{' '.join(options.set)}"
        ),
        lines,
        header,
    )
    print(
        f"extended {spread(extended)} s, anew {spread(anew)} s, ratio "
        f"{spread([b / a for a, b in zip(extended, anew, strict=True)])}"
    )


if __name__ == "__main__":
    main()

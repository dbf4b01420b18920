"""Compare extending an index by 1 % new and 1 % deleted rows with building it from scratch.

    python -m tests.benchmarks.extend

Vectors are generated, in 2,000 clusters. Each night does both, one after the other, on one local Ray cluster
that runs already, in processes that have loaded faiss.
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


def nights(chain: Chain, pairs: int, proportion: float) -> tuple[list[float], list[float], list[list[str]]]:
    """Play nights. Returns each night's seconds to extend and to rebuild the index, and its table line."""
    extend_s, rebuild_s, lines = [], [], []
    for number in range(pairs):
        count = int(proportion * len(chain.live()))
        chain.add(count).kill(count)
        start = time.perf_counter()
        extended, choices = extend_index(chain.context(Stages()), chain.vectors_to_index(), chain.before)
        extend_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        rebuilt = build_index(chain.context(Stages()), chain.vectors_to_index())
        rebuild_s.append(time.perf_counter() - start)
        recalls = [f"{each.measured.recall['10'].value:.4f}" for each in (extended, rebuilt)]
        lines.append(
            [
                str(number + 1),
                choices[0].chosen,
                f"{extend_s[-1]:.2f}",
                f"{rebuild_s[-1]:.2f}",
                f"{rebuild_s[-1] / extend_s[-1]:.1f}",
                *recalls,
            ]
        )
        chain.night()  # publishes the extended index, from which the next night continues
    return extend_s, rebuild_s, lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=135_070)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--proportion", type=float, default=0.01, help="of new rows; as many are deleted")
    parser.add_argument("--pairs", type=int, default=3, help="number of nights")
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
        extend_s, rebuild_s, lines = nights(chain, options.pairs, options.proportion)
    header = ["night", "form", "extend, s", "rebuild, s", "ratio", "recall@10 extended", "recall@10 rebuilt"]
    print_table(
        (
            f"{options.rows:,} x {options.dim}, {options.proportion:.1%} new and as many deleted a night, "
            f"{' '.join(options.set)}"
        ),
        lines,
        header,
    )
    print(
        f"extend {spread(extend_s)} s, rebuild {spread(rebuild_s)} s, ratio "
        f"{spread([rebuild / extend for extend, rebuild in zip(extend_s, rebuild_s, strict=True)])}"
    )


if __name__ == "__main__":
    main()

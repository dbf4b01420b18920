"""Run the claims of the literature from one common start, and print published tables beside ours.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.pretrain pretrained
    MANTA_EVAL_DATA=... python -m tests.benchmarks.papers results \\
        --start pretrained/trainings/pretrain/encoder --steps 200 --seeds 0 1 2 --minutes 60

Rows are run by the functions that `manta train` and `manta evaluate` call, in this process and one child,
without Ray; tables in the order of --only, and those with fewest trainings first. Results are kept in the
folder: the same command continues where a killed one stopped. Rows that do not fit into --minutes are listed
as not run. A trained row has the weights after its last step: nothing is chosen on dev, so that a collapse is
not hidden.

A measured reason for an ordering that does not show is a sentence in results/reasons.json, by the name of the
claim: {"simcse-dropout: 0.1 > 0 (STSB-dev)": "..."}.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pipeline.flows.workers.cluster import connect, local_workers
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.settings import ClusterSettings, EncoderSettings
from tests.benchmarks.machine import machine
from tests.benchmarks.papers import contextual, contrastive, generative, prompts, sbert, simcse, transforms
from tests.benchmarks.papers.claim import Table
from tests.benchmarks.papers.data import open_sources
from tests.benchmarks.papers.movement import print_movement
from tests.benchmarks.papers.runner import Runner, progress
from tests.benchmarks.papers.tables import load_reasons, print_results
from tests.benchmarks.papers.verdict import RULE

TABLES: tuple[Table, ...] = tuple(
    table
    for module in (transforms, contextual, prompts, simcse, sbert, contrastive, generative)
    for table in module.TABLES
)


def chosen(names: Sequence[str]) -> list[Table]:
    """Return the tables whose keys begin with one of the names, in the order of the names.

    Of several that begin with a name, those with fewest trainings come first.
    """
    by_cost = sorted(TABLES, key=lambda table: table.cost)
    found = {table.key: table for name in names for table in by_cost if table.key.startswith(name)}
    return list(found.values())


def main(folder: Path, given: argparse.Namespace) -> None:
    """Run the rows of the chosen tables as far as the time allows, and print all of them."""
    if "MANTA_EVAL_DATA" not in os.environ:
        sys.exit("set MANTA_EVAL_DATA to the folder of evaluation data")
    paths = {"english": given.start, "chinese": given.chinese_start}
    starts = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
    spaces = {name: open_folder(EncoderSettings(path=path)).space_id for name, path in starts.items()}
    reasons, tables = load_reasons(folder, TABLES), chosen(given.only)
    runner = Runner(
        folder,
        starts,
        spaces,
        open_sources(folder / "data", starts["english"]),
        given.steps,
        given.seeds,
        {} if given.precision == "float32" else {"train.precision": given.precision},
        given.rate_factor,
        time.monotonic() + 60 * given.minutes,
        given.device,
    )
    print(
        f"{given.steps} steps of most trainings in {given.precision}, {given.rate_factor:g} times their "
        f"learning rates, seeds {given.seeds}; {machine()}\n\n{RULE}"
    )
    verdicts = Counter[str]()
    cluster = ClusterSettings()
    with (
        local_workers(True, cluster.patience_s) as local,
        connect(cluster, Stages(), local=local),
    ):
        for table in tables:
            progress(table.key)
            runner.run(table)
            verdicts.update(print_results(runner, table, reasons))
            if given.movement:
                print_movement(runner, table)
            sys.stdout.flush()
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    for row, reason in runner.skipped.items():
        print(f"not run: {row} ({reason})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where results are kept")
    parser.add_argument("--start", type=Path, required=True, help="encoder folder of the common start")
    parser.add_argument("--chinese-start", type=Path, help="the same for claims on Chinese data")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TABLE", help="beginnings of tables' names"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument(
        "--rate-factor", type=float, default=1.0, help="factor of the learning rates that are chosen here"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where trainings run")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--movement", action="store_true", help="also print how far trainings moved the vectors"
    )
    given = parser.parse_args()
    main(given.folder.resolve(), given)

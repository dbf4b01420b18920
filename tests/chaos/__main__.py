"""Run nights over the same corpora in two roots, one left in peace and one under fire, and compare the files
of both after every night.

    python -m tests.chaos --nights 10 --seed 1 --minutes 20
    python -m tests.chaos --nights 6 --store s3 --ray 0.3 --poison

In the root under fire, drivers, Ray's workers, raylets and child processes are killed at random moments and
at every kind of file that a night writes; files are truncated; the store fails, throttles and is full; and
two drivers run at once. The program prints a table. Its exit code is 1 if a row was lost or doubled, a row or
file differs, or a run ended in a way that no fault explains.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import STORES, Campaign, Plans


def main() -> int:
    """Play the nights and print their report. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nights", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["local", *STORES], default="local")
    parser.add_argument(
        "--minutes",
        type=float,
        default=20.0,
        help="after this time no fault is injected, and no further night begins",
    )
    parser.add_argument("--ray", type=float, default=0.2, help="proportion of the nights that start Ray")
    parser.add_argument("--rows", type=int, default=160, help="rows of the first night's corpus")
    parser.add_argument("--index", default="flat", help="index.kind")
    parser.add_argument(
        "--part-rows", type=int, default=0, help="rows of a part of a flat index; 0: the index has one part"
    )
    parser.add_argument("--kills", type=float, default=0.7, help="kills at random moments, per run")
    parser.add_argument("--points", type=int, default=6, help="kills at written files, per night")
    parser.add_argument("--cuts", type=int, default=1, help="truncated files, per night; local store only")
    parser.add_argument(
        "--full", type=int, default=1, help="full and failing disks, per night; local store only"
    )
    parser.add_argument(
        "--twice", type=float, default=0.15, help="proportion of the runs with a second driver at once"
    )
    parser.add_argument(
        "--abandoned",
        type=float,
        default=0.2,
        help="proportion of the nights that are given up before they are done",
    )
    parser.add_argument("--poison", action="store_true", help="put two harmful texts into the corpus")
    parser.add_argument("--no-links", action="store_true", help="simulate a file system without hard links")
    parser.add_argument(
        "--no-heads",
        action="store_true",
        help="kill neither raylets nor GCS servers, whose drivers Ray may take a minute to end",
    )
    parser.add_argument(
        "--work", type=Path, help="an empty directory, which is kept; default: a temporary one"
    )
    given = vars(parser.parse_args())
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # so that the processes of the nights are ended, too
    work = given.pop("work")
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        report = Campaign(work or Path(temporary), Plans(**given)).play()
    print(report.table())
    return 0 if report.sound else 1


if __name__ == "__main__":
    sys.exit(main())

"""Nights in a loop, one root left in peace and one under fire, over the same corpora; afterwards both are
compared to the byte.

    python -m tests.chaos --nights 10 --seed 1 --minutes 20 python -m tests.chaos --nights 6 --store s3 --ray
    0.3 --poison

In the disturbed root drivers, Ray's workers, raylets and child processes are killed with -9 at random moments
and at every kind of file that a night writes, files are cut short, the store fails, throttles and is full,
and two drivers run at once. It prints a table; the exit status is 1 if a row was lost, doubled or differs, a
file differs, or a run ended as none should.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import Campaign, Plans


def main() -> int:
    """Play the nights, print what came of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nights", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["local", "s3"], default="local")
    parser.add_argument(
        "--minutes",
        type=float,
        default=20.0,
        help="after so long no more is shot, and no further night begins",
    )
    parser.add_argument("--ray", type=float, default=0.2, help="share of the nights that start Ray")
    parser.add_argument("--rows", type=int, default=160, help="of the first night")
    parser.add_argument("--index", default="flat", help="index.kind")
    parser.add_argument(
        "--part-rows", type=int, default=0, help="rows of a part of a flat index; 0: the index has one part"
    )
    parser.add_argument("--kills", type=float, default=0.7, help="from outside, per run")
    parser.add_argument("--points", type=int, default=6, help="kills at commit points, per night")
    parser.add_argument("--cuts", type=int, default=1, help="files cut short, per night; local store only")
    parser.add_argument("--full", type=int, default=1, help="full and ill disks, per night; local store only")
    parser.add_argument(
        "--twice", type=float, default=0.15, help="share of the runs with a second driver beside"
    )
    parser.add_argument(
        "--abandoned",
        type=float,
        default=0.2,
        help="share of the nights that are given up before they are done",
    )
    parser.add_argument("--poison", action="store_true", help="with two harmful texts in the corpus")
    parser.add_argument("--no-links", action="store_true", help="on a file system without hard links")
    parser.add_argument(
        "--no-heads",
        action="store_true",
        help="neither raylets nor GCS servers are killed: Ray takes up to a minute to end their drivers",
    )
    parser.add_argument("--work", type=Path, help="an empty directory that stays; else a temporary one")
    given = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ended from outside, it ends what it has started
    work = given.pop("work")
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        report = Campaign(work or Path(temporary), Plans(**given)).play()
    print(report.table())
    return 0 if report.sound else 1


if __name__ == "__main__":
    sys.exit(main())

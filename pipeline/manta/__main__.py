"""The command `manta`, also as `python -m manta`."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> NoReturn:
    """Entry point of the console script. Interrupted while modules are being imported it ends at once and quietly: nothing has begun."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:            # not where a shell has it ignored, for a command in the background
        signal.signal(signal.SIGINT, _end)
    from .hidden import refuse_others

    try:
        refuse_others()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    from jobs.cli import app

    signal.signal(signal.SIGINT, before)
    app()
    sys.exit()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(130)


if __name__ == "__main__":
    run()

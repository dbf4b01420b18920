"""The command `manta`, also as `python -m manta`."""

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> NoReturn:
    """Entry point of the console script.

    Interrupted while modules are being imported it ends at once and quietly: nothing has begun.
    """
    before = signal.getsignal(signal.SIGINT)
    if (
        before is signal.default_int_handler
    ):  # not where a shell has it ignored, for a command in the background
        signal.signal(signal.SIGINT, _end)
    from .hidden import refuse_others

    try:
        refuse_others()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    from jobs.cli import app

    signal.signal(signal.SIGINT, before)
    try:
        app()
    except SystemExit as ended:
        _leave(ended.code)
    sys.exit()


def _leave(code: str | int | None) -> NoReturn:
    """End the process without tearing the interpreter down, which takes 0.7 s where torch was imported: a
    third of a search.

    Not where Ray was imported: it and what it runs end by handlers of their own. Every file is closed by now.
    """
    if not isinstance(code, str) and "ray" not in sys.modules:
        with contextlib.suppress(OSError):  # nobody reads the output any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(130)


if __name__ == "__main__":
    run()

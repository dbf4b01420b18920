"""The command `manta`, also as `python -m manta`."""

import contextlib
import os
import signal
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line.

    Ctrl-C and SIGTERM during the imports end the process without a traceback, because no work has begun.
    """
    before = signal.getsignal(signal.SIGINT)
    # A shell starts background commands with SIGINT ignored; then it remains ignored.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from .shadowing import check_packages

    try:
        check_packages()
        from jobs import end_by_sigterm

        end_by_sigterm()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    from jobs.boundary import run_program
    from jobs.cli import app

    signal.signal(signal.SIGINT, before)
    try:
        run_program(app)
    except SystemExit as ended:
        _leave(ended.code)
    sys.exit()


def _leave(code: str | int | None) -> NoReturn:
    """End the process without finalizing the interpreter, which takes 0.7 s after an import of torch.

    All files are closed by now. If Ray was imported, the interpreter is finalized, because Ray stops its
    processes in exit handlers.
    """
    if not isinstance(code, str) and "ray" not in sys.modules:
        with contextlib.suppress(OSError):  # the reader of the output has closed it, or its disk is full
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)


if __name__ == "__main__":
    run()

"""Jobs: one thin file per command."""

import contextlib
import importlib
import os
import signal
import sys
from typing import NoReturn


def end_by_sigterm() -> None:
    """Let SIGTERM end the process with exit code 75 until a command handles it: no work has begun."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)


def _stop(*_: object) -> NoReturn:
    os.write(2, b"error: stopped by SIGTERM before the command began: run it again\n")
    os._exit(75)


if sys.argv[:1] == ["-m"]:  # `python -m jobs.NAME`: Python is looking for the module
    end_by_sigterm()
# Refuse a user's package that shadows Manta's. When jobs run from a source tree, `manta` is not installed.
with contextlib.suppress(ModuleNotFoundError):
    importlib.import_module("manta.shadowing").check_packages()

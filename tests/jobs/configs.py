"""The shipped settings files, and the commands that their comments give."""

import shlex
from pathlib import Path

from tests.conftest import ROOT

CONFIGS = ROOT / "jobs" / "configs"


def arguments_in_comment(file: Path, command: str) -> tuple[str, ...]:
    """Return the arguments after `manta COMMAND --config FILE` in the comment of a settings file.

    Raises:
        StopIteration: the comment has no such line.
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    called = f"# manta {command} --config {file.relative_to(ROOT)}"
    words = (" ".join(line.split()) for line in lines if line.startswith("#"))
    line = next(line for line in words if line.startswith(called))
    return tuple(shlex.split(line.removeprefix(called)))

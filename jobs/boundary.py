"""The boundary of a command: standard output, signals, and errors that become exit codes."""

import contextlib
import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TextIO

import typer

from pipeline.errors import PipelineError
from pipeline.log import ends_by, printable

EXIT_CODES = (
    "Exit codes: 0 done, 2 configuration, 3 data, 4 model, 5 a gate refused the release, 75 transient "
    "or stopped by SIGTERM (run again), 130 interrupted, "
    "70 an internal error."
)
_NO_THREAD = "can't start new thread"  # the message is all that distinguishes Python's RuntimeError
_KEPT = "what is finished is kept: run the same command again to go on"

Say = Callable[[str], None]


class Stopped(KeyboardInterrupt):
    """SIGTERM, by which a scheduler asks a job to end."""


class Unread(Exception):
    """Standard output is a pipe that its reader has closed, as behind `| head -1`."""


class _Ending(NamedTuple):
    """The exit code of a failed command, and its error by name, sentence and fields."""

    code: int
    error: str
    message: str
    facts: dict[str, Any]


def guarded(work: Callable[[Say], None], *, as_json: bool, verbose: bool) -> None:
    """Run the work of a command. An error ends the process with its exit code and a sentence.

    Args:
        work: gets the function that prints a line on standard output; other output goes to standard error.
        as_json: print an error as a JSON object too.
        verbose: print the traceback of every error, not only of defects.
    """

    def stop(*_: object) -> NoReturn:
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    with _standard_output() as say:
        answer = say if as_json else None
        try:
            with ends_by(lambda error: _end_at_once(error, answer)):
                work(say)
        except typer.Exit:
            raise
        except Unread:  # the reader has got all that it wanted
            pass
        except (Exception, KeyboardInterrupt) as error:
            ending = _ending(error)
            if ending.code == 70 or (verbose and isinstance(error, PipelineError)):
                traceback.print_exc()
            _report(ending, answer)
            raise typer.Exit(ending.code) from None


def _ending(error: BaseException) -> _Ending:
    kind = type(error).__name__
    if isinstance(error, PipelineError):
        return _Ending(error.exit_code, kind, str(error), error.facts())
    if isinstance(error, Stopped):
        return _Ending(75, kind, f"stopped by SIGTERM; {_KEPT}", {})
    if isinstance(error, KeyboardInterrupt):
        return _Ending(130, "Interrupted", f"stopped by Ctrl-C; {_KEPT}", {})
    if (short := _shortage(error)) is not None:
        return _Ending(75, kind, f"{short}; {_KEPT}", {})
    return _Ending(
        70,
        "Defect",
        f"{kind}: {error}; this is a defect of the program, please report it with the lines above",
        {},
    )


def _shortage(error: BaseException) -> str | None:
    """Name the resource of this machine that is short, and a way to get more; None for any other error."""
    number = error.errno or 0 if isinstance(error, OSError) else 0
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and _NO_THREAD in str(error)):
        return (
            "this machine starts no further thread or process; end what else runs, use fewer workers "
            "(cluster.workers), or raise the limit (ulimit -u, pids.max)"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            f"no further file can be opened ({os.strerror(number)}); raise the limit (ulimit -n), or end "
            "what else runs"
        )
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        return "no memory is left; free some, or use fewer workers (cluster.workers)"
    return None


def _end_at_once(error: Exception, say: Say | None) -> NoReturn:
    """End the process from another thread than the one at work, which may wait for ever."""
    ending = _ending(error)
    _report(ending, say)
    sys.stderr.flush()
    os._exit(ending.code)


def _report(ending: _Ending, say: Say | None) -> None:
    """Print the sentence on standard error and, with `say`, the JSON object on standard output."""
    print(printable(f"{'error' if ending.code else 'manta'}: {ending.message}"), file=sys.stderr)
    if say:
        facts = {
            "status": "error" if ending.code else "done",
            "error": ending.error,
            "message": ending.message,
            "exit_code": ending.code,
        }
        with contextlib.suppress(Unread):
            say(json.dumps(facts | ending.facts, default=str))


@contextlib.contextmanager
def _standard_output() -> Iterator[Say]:
    """Yield the function that prints a line on standard output.

    All other output there (Ray's, a library's) goes to standard error.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding="utf-8", errors="replace") as output:
        try:
            yield lambda line: _write_line(line, output)
        finally:
            sys.stdout.flush()
            os.dup2(output.fileno(), 1)


def _write_line(line: str, output: TextIO) -> None:
    """Print the line. Raises Unread for a closed pipe; later lines are then discarded."""
    try:
        print(line, file=output, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, output.fileno())
        os.close(nowhere)
        raise Unread from None

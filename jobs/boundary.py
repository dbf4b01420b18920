"""Run a command: redirect standard output, handle signals, and turn errors into exit codes."""

import contextlib
import itertools
import json
import logging
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, TextIO

import typer

from pipeline.errors import ConfigError, PipelineError, TransientError
from pipeline.exit_codes import describe_shortage, exit_code_of
from pipeline.log import ends_by, printable
from pipeline.terminal import open_missing_streams, tolerate_lost_messages

EXIT_CODES = (
    "Exit codes: 0 done, 2 configuration, 3 data, 4 model, 5 a gate refused the release, 75 transient "
    "or stopped by SIGTERM (run again), 130 interrupted, "
    "70 an internal error."
)
_LEAST_ADDRESSES = 4 << 30  # with less, PyTorch cannot be loaded, or libgomp and Ray end the process
_CONTINUE = "finished work is kept: run the same command again to continue"

Say = Callable[[str], None]


class Stopped(KeyboardInterrupt):
    """Raised on SIGTERM, by which a scheduler asks a job to end."""

    exit_code = 75


class OutputClosed(Exception):
    """Raised when standard output is a pipe that its reader, such as `head -1`, has closed."""


class _Failure(NamedTuple):
    """The end of a failed command: its exit code, and the error for standard error and for --json."""

    code: int
    error: str
    """name of the error's class, or of the kind of failure"""
    message: str
    facts: dict[str, Any]
    """further fields for --json"""


def guarded(work: Callable[[Say], None], *, as_json: bool, verbose: bool) -> None:
    """Run the work of a command. If it fails, print a sentence and end the process with an exit code.

    Args:
        work: is called with a function that prints a line on standard output; all other output goes to
            standard error.
        as_json: also print the error as a JSON object.
        verbose: print the traceback of every error, not only of internal ones, and the log of the package.
    """

    def stop(*_: object) -> NoReturn:
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    if verbose:
        _print_log()
    with _standard_output() as say:
        say_json = say if as_json else None
        try:
            with ends_by(lambda error: _end_at_once(error, say_json)):
                work(say)
        except typer.Exit:
            raise
        except OutputClosed:  # not an error: the reader of the output needs no more lines
            pass
        except (Exception, KeyboardInterrupt) as error:
            failure = _describe_failure(error)
            if failure.code == 70 or (verbose and isinstance(error, PipelineError)):
                traceback.print_exc()
            _report(failure, say_json)
            raise typer.Exit(failure.code) from None


def _print_log() -> None:
    """Print the log of the package on standard error. It is more than most users want to read."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter())
    package = logging.getLogger("pipeline")
    package.handlers = [handler]
    package.setLevel(logging.INFO)


class _PrintableFormatter(logging.Formatter):
    """Format a message as one printable line, because it may quote names from a file of unknown origin."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(record.getMessage())


def _describe_failure(error: BaseException) -> _Failure:
    """Return the exit code and the sentence for an error."""
    name, code = type(error).__name__, exit_code_of(error)
    if isinstance(error, PipelineError):
        return _Failure(code, name, str(error), error.facts())
    if isinstance(error, Stopped):
        return _Failure(code, name, f"stopped by SIGTERM; {_CONTINUE}", {})
    if isinstance(error, KeyboardInterrupt):
        return _Failure(code, "Interrupted", f"stopped by Ctrl-C; {_CONTINUE}", {})
    if (shortage := describe_shortage(error)) is not None:
        return _Failure(code, name, f"{shortage}; {_CONTINUE}", {})
    return _Failure(
        code,
        "Defect",
        f"{name}: {error}; this is a defect of the program, please report it with the lines above",
        {},
    )


def refuse_few_addresses() -> None:
    """Raise ConfigError if the process has too little address space for PyTorch, faiss or Ray."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESSES:
        raise ConfigError(
            "memory of this process",
            f"at least {_LEAST_ADDRESSES >> 30} GiB of address space, mostly for libraries",
            f"{limit / (1 << 30):.1f} GiB",
            "raise the limit: ulimit -v unlimited",
        )


def _end_at_once(error: Exception, say: Say | None) -> NoReturn:
    """End the process from any thread, without waiting for the main thread, which may be blocked for ever."""
    failure = _describe_failure(error)
    _report(failure, say)
    sys.stderr.flush()
    os._exit(failure.code)


def _report(failure: _Failure, say: Say | None) -> None:
    """Print the sentence on standard error and, if `say` is given, the JSON object on standard output."""
    print(printable(f"{'error' if failure.code else 'manta'}: {failure.message}"), file=sys.stderr)
    if say:
        facts = {
            "status": "error" if failure.code else "done",
            "error": failure.error,
            "message": failure.message,
            "exit_code": failure.code,
        }
        with contextlib.suppress(OutputClosed, TransientError):  # the sentence and the exit code remain
            say(json.dumps(facts | failure.facts, default=str))


@contextlib.contextmanager
def _standard_output() -> Iterator[Say]:
    """Yield the function that prints a line on standard output.

    Within the block, everything else that is printed there (by Ray or a library) goes to standard error.
    """
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as output:
        os.dup2(2, 1)
        try:
            yield lambda line: _write_line(line, output)
        finally:
            sys.stdout.flush()
            os.dup2(output.fileno(), 1)


def _write_line(line: str, output: TextIO) -> None:
    """Print a line. After an error, later lines are discarded.

    Raises:
        OutputClosed: standard output is a pipe that its reader has closed.
        TransientError: standard output cannot be written for another reason, such as a full disk.
    """
    try:
        print(line, file=output, flush=True)
    except OSError as error:
        discard(output)
        if isinstance(error, BrokenPipeError):
            raise OutputClosed from None
        raise _unwritten(error) from None


def discard(output: TextIO) -> None:
    """Discard the unwritten output of a stream that failed, and all its later output."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, output.fileno())
    os.close(devnull)


def _unwritten(error: OSError) -> TransientError:
    remedy = "free disk space, or write elsewhere, and run again"
    return TransientError("standard output", "a stream that takes the output", str(error), remedy)


def _refuse_dashes(arguments: Sequence[str]) -> None:
    """End with exit code 2 if a setting is written as an option: only settings have dots in their names."""
    for argument in itertools.takewhile(lambda each: each != "--", arguments):
        name, _, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and re.fullmatch(r"\w+(\.\w+)+", name):
            sentence = f"{argument}: settings have no dashes; did you mean {name}={value or 'VALUE'}?"
            _report(_Failure(2, "ConfigError", sentence, {}), None)
            raise SystemExit(2)


def run_program(application: Callable[[], object]) -> None:
    """Run a command-line application. If it prints help or usage, the exit code is a documented one, too."""
    open_missing_streams()
    tolerate_lost_messages()
    ended = SystemExit(0)
    try:
        try:
            _refuse_dashes(sys.argv[1:])
            application()
        except SystemExit as error:
            ended = error
        sys.stdout.flush()
    except BrokenPipeError:  # not an error, as in `guarded`
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        failure = _describe_failure(_unwritten(error))
        _report(failure, None)
        ended = SystemExit(failure.code)
    raise ended

"""Options, settings, output and exit codes that all commands share."""

import contextlib
import difflib
import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer

from pipeline.config import load_settings, refuse_credentials, to_yaml, uri_of
from pipeline.errors import ConfigError, PipelineError
from pipeline.log import Stages, ends_by, printable
from pipeline.settings import Job

_CONFIG_HELP = (
    "The job's YAML, or the name of one that comes with Manta, such as quickstart. Without it: defaults."
)
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help=_CONFIG_HELP)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key.path=value]...",
        help="Settings that go before the file's, such as encode.unit_rows=4096.",
    ),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the resolved settings as YAML and stop.")
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object on standard output and nothing else; progress stays on standard error.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what Ray says, and tracebacks.")]

_NO_THREAD = "can't start new thread"  # Python's only word for it

Say = Callable[[str], None]


class Stopped(KeyboardInterrupt):
    """SIGTERM: how a scheduler asks a job to end."""


class Unread(Exception):
    """Nobody reads standard output any more, as behind `| head -1`."""


EXIT_CODES = (
    "Exit codes: 0 done, 2 configuration, 3 data, 4 model, 5 a gate refused the release, 75 transient "
    "or stopped by SIGTERM (run again), 130 stopped by hand, "
    "70 a defect of this program."
)


def application(**options: Any) -> typer.Typer:
    """A command line in plain text, with our own errors instead of decorated tracebacks."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def standalone(command: Callable[..., None]) -> None:
    """Run one job as a program: python -m jobs.<name>."""
    app = application()
    app.command()(command)
    app()


@dataclass
class CommandRun:
    """One command at work."""

    job: Job
    verbose: bool = False
    stages: Stages = field(default_factory=Stages)


@dataclass(frozen=True)
class Answer:
    """The result of a command: `facts` for --json, `text` for people."""

    facts: dict[str, Any]
    text: str
    exit_code: int = 0


def run_job(
    work: Callable[[CommandRun], Answer],
    config: Path | None,
    overrides: list[str] | None,
    print_config: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Load the settings, do the work, print the answer; exits by itself when something is wrong."""

    def whole(say: Say) -> None:
        job = load_settings(Job, config and _config_file(config), tuple(overrides or ()))
        if print_config:
            say(json.dumps(job.model_dump(mode="json"), indent=2) if as_json else to_yaml(job).rstrip())
            return
        tell(work(CommandRun(job, verbose)), say, as_json)

    guarded(whole, as_json=as_json, verbose=verbose)


def named_configs() -> dict[str, Path]:
    """The settings that come with Manta by name: quickstart, train/cert and so on."""
    folder = Path(__file__).parent / "configs"
    return {
        file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))
    }


def _config_file(given: Path) -> Path:
    """The file itself, or the one of that name among those that come with Manta.

    A file in the working directory goes before.
    """
    refuse_credentials(uri_of(given))
    if given.suffix or given.is_file():
        return given
    known, name = named_configs(), given.as_posix()
    found = [file for each, file in known.items() if name in (each, each.rpartition("/")[2])]
    if len(found) != 1:
        near = difflib.get_close_matches(name, [*known, *(each.rpartition("/")[2] for each in known)], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(known)}"
        raise ConfigError(
            f"--config {name}", "a YAML file, or the name of one that comes with Manta", "neither", hint
        )
    return found[0]


def tell(answer: Answer, say: Say, as_json: bool) -> None:
    """Print the answer; ends with its exit code where that is not 0."""
    with contextlib.suppress(Unread):
        say(
            json.dumps(answer.facts, default=str)
            if as_json
            else "\n".join(map(printable, answer.text.split("\n")))
        )
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def guarded(work: Callable[[Say], None], *, as_json: bool, verbose: bool) -> None:
    """The job boundary: an error ends the process with its exit code and a sentence.

    What `work` says, and nothing else, goes to standard output.
    """
    signal.signal(signal.SIGTERM, _stop)
    with _standard_output() as say:
        try:
            with ends_by(lambda error: _end_at_once(error, say if as_json else None)):
                work(say)
        except typer.Exit:
            raise
        except Unread:  # whoever closed it has what was wanted
            pass
        except PipelineError as error:
            if verbose:
                traceback.print_exc()
            _end(error.exit_code, type(error).__name__, str(error), say if as_json else None, error.facts())
        except Stopped:
            _end(
                75,
                "Stopped",
                "stopped by SIGTERM; what is finished is kept: run the same command again to go on",
                say if as_json else None,
            )
        except KeyboardInterrupt:
            _end(
                130,
                "Interrupted",
                "stopped by hand; what is finished is kept: run the same command again to go on",
                say if as_json else None,
            )
        except MemoryError:
            said = (
                "no memory is left; what is finished is kept: free some, or use fewer workers "
                "(cluster.workers), and run again"
            )
            _end(75, "MemoryError", said, say if as_json else None)
        except Exception as error:
            if (short := _shortage(error)) is not None:
                said = f"{short}; what is finished is kept: run the same command again to go on"
                _end(75, type(error).__name__, said, say if as_json else None)
            traceback.print_exc()
            found = (
                f"{type(error).__name__}: {error}; this is a defect of the program, please report it with "
                "the lines above"
            )
            _end(70, "Defect", found, say if as_json else None)


def _shortage(error: Exception) -> str | None:
    """Name the resource of this machine that is short, and a way to get more; None for any other error."""
    number = error.errno or 0 if isinstance(error, OSError) else 0
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and _NO_THREAD in str(error)):
        remedy = (
            "end what else runs, use fewer workers (cluster.workers), or raise the limit (ulimit -u, "
            "pids.max)"
        )
        return f"this machine starts no further thread or process; {remedy}"
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            f"no further file can be opened ({os.strerror(number)}); raise the limit (ulimit -n), or end "
            "what else runs"
        )
    if number == errno.ENOMEM:
        return "no memory is left; free some, or use fewer workers (cluster.workers)"
    return None


def _end_at_once(error: Exception, say: Say | None) -> NoReturn:
    """From another thread than the one at work, which may wait for what does not come."""
    code = error.exit_code if isinstance(error, PipelineError) else 70
    with contextlib.suppress(typer.Exit):
        _end(code, type(error).__name__, str(error), say)
    sys.stderr.flush()
    os._exit(code)


def _stop(*_: object) -> NoReturn:
    raise Stopped


@contextlib.contextmanager
def _standard_output() -> Iterator[Say]:
    """Return the function that prints a line on standard output.

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
    """Print the line. Raises Unread for a closed pipe, which from then on takes every line and keeps none."""
    try:
        print(line, file=output, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, output.fileno())
        os.close(nowhere)
        raise Unread from None


def _end(
    code: int, kind: str, message: str, say: Say | None, facts: dict[str, Any] | None = None
) -> NoReturn:
    print(printable(f"{'manta' if code == 0 else 'error'}: {message}"), file=sys.stderr)
    status = "done" if code == 0 else "error"
    if say:
        with contextlib.suppress(Unread):
            ended = {"status": status, "error": kind, "message": message, "exit_code": code}
            say(json.dumps({**ended, **(facts or {})}, default=str))
    raise typer.Exit(code)

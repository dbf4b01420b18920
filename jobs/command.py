"""Options, settings and answers that all commands share.

A command is a function of its work and its own options; a decorator adds the options that it shares with
other commands. Typer reads them from the signature.
"""

import contextlib
import difflib
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.boundary import Say, Unread, guarded
from pipeline.config import load_settings, refuse_credentials, to_yaml, uri_of
from pipeline.errors import ConfigError
from pipeline.log import Stages, printable
from pipeline.settings import Job

_CONFIG_HELP = (
    "The job's YAML, or the name of one that comes with Manta, such as quickstart. Without it: defaults."
)
_JSON_HELP = "Print one JSON object on standard output and nothing else; progress stays on standard error."
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
Json = Annotated[bool, typer.Option("--json", help=_JSON_HELP)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what Ray says, and tracebacks.")]
Root = Annotated[
    str, typer.Argument(metavar="ROOT", help="Where releases are published: release.root of the job.")
]
CommitsRoot = Annotated[
    str | None,
    typer.Option("--commits-root", metavar="URI", help="release.commits_root of the job, where it is set."),
]

Command = Callable[..., None]


@dataclass(frozen=True)
class CommandRun:
    """A running command: its job, and the progress of its stages."""

    job: Job
    verbose: bool = False
    stages: Stages = field(default_factory=Stages)


@dataclass(frozen=True)
class Answer:
    """The result of a command: `facts` for --json, `text` for people."""

    facts: dict[str, Any]
    text: str
    exit_code: int = 0


def application(**options: Any) -> typer.Typer:
    """Return a command line in plain text, with our own errors instead of decorated tracebacks."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def standalone(command: Command) -> None:
    """Run one command as a program: python -m jobs.<name>."""
    app = application()
    app.command()(command)
    app()


def job_command(work: Callable[..., Answer]) -> Command:
    """Return the command that loads the settings of a job, calls `work(run, ...)` and prints the answer."""

    def command(
        config: Config = None,
        overrides: Overrides = None,
        print_config: PrintConfig = False,
        as_json: Json = False,
        verbose: Verbose = False,
        **own: Any,
    ) -> None:
        def whole(say: Say) -> None:
            job = load_settings(Job, config and _config_file(config), tuple(overrides or ()))
            if print_config:
                say(json.dumps(job.model_dump(mode="json"), indent=2) if as_json else to_yaml(job).rstrip())
            else:
                tell(work(CommandRun(job, verbose), **own), say, as_json)

        guarded(whole, as_json=as_json, verbose=verbose)

    return with_own_options(command, work, behind=2)


def options_command(work: Callable[[Any], None]) -> Command:
    """Return the command `work(options)`. The fields of `options`, a dataclass, are its options."""
    (kind,) = (parameter.annotation for parameter in inspect.signature(work).parameters.values())
    return _declared(lambda **given: work(kind(**given)), work, inspect.signature(kind).parameters.values())


def with_own_options(command: Command, work: Callable[..., Answer], behind: int) -> Command:
    """Add the options of `work`, which follow its first parameter, to those that `command` shares.

    Args:
        command: has the shared options as parameters, and passes on all others (**).
        behind: number of shared options in front of the added ones.
    """
    *shared, _ = inspect.signature(command).parameters.values()
    _, *own = inspect.signature(work).parameters.values()
    return _declared(command, work, [*shared[:behind], *own, *shared[behind:]])


def _declared(command: Command, work: Callable[..., Any], options: Iterable[inspect.Parameter]) -> Command:
    """Give `command` the name and the help of `work`, and a signature of these options."""
    command.__name__, command.__doc__ = work.__name__, work.__doc__
    vars(command)["__signature__"] = inspect.Signature(list(options))
    return command


def tell(answer: Answer, say: Say, as_json: bool) -> None:
    """Print the answer, and exit with its code if that is not 0."""
    with contextlib.suppress(Unread):
        if as_json:
            say(json.dumps(answer.facts, default=str))
        else:
            say("\n".join(map(printable, answer.text.split("\n"))))
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def named_configs() -> dict[str, Path]:
    """Return the settings that come with Manta by name: quickstart, train/cert and so on."""
    folder = Path(__file__).parent / "configs"
    return {
        file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))
    }


def _config_file(given: Path) -> Path:
    """Return the file, or the one of that name among those that come with Manta.

    A file in the working directory takes precedence.
    """
    refuse_credentials(uri_of(given))
    if given.suffix or given.is_file():
        return given
    known, name = named_configs(), given.as_posix()
    found = [file for each, file in known.items() if name in (each, each.rpartition("/")[2])]
    if len(found) != 1:
        near = difflib.get_close_matches(name, [*known, *(each.rpartition("/")[2] for each in known)], n=1)
        raise ConfigError(
            f"--config {name}",
            "a YAML file, or the name of one that comes with Manta",
            "neither",
            f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(known)}",
        )
    return found[0]

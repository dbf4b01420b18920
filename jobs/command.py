"""Options, settings and output that all commands share.

A command is written as a function of its own options. A decorator adds the shared options to its signature,
from which Typer makes the command line.
"""

import contextlib
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from jobs.boundary import OutputClosed, Say, guarded, refuse_few_addresses, run_program
from pipeline.config import load_settings, refuse_credentials, to_yaml, uri_of
from pipeline.errors import ConfigError, did_you_mean
from pipeline.log import Stages, announce, printable
from pipeline.settings import Job

_CONFIG_HELP = "The job's YAML, or the name of one that comes with Manta, such as quickstart. Default: none."
_JSON_HELP = "Print one JSON object on standard output and nothing else; progress stays on standard error."
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help=_CONFIG_HELP)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key.path=value]...",
        help="Settings that take precedence over the file's, such as encode.unit_rows=4096.",
    ),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the resolved settings as YAML and stop.")
]
Json = Annotated[bool, typer.Option("--json", help=_JSON_HELP)]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show the log of Ray, unused weights of models, and tracebacks."),
]
Root = Annotated[
    str, typer.Argument(metavar="ROOT", help="Folder or URI of the releases: release.root of the job.")
]
CommitsRoot = Annotated[
    str | None,
    typer.Option("--commits-root", metavar="URI", help="release.commits_root of the job, if it is set."),
]

Command = Callable[..., None]


@dataclass(frozen=True)
class CommandRun:
    """The job of a running command, and the progress of its stages."""

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
    """Make a Typer application that prints help and tracebacks as plain text."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def standalone(command: Command) -> None:
    """Run one command as a program, `python -m jobs.<name>`."""
    app = application()
    app.command()(command)
    run_program(app)


IfRefused = Callable[[ConfigError, Path | None, tuple[str, ...]], None]
"""called with the error, the file and the overrides if settings are refused"""


def job_command(
    work: Callable[..., Answer], if_refused: IfRefused | None = None, *, loads_libraries: bool = True
) -> Command:
    """Make a command that loads the settings of a job, calls `work(run, ...)` and prints the answer.

    Args:
        work: the command.
        if_refused: is called before the command ends, if settings are refused.
        loads_libraries: whether the command loads PyTorch, faiss or Ray.
    """

    def command(
        config: Config = None,
        overrides: Overrides = None,
        print_config: PrintConfig = False,
        as_json: Json = False,
        verbose: Verbose = False,
        **own_options: Any,
    ) -> None:
        def run_command(say: Say) -> None:
            file, arguments = None, tuple(overrides or ())
            try:
                file = config_file(config) if config else None
                job = load_settings(Job, file, arguments)
                if loads_libraries and not print_config:
                    refuse_few_addresses()
            except ConfigError as error:
                if if_refused and not print_config:
                    if_refused(error, file, arguments)
                raise
            if print_config:
                say(json.dumps(job.model_dump(mode="json"), indent=2) if as_json else to_yaml(job).rstrip())
            else:
                print_answer(work(CommandRun(job, verbose), **own_options), say, as_json)

        guarded(run_command, as_json=as_json, verbose=verbose)

    return with_own_options(command, work, leading=2)


def options_command(work: Callable[[Any], None]) -> Command:
    """Make a command that calls `work(options)`. The fields of the dataclass `options` are its options."""
    (parameter,) = inspect.signature(work).parameters.values()
    options_class = parameter.annotation
    return _set_signature(
        lambda **values: work(options_class(**values)),
        work,
        inspect.signature(options_class).parameters.values(),
    )


def with_own_options(command: Command, work: Callable[..., Answer], leading: int) -> Command:
    """Add the options of `work` (all parameters but the first) to the shared options of `command`.

    Args:
        command: a function whose parameters are the shared options; it passes other options (**) to `work`.
        leading: number of shared options that come before the added ones on the command line and in --help.
    """
    *shared, _ = inspect.signature(command).parameters.values()
    _, *own = inspect.signature(work).parameters.values()
    return _set_signature(command, work, [*shared[:leading], *own, *shared[leading:]])


def _set_signature(
    command: Command, work: Callable[..., Any], options: Iterable[inspect.Parameter]
) -> Command:
    """Give `command` the name and docstring of `work`, and `options` as its signature."""
    command.__name__, command.__doc__ = work.__name__, work.__doc__
    vars(command)["__signature__"] = inspect.Signature(list(options))
    return command


def print_answer(answer: Answer, say: Say, as_json: bool) -> None:
    """Print the answer; end the process if its exit code is not 0."""
    with contextlib.suppress(OutputClosed):
        if as_json:
            say(json.dumps(answer.facts, default=str))
        else:
            say("\n".join(map(printable, answer.text.split("\n"))))
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def announce_unused_root(job: Job, section: Literal["pairs", "train"]) -> None:
    """Say where results go, if the settings name only release.root, which the command does not use."""
    settings = getattr(job, section)
    if "root" in job.release.model_fields_set and "root" not in settings.model_fields_set:
        announce(f"release.root is not used here: results go to {section}.root, {settings.root}")


def named_configs() -> dict[str, Path]:
    """Return the configuration files that come with Manta by name: quickstart, train/cert and so on."""
    folder = Path(__file__).parent / "configs"
    return {
        file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))
    }


def config_file(path_or_name: Path) -> Path:
    """Return the path of the settings file that --config names, which may be one that comes with Manta.

    A file in the working directory takes precedence. Names may be given without their folder: cert for
    train/cert.
    """
    refuse_credentials(uri_of(path_or_name))
    if path_or_name.suffix or path_or_name.is_file():
        return path_or_name
    known, name = named_configs(), path_or_name.as_posix()
    matches = [file for key, file in known.items() if name in (key, file.stem)]
    if len(matches) != 1:
        names = [*known, *(file.stem for file in known.values())]
        raise ConfigError(
            f"--config {name}",
            "a YAML file, or the name of one that comes with Manta",
            "neither",
            did_you_mean(name, names, f"known names: {', '.join(known)}"),
        )
    return matches[0]

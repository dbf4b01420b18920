"""The command `manta`: one subcommand per job. Importing it loads neither torch nor Ray nor faiss."""

import platform
from pathlib import Path
from typing import Annotated

import typer

from jobs.augment import augment
from jobs.boundary import EXIT_CODES, run_program
from jobs.command import application
from jobs.completion import completion
from jobs.count import count
from jobs.duplicates import duplicates
from jobs.encode import encode
from jobs.erase import erase
from jobs.evaluate import evaluate
from jobs.export import export
from jobs.index import index
from jobs.init import init
from jobs.nightly import nightly
from jobs.pairs import pairs
from jobs.plan import plan
from jobs.preflight import preflight
from jobs.query_log import query_log
from jobs.releases import releases
from jobs.search import search
from jobs.search_template import search_template
from jobs.serve import serve
from jobs.train import train
from jobs.whiten import whiten
from pipeline.log import packages

_FIRST_STEPS = """Manta: from a corpus of text to a published, searchable index, again every night.

  manta nightly --config quickstart     a first night on this machine, on the docstrings of its packages
  manta init CORPUS                     look at a corpus of your own and write night.yaml for it
  manta nightly --config night.yaml     read, encode, index, check and publish it
  manta search ROOT "your query"        search the published release

manta --help names all commands, and manta COMMAND --help their options."""

_QUICKSTART_ROOT = "out/quickstart/releases"  # release.root of jobs/configs/quickstart.yaml

app = application(
    name="manta",
    help="From a corpus of text to a published, versioned, searchable index.\n\n"
    "A job is one YAML file (see jobs/configs), and settings after it take precedence: manta nightly "
    "--config night.yaml corpus.uri=s3://bucket/corpus\n\n" + EXIT_CODES,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        versions = packages("manta-embeddings", "ray", "torch", "faiss-cpu", "faiss-gpu", "pyarrow")
        manta, *others = (f"{name} {version}" for name, version in versions.items())
        print(f"{manta.replace('-embeddings', '')} (Python {platform.python_version()}, {', '.join(others)})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the versions of Manta and of the packages that it uses.",
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(f"{_FIRST_STEPS}\nNext: {_next_step()}")
        raise typer.Exit(2)


def _next_step() -> str:
    """Return the command to run next in this directory."""
    if Path("night.yaml").exists():
        return "manta nightly --config night.yaml"
    if Path(_QUICKSTART_ROOT, "commits").exists():
        return f'manta search {_QUICKSTART_ROOT} "join two paths", then manta init for a corpus of your own'
    return "manta nightly --config quickstart"


for _command in (
    init,
    plan,
    preflight,
    train,
    pairs,
    augment,
    count,
    encode,
    whiten,
    index,
    evaluate,
    search_template,
    nightly,
    search,
    serve,
    query_log,
    duplicates,
    erase,
    export,
):
    app.command()(_command)
app.add_typer(releases, name="releases")
app.command()(completion)


if __name__ == "__main__":
    run_program(app)

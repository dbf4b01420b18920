"""The command `manta`: one subcommand per job. Importing it loads neither torch nor Ray nor faiss."""

from jobs.augment import augment
from jobs.command import EXIT_CODES, application
from jobs.encode import encode
from jobs.evaluate import evaluate
from jobs.index import index
from jobs.nightly import nightly
from jobs.plan import plan
from jobs.preflight import preflight
from jobs.releases import releases
from jobs.search import search
from jobs.train import train
from jobs.whiten import whiten

app = application(
    name="manta",
    help="From a corpus of text to a published, versioned, searchable index.\n\n"
    "A job is one YAML (see jobs/configs) and any setting can be given behind it: manta nightly --config night.yaml corpus.uri=s3://bucket/corpus\n\n" + EXIT_CODES,
    no_args_is_help=True,
)
for _command in (plan, preflight, train, augment, encode, whiten, index, evaluate, nightly, search):
    app.command()(_command)
app.add_typer(releases, name="releases")


def run() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    run()

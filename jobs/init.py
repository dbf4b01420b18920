"""Look at a corpus and write settings for it.

manta init s3://bucket/docs
python -m jobs.init docs.parquet --output docs.yaml
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.boundary import guarded
from jobs.command import Answer, Json, Verbose, options_command, standalone, tell
from pipeline.config import refuse_credentials, to_yaml, validated
from pipeline.errors import ConfigError
from pipeline.log import counted, printable
from pipeline.settings import CorpusSettings, EncoderSettings, Job

if TYPE_CHECKING:
    from pipeline.flows.night.look import CorpusLook

_WRITTEN = (
    "corpus.uri",
    "corpus.id",
    "corpus.text",
    "corpus.keep",
    "encoder.path",
    "whiten.mode",
    "index.kind",
    "gates.recall_at_10",
    "release.root",
    "cluster.address",
)
_SHOWN = 30  # columns in the comment
_HEAD = """# Written by `manta init` after a look at {rows:,} rows of {files}. Columns there: {columns}.
#
#     manta plan --config {file}          # what a night would take; nothing is done
#     manta nightly --config {file}
#
# `manta nightly --config {file} --print-config` shows every other setting with its meaning.
"""


@dataclass(frozen=True)
class InitOptions:
    """The command line of `manta init`."""

    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="A file, a glob or a directory of Parquet or JSON lines; a path, file:// or s3://.",
        ),
    ]
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file that is written; one that exists is left alone."
        ),
    ] = Path("night.yaml")
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column of the row's id; guessed without it.")
    ] = None
    text_column: Annotated[
        str | None, typer.Option("--text", metavar="COLUMN", help="Column of the text; guessed without it.")
    ] = None
    root: Annotated[
        str | None,
        typer.Option(
            "--root", metavar="URI", help="Where releases are published; without it out/NAME beside you."
        ),
    ] = None
    as_json: Json = False
    verbose: Verbose = False


@options_command
def init(options: InitOptions) -> None:
    """Look at a corpus and write settings for it.

    Reads the first rows of a few files, guesses which columns are the id and the text, and writes a commented
    YAML that `manta nightly --config` takes as it is.
    """
    guarded(
        lambda say: tell(_init(options), say, options.as_json),
        as_json=options.as_json,
        verbose=options.verbose,
    )


def _init(options: InitOptions) -> Answer:
    from pipeline.flows.night.look import look

    uri, output = options.corpus, options.output
    for given in (uri, options.root or ""):
        refuse_credentials(given)
    if output.exists():
        raise ConfigError(
            str(output), "no such file yet", "one that exists", "name another with --output, or remove it"
        )
    seen = look(validated(CorpusSettings, {"uri": uri}, "CORPUS"), options.id_column, options.text_column)
    sections = {
        "corpus": {"uri": uri, "id": seen.id, "text": seen.text, "keep": seen.keep},
        "release": {"root": options.root or f"out/{_name(uri)}"},
    }
    job = validated(Job, sections, "manta init")
    files, columns = counted(seen.files, "file"), _columns(seen)
    head = _HEAD.format(rows=seen.rows, files=files, columns=columns, file=output)
    about = _about(seen)
    _write(output, head + (f"# {about}.\n" if about else "") + "\n" + to_yaml(job, only=_WRITTEN))
    lines = [
        f"{output} is written: {files}, columns {columns}",
        printable(
            f"id {seen.id}, text {seen.text}, kept {', '.join(seen.keep) or 'nothing'}, "
            f"language {seen.language or 'unknown'}"
        ),
        *([about] if about else []),
        f"next: manta nightly --config {output}",
    ]
    facts = {"status": "done", "file": str(output), **vars(seen), "root": job.release.root}
    return Answer(facts, "\n".join(lines))


def _columns(seen: "CorpusLook") -> str:
    """Return the names of the columns for a comment, which is one line."""
    shown = printable(", ".join(seen.columns[:_SHOWN]))
    more = len(seen.columns) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _about(seen: "CorpusLook") -> str:
    """Describe the language or script if the default encoder does not fit it; "" if it does."""
    from pipeline.text.tokens.coverage import script_phrase

    if seen.language not in (None, "en"):
        found = f"The texts seem to be in {seen.language}"
    elif seen.language is None and seen.script is not None and seen.script not in ("latin", "symbols"):
        found = f"Most of them are {script_phrase(seen.script)}"
    else:
        return ""
    return f"{found}; {EncoderSettings().path} knows English: name a multilingual encoder in encoder.path"


def _name(uri: str) -> str:
    """Return the last part of the corpus's URI that is a name, without its ending."""
    parts = PurePosixPath(uri.partition("://")[2] or uri).parts
    names = [part for part in parts if part.strip("./*") and not set("*?[") & set(part)]
    return names[-1].split(".")[0] or "corpus" if names else "corpus"


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise ConfigError(
            str(file), "a writable file", f"{type(error).__name__}: {error}", "name another with --output"
        ) from None


if __name__ == "__main__":
    standalone(init)

"""Look at a corpus and write settings for it.

manta init s3://bucket/docs
python -m jobs.init docs.parquet --output docs.yaml
"""

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.command import Answer, Json, Verbose, guarded, standalone, tell
from pipeline.config import refuse_credentials, to_yaml, validated
from pipeline.errors import ConfigError
from pipeline.log import printable
from pipeline.settings import CorpusSettings, EncoderSettings, Job

if TYPE_CHECKING:
    from pipeline.flows.night.look import CorpusLook

Corpus = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="A file, a glob or a directory of Parquet or JSON lines; a path, file:// or s3://.",
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE", help="The file that is written; one that exists is left alone."
    ),
]
IdColumn = Annotated[
    str | None, typer.Option("--id", metavar="COLUMN", help="Column of the row's id; guessed without it.")
]
TextColumn = Annotated[
    str | None, typer.Option("--text", metavar="COLUMN", help="Column of the text; guessed without it.")
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root", metavar="URI", help="Where releases are published; without it out/NAME beside you."
    ),
]

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


def init(
    corpus: Corpus,
    output: Output = Path("night.yaml"),
    id_column: IdColumn = None,
    text_column: TextColumn = None,
    root: Root = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Look at a corpus and write settings for it.

    Reads the first rows of a few files, guesses which columns are the id and the text, and writes a commented
    YAML that `manta nightly --config` takes as it is.
    """
    guarded(
        lambda say: tell(_init(corpus, output, id_column, text_column, root), say, as_json),
        as_json=as_json,
        verbose=verbose,
    )


def _init(uri: str, output: Path, id_column: str | None, text_column: str | None, root: str | None) -> Answer:
    from pipeline.flows.night.look import look

    for given in (uri, root or ""):
        refuse_credentials(given)
    if output.exists():
        raise ConfigError(
            str(output), "no such file yet", "one that exists", "name another with --output, or remove it"
        )
    seen = look(validated(CorpusSettings, {"uri": uri}, "CORPUS"), id_column, text_column)
    job = validated(
        Job,
        {
            "corpus": {"uri": uri, "id": seen.id, "text": seen.text, "keep": seen.keep},
            "release": {"root": root or f"out/{_name(uri)}"},
        },
        "manta init",
    )
    files = f"{seen.files:,} {'file' if seen.files == 1 else 'files'}"
    head = _HEAD.format(rows=seen.rows, files=files, columns=_columns(seen), file=output)
    about = _about(seen)
    _write(output, head + (f"# {about}.\n" if about else "") + "\n" + to_yaml(job, only=_WRITTEN))
    facts: dict[str, Any] = {"status": "done", "file": str(output), **vars(seen), "root": job.release.root}
    lines = [
        printable(
            f"id {seen.id}, text {seen.text}, kept {', '.join(seen.keep) or 'nothing'}, "
            f"language {seen.language or 'unknown'}"
        ),
        *([about] if about else []),
        f"next: manta nightly --config {output}",
    ]
    return Answer(facts, "\n".join([f"{output} is written: {files}, columns {_columns(seen)}", *lines]))


def _columns(seen: "CorpusLook") -> str:
    """Names of columns for a comment: on one line, whatever is in them."""
    return printable(", ".join(seen.columns[:_SHOWN])) + (
        f" and {len(seen.columns) - _SHOWN} more" if len(seen.columns) > _SHOWN else ""
    )


def _about(seen: "CorpusLook") -> str:
    """A remark on language or script if the default encoder does not fit it; "" if it does."""
    from pipeline.text.tokens.coverage import script_phrase

    if seen.language not in (None, "en"):
        found = f"The texts seem to be in {seen.language}"
    elif seen.language is None and seen.script is not None and seen.script not in ("latin", "symbols"):
        found = f"Most of them are {script_phrase(seen.script)}"
    else:
        return ""
    return f"{found}; {EncoderSettings().path} knows English: name a multilingual encoder in encoder.path"


def _name(uri: str) -> str:
    """The last part of the corpus's uri that is a name, without its ending."""
    names = [
        part
        for part in PurePosixPath(uri.partition("://")[2] or uri).parts
        if part.strip("./*") and not set("*?[") & set(part)
    ]
    return names[-1].split(".")[0] if names and names[-1].split(".")[0] else "corpus"


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise ConfigError(
            str(file),
            "a file that can be written",
            f"{type(error).__name__}: {error}",
            "name another with --output",
        ) from None


if __name__ == "__main__":
    standalone(init)

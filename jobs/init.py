"""Inspect a corpus and write settings for it.

manta init s3://bucket/docs
python -m jobs.init docs.parquet --output docs.yaml
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.boundary import guarded
from jobs.command import Answer, Json, Verbose, options_command, print_answer, standalone
from pipeline.config import refuse_credentials, to_yaml, validated
from pipeline.errors import ConfigError
from pipeline.log import counted, printable
from pipeline.settings import CorpusSettings, EncoderSettings, Job

if TYPE_CHECKING:
    from pipeline.flows.night.guess_corpus import CorpusGuess

_WRITTEN_SETTINGS = (
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
_MANY_CUT = 0.2  # cut documents into chunks if at least this proportion of them is too long
_MAX_COLUMNS = 30  # names of columns in the comment
_HEADER = """# Written by `manta init`, which read {rows:,} rows of {files} with the columns {columns}.
#
#     manta plan --config {file}          # estimate time and size of a night, without running it
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
            "--output", "-o", metavar="FILE", help="The file to write; an existing file is not overwritten."
        ),
    ] = Path("night.yaml")
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column of the row's id; default: guessed.")
    ] = None
    text_column: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="COLUMN",
            help="Column of the text, or a template like '{title}: {body}'; default: guessed.",
        ),
    ] = None
    root: Annotated[
        str | None,
        typer.Option("--root", metavar="URI", help="Folder or URI for the releases; default: out/NAME."),
    ] = None
    as_json: Json = False
    verbose: Verbose = False


@options_command
def init(options: InitOptions) -> None:
    """Inspect a corpus and write settings for it.

    Reads the first rows of a few files, guesses which columns are the id and the text, and writes a commented
    YAML that `manta nightly --config` takes as it is.
    """
    guarded(
        lambda say: print_answer(_init(options), say, options.as_json),
        as_json=options.as_json,
        verbose=options.verbose,
    )


def _init(options: InitOptions) -> Answer:
    from pipeline.flows.night.guess_corpus import guess_corpus, no_language
    from pipeline.text.sources.listing import local_path

    uri, output = options.corpus, options.output
    root = options.root or f"out/{_corpus_name(uri)}"
    for given in (uri, root):
        refuse_credentials(given)
    if output.exists():
        raise ConfigError(
            str(output),
            "a file that does not exist",
            "an existing file",
            "name another with --output, or remove it",
        )
    corpus = validated(CorpusSettings, {"uri": uri}, "CORPUS")
    found = guess_corpus(corpus, options.id_column, options.text_column)
    chunk = {"by": "sentences"} if _is_cut(found) else {}
    columns_of = {"id": found.id, "text": found.text, "keep": found.keep}
    sections = {
        "corpus": {"uri": uri, **columns_of, "chunk": chunk},
        "release": {"root": local_path(root) or root},  # the night may start in another folder
    }
    job = validated(Job, sections, "manta init")
    files, columns = counted(found.files, "file"), _list_columns(found)
    head = _HEADER.format(rows=found.rows, files=files, columns=columns, file=output)
    notes = [note for note in (_id_note(found), _language_note(found), _length_note(found)) if note]
    notes += map(printable, found.doubts)
    written = (*_WRITTEN_SETTINGS, "corpus.chunk.by") if chunk else _WRITTEN_SETTINGS
    _write(output, head + "".join(f"# {note}.\n" for note in notes) + "\n" + to_yaml(job, only=written))
    lines = [
        f"{output} is written: {files}, columns {columns}",
        printable(
            f"id {found.id}, text {found.text}, kept {', '.join(found.keep) or 'nothing'}, "
            f"language {found.language or no_language()}"
        ),
        *notes,
        f"next: manta nightly --config {output}",
    ]
    facts = {"status": "done", "file": str(output), **vars(found), "root": job.release.root}
    return Answer(facts, "\n".join(lines))


def _list_columns(found: "CorpusGuess") -> str:
    """Return the names of the columns on one line."""
    shown = printable(", ".join(found.columns[:_MAX_COLUMNS]))
    more = len(found.columns) - _MAX_COLUMNS
    return f"{shown} and {more} more" if more > 0 else shown


def _id_note(found: "CorpusGuess") -> str | None:
    """Return a note if rows have no id, or the id of another row, else None."""
    if not found.unusable_ids:
        return None
    rows = f"{found.unusable_ids:,} of the {counted(found.rows, 'row')} that were read"
    return printable(
        f"{rows} have no usable id in the column {found.id}, or the id of an earlier row; a night "
        "quarantines these rows"
    )


def _language_note(found: "CorpusGuess") -> str | None:
    """Return a note if the default encoder does not know the language or script of the texts, else None."""
    from pipeline.text.tokens.coverage import script_phrase

    if found.language not in (None, "en"):
        subject = f"The texts seem to be in {found.language}"
    elif found.language is None and found.script is not None and found.script not in ("latin", "symbols"):
        subject = f"Most texts are {script_phrase(found.script)}"
    else:
        return None
    return (
        f"{subject}; {EncoderSettings().path} knows English only: name a multilingual encoder in encoder.path"
    )


def _is_cut(found: "CorpusGuess") -> bool:
    """Return whether documents are cut into chunks: if the encoder would truncate many of them."""
    return (found.cut or 0) >= _MANY_CUT


def _length_note(found: "CorpusGuess") -> str | None:
    """Return a note if texts are too long for the default encoder, or were not checked, else None."""
    if found.cut is None:
        return f"Lengths of texts were not checked: {EncoderSettings().path} is not installed"
    if not _is_cut(found):
        return None
    return (
        f"{found.cut:.0%} of the texts are longer than {EncoderSettings().path} reads: "
        "corpus.chunk.by cuts them into chunks"
    )


def _corpus_name(uri: str) -> str:
    """Return the last part of a URI that is a name and not a pattern, without its extension."""
    parts = PurePosixPath(uri.partition("://")[2] or uri).parts
    names = [part for part in parts if part.strip("./*") and not set("*?[") & set(part)]
    name = names[-1].split(".")[0] if names else ""
    return name or "corpus"


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

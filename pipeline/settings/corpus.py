"""Settings of the corpus: its files, and the columns that are read."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config import Settings

# Not empty, because an empty path would be the working directory.
Uri = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]


class CorpusSettings(Settings):
    """The files of the corpus, and how their rows are read."""

    uri: Uri = "corpus"
    """a file, a glob, a directory (hive partitions become columns, links are followed), or a file:// or s3://
    URI of one"""
    format: Literal["auto", "parquet", "jsonl"] = "auto"
    """auto chooses by the end of the file name: parquet for .parquet, .parq and .pq; jsonl for .jsonl,
    .ndjson and .json, also with a further .gz"""
    id: str = "id"
    """column of the row's id: string or integer, unique, stored unchanged"""
    text: str = "text"
    """column of the text: string, or binary with UTF-8"""
    keep: tuple[str, ...] = ()
    """further columns to copy to the vectors and to search results"""
    harvest: Literal["docstrings"] | None = None
    """first write a corpus to `uri`. docstrings: the docstrings of the Python packages installed here (id =
    dotted name, text = first paragraph); null: the corpus exists"""
    max_rows: Annotated[int, Field(ge=1)] | None = None
    """largest number of rows to read, in (file name, row) order; the others are counted as skipped"""
    bad_files: Literal["error", "skip"] = "error"
    """error: stop with exit code 3 at a file that is unreadable, lacks a column, or has a column of the wrong
    type; skip: leave such a file out and record it"""
    max_quarantined: Annotated[float, Field(ge=0, le=1)] = 0.5
    """largest proportion of the rows that may be quarantined. The night stops with exit code 3 if reading
    quarantines more, and with exit code 5 if rows with unusable vectors raise the proportion above this"""
    fingerprint: Literal["fast", "full"] = "fast"
    """how to recognize an unchanged file. fast: by its size and its modification time or ETag, so a file that
    was rewritten with the same size and time counts as unchanged; full: by its content, which reads every
    file every night"""

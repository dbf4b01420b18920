"""Settings of the corpus: its files, and the columns that are read."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config import Settings

# "" would be the working directory.
Uri = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]


class CorpusSettings(Settings):
    """Which text, and how a row of it is read."""

    uri: Uri = "corpus"
    """a file, a glob, a directory (hive partitions become columns, links are followed), or a file:// or s3://
    URI of one"""
    format: Literal["auto", "parquet", "jsonl"] = "auto"
    """auto goes by the ending: .parquet; .jsonl, .ndjson or .json, each also with .gz"""
    id: str = "id"
    """column of the row's id: string or integer, unique, kept as it is"""
    text: str = "text"
    """column of the text: string, or binary holding UTF-8"""
    keep: tuple[str, ...] = ()
    """further columns carried to the vectors and to search results"""
    harvest: Literal["docstrings"] | None = None
    """fill `uri` first: docstrings = those of the Python packages installed here (id = dotted name, text =
    first paragraph)"""
    max_rows: Annotated[int, Field(ge=1)] | None = None
    """read at most so many rows, in (file name, row) order; the rest is counted as skipped"""
    bad_files: Literal["error", "skip"] = "error"
    """what an unreadable file, or one with missing or wrongly typed columns, does: stop with exit code 3, or
    be skipped, counted and put on record"""
    max_quarantined: Annotated[float, Field(ge=0, le=1)] = 0.5
    """proportion of the rows that may be quarantined. The night stops with exit code 3 if reading quarantines
    more, and with 5 if the encoder's unusable vectors raise it above that"""
    fingerprint: Literal["fast", "full"] = "fast"
    """how an unchanged file is known: size with modification time or etag, or its whole content, which reads
    every file every night. fast takes a file for unchanged that was rewritten with the same size and time
    stamp"""

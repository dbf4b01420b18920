"""Settings of the corpus: its files, and the columns that are read."""

from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Field, field_validator, model_validator

from pipeline.config import Settings
from pipeline.settings.text_template import parse_template

# Not empty, because an empty path would be the working directory.
Uri = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]


CHUNK_COLUMNS = ("parent", "start", "end")
"""Columns that every chunk has besides those that corpus.keep names."""
SMALLEST_CHUNK = 32
"""Tokens of text that a chunk must have room for: more than any single character has."""


class ChunkSettings(Settings):
    """Rules by which the text of a row, a document, is cut into chunks, each with a vector of its own."""

    by: Literal["tokens", "sentences", "headings"] | None = None
    """null: a row has one vector. Otherwise its text is cut: tokens: at white space, into chunks as long as
    max_tokens allows; sentences: at the ends of sentences, as many in a chunk as fit; headings: before every
    heading of Markdown, and a section that does not fit at the ends of sentences"""
    max_tokens: Annotated[int, Field(ge=SMALLEST_CHUNK + 2)] | None = None
    """largest number of tokens of a chunk, with prompt and special tokens; null: as many as the encoder takes
    (encoder.max_length). A chunk is never truncated"""
    max_characters: Annotated[int, Field(ge=16)] | None = None
    """largest number of characters of a chunk; max_tokens applies besides"""
    overlap: Annotated[int, Field(ge=0)] = 0
    """largest number of tokens that a chunk repeats from the end of the chunk before, at most half of
    max_tokens: whole words, or whole sentences if the chunk before ends with one. Sections of headings do not
    overlap"""

    @model_validator(mode="after")
    def _cuts_with_every_setting(self) -> Self:
        set_here = [name for name in ("max_tokens", "max_characters", "overlap") if getattr(self, name)]
        if self.by is None and set_here:
            raise ValueError(
                f"`by` to be tokens, sentences or headings, as {set_here[0]} has no effect without it"
            )
        if self.max_tokens is not None and 2 * self.overlap > self.max_tokens:
            raise ValueError(
                f"an overlap of at most half of max_tokens, {self.max_tokens // 2}, not {self.overlap}"
            )
        return self


class CorpusSettings(Settings):
    """The files of the corpus, and how their rows are read."""

    uri: Uri = "corpus"
    """a file, a glob, a directory (hive partitions become columns, links are followed), a Delta or Iceberg
    table, or a file:// or s3:// URI of one; iceberg://CATALOG/NAMESPACE.TABLE for a table in a catalog"""
    snapshot: Annotated[int | AwareDatetime | None, Field(union_mode="left_to_right")] = None
    """which snapshot of a table to read: the version of a Delta table, the id of a snapshot of an Iceberg
    table, or a time with its zone; null: the latest"""
    format: Literal["auto", "parquet", "jsonl"] = "auto"
    """auto chooses by the end of the file name: parquet for .parquet, .parq and .pq; jsonl for .jsonl,
    .ndjson and .json, also with a further .gz"""
    id: str = "id"
    """column of the row's id: string or integer, unique, stored unchanged"""
    text: str = "text"
    """column of the text: string, or binary with UTF-8. Or a template over columns of strings and integers,
    such as "{title}: {body}": a column that is null or blank is left out with the text before it; {{ and }}
    are braces"""
    keep: tuple[str, ...] = ()
    """further columns to copy to the vectors and to search results"""
    where: Annotated[str, Field(min_length=1)] | None = None
    """which rows to read: a condition like `lang = 'de' and (price < 10 or price is null)`, in the language
    of `manta search --where`, on any columns of the files. Rows for which it is not true are left out before
    their texts are checked, and counted as filtered; a row on which it fails, because a value has another
    type, is quarantined. null: all rows"""
    exclude: Uri | None = None
    """file of ids whose rows are left out, a path or URI: a text file with one id on each line, or a Parquet
    file with a column id, such as `manta duplicates --drop` writes. They are counted as filtered; ids that no
    row has are counted, too. null: none"""
    chunk: ChunkSettings = ChunkSettings()
    """how long texts are cut into chunks; by default they are not"""
    harvest: Literal["docstrings"] | None = None
    """first write a corpus to `uri`. docstrings: the docstrings of the Python packages installed here (id =
    dotted name, text = first paragraph); null: the corpus exists"""
    max_rows: Annotated[int, Field(ge=1)] | None = None
    """largest number of rows to read, in (file name, row) order; the others are counted as skipped"""
    bad_files: Literal["error", "skip"] = "error"
    """error: stop with exit code 3 at a file that is unreadable, lacks a column, or has a column of the wrong
    type; skip: leave such a file out and record it"""
    max_quarantined: Annotated[float, Field(ge=0, le=1)] = 0.5
    """largest proportion of the rows, without filtered ones, that may be quarantined. The night stops with
    exit code 3 if reading quarantines more, and with exit code 5 if rows with unusable vectors raise the
    proportion above this"""
    fingerprint: Literal["fast", "full"] = "fast"
    """how to recognize an unchanged file. fast: by its size and its modification time or ETag, so a file that
    was rewritten with the same size and time counts as unchanged; full: by its content, which reads every
    file every night"""

    @field_validator("text")
    @classmethod
    def _text_is_a_column_or_a_template(cls, value: str) -> str:
        parse_template(value)
        return value

    @field_validator("snapshot", mode="before")
    @classmethod
    def _snapshot_is_no_count_of_seconds(cls, value: Any) -> Any:
        """Refuse numbers that pydantic would take for seconds since 1970."""
        if isinstance(value, bool | float) or (isinstance(value, int) and value < 0):
            raise ValueError("the number of a version, the id of a snapshot, or a time with its zone")
        return value

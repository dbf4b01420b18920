"""The ids of rows that are left out: those of corpus.exclude, a file of ids, and those of erasures."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import Settings, digest_of
from pipeline.errors import ConfigError, DataError, Defect
from pipeline.settings import CorpusSettings
from pipeline.store.files.disk import describe_missing
from pipeline.store.files.open_store import store_of
from pipeline.store.releases.left_out import LeftOutIds
from pipeline.store.rows.arrays import is_text
from pipeline.text.formats.queries import is_parquet, read_lines
from pipeline.text.normalize import valid_utf8

_OTHER_FORMATS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".gz")


class ExcludedIds(Settings):
    """Ids of rows to leave out."""

    ids: frozenset[str]
    """ids as strings"""

    @property
    def digest(self) -> str:
        """sha256 of the ids; the order and repeated ids of the file do not count."""
        return digest_of(sorted(self.ids))


class ExcludingCorpus(CorpusSettings):
    """Corpus settings with the ids of the file that corpus.exclude names, and with those of erasures."""

    excluded: ExcludedIds | None = None
    """None if no row is left out by its id"""
    left_out: LeftOutIds | None = None
    """ids that erasures leave out for good; None if there are none"""


def with_excluded_ids(corpus: CorpusSettings, left_out: LeftOutIds | None = None) -> CorpusSettings:
    """Return the settings with the ids of corpus.exclude and of erasures, or unchanged if there are none.

    Args:
        left_out: ids that erasures leave out for good.

    Raises:
        ConfigError: there is no such file.
        DataError: the file cannot be read.
    """
    if corpus.exclude is None and left_out is None:
        return corpus
    ids = frozenset(read_ids(corpus.exclude) if corpus.exclude is not None else ())
    return ExcludingCorpus(**dict(corpus), excluded=ExcludedIds(ids=ids) if ids else None, left_out=left_out)


def excluded_ids(corpus: CorpusSettings) -> frozenset[str]:
    """Return the ids of rows to leave out, which `with_excluded_ids` has read."""
    if corpus.exclude is None:
        return frozenset()
    if not isinstance(corpus, ExcludingCorpus):
        raise Defect(
            corpus.uri, "an ExcludingCorpus, for corpus.exclude", type(corpus).__name__, "report this"
        )
    return corpus.excluded.ids if corpus.excluded is not None else frozenset()


def left_out_ids(corpus: CorpusSettings) -> LeftOutIds | None:
    """Return the ids that erasures leave out for good; None if there are none."""
    return corpus.left_out if isinstance(corpus, ExcludingCorpus) else None


def read_ids(file: str, option: str = "corpus.exclude") -> set[str]:
    """Read ids; integers become strings. Blank lines are not ids.

    Args:
        file: path or URI of a Parquet file with a column `id`, or only one column, or of a text file.
        option: name of the setting or option that names the file, for messages.

    Raises:
        ConfigError: there is no such file.
        DataError: the file cannot be read.
    """
    where, expected = f"{option}: {file}", "one id on each line, or Parquet with a column id"
    if file.lower().endswith(_OTHER_FORMATS):
        raise ConfigError(
            where, expected, "a file of another format", "write the ids to a .txt or .parquet file"
        )
    try:
        store, name = store_of(file)
        with store.open(name) as stream:
            if is_parquet(file):
                return set(_read_column(stream, where))
            return {line for line in read_lines(stream, file) if line.strip()}
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        remedy = f"check the path, or leave {option} out"
        raise ConfigError(where, "a file of ids", describe_missing(error), remedy) from None
    except (OSError, pa.ArrowException) as error:
        found = " ".join(str(error).split())
        raise DataError(where, expected, found, "write the file again") from None


def _read_column(stream: pa.NativeFile, where: str) -> Iterator[str]:
    """Yield the values of the column of ids, without nulls. Errors name `where`."""
    reader = pq.ParquetFile(stream)
    schema = reader.schema_arrow
    name = "id" if "id" in schema.names else schema.names[0] if len(schema.names) == 1 else None
    if name is None or not (is_text(schema.field(name).type) or pa.types.is_integer(schema.field(name).type)):
        raise DataError(
            where,
            "a column id of strings or integers",
            ", ".join(f"{field.name} of type {field.type}" for field in schema) or "no columns",
            "rename the column, or write the ids to a text file",
        )
    for batch in reader.iter_batches(columns=[name]):
        values = batch.column(0)
        if is_text(values.type) and not valid_utf8(values).all():
            raise DataError(where, "UTF-8", "other bytes", "write the file again")
        yield from (str(value) for value in values.to_pylist() if value is not None)


def write_ids(file: str, ids: Iterable[str]) -> None:
    """Write ids, sorted, in the format that the name of the file says; replace a file that exists.

    Raises:
        ConfigError: an id cannot be a line of a text file.
    """
    ordered = sorted(ids)
    store, name = store_of(file)
    if is_parquet(file):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": pa.array(ordered, pa.string())}), sink)
        store.write(name, sink.getvalue().to_pybytes())
        return
    if bad := next((each for each in ordered if not each.strip() or each.splitlines() != [each]), None):
        remedy = "name a .parquet file"
        raise ConfigError(file, "ids without line breaks, and not blank", repr(bad[:60]), remedy)
    store.write(name, "".join(f"{each}\n" for each in ordered).encode())

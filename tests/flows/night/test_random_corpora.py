"""Nights over random corpora that change publish what was written, or refuse it with a sentence."""

import datetime
import io
import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, assume, event, example, given, settings
from hypothesis import strategies as st

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.flows.export.export import export
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from pipeline.targets.parquet import ParquetTarget
from pipeline.targets.values import json_rows
from tests.flows.conftest import WORDS, job_arguments, sentences
from tests.models.folder.wordfiles import write_words
from tests.text.ingest.random_values import ZONES, Drawn, draw, in_zone, kinds, meaning, zoned
from tests.text.ingest.test_random_json import is_kept, values

VECTORS = np.ones((1, 8), np.float32)
OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NO_GATES = ("max_deleted", "max_empty_texts", "max_shorter_texts", "max_repeated_texts", "recall_at_10")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random encoder of word vectors."""
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 8)).astype(np.float32)
    file = tmp_path_factory.mktemp("words") / "words.txt.gz"
    write_words(file, WORDS, vectors, "word2vec")
    return file


class Rows:
    """Consecutive rows of a file: ids, texts and a list of values of each kept column."""

    def __init__(self, ids: list[str], texts: list[str], columns: list[Any]) -> None:
        self.ids, self.texts, self.columns = ids, texts, columns


class RandomCorpus(ABC):
    """Files of random rows that change at random. Subclasses know the format."""

    suffix: str
    rng: np.random.Generator
    names: tuple[str, ...]

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.texts = list(sentences(99, seed % 1000))
        self.files: dict[str, tuple[list[Rows], dict[str, Any]]] = {}
        self.made = 0
        folder.mkdir()
        for _ in range(2):
            self.add()

    @abstractmethod
    def draw(self, count: int) -> list[Any]:
        """Draw values of each kept column."""

    @abstractmethod
    def write(self, file: Path, parts: list[Rows], options: dict[str, Any]) -> None:
        """Write a file."""

    @abstractmethod
    def equal_options(self) -> dict[str, Any]:
        """Draw a way of writing in which all rows stay the same."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Draw another way in which a file can be written."""

    def rows(self, ids: list[str]) -> Rows:
        """Draw rows with these ids."""
        return Rows(ids, [str(each) for each in self.rng.choice(self.texts, len(ids))], self.draw(len(ids)))

    def new_rows(self) -> Rows:
        """Draw one to seven rows with new ids."""
        self.made += 1
        return self.rows([f"{self.made}-{row}" for row in range(self.rng.integers(1, 8))])

    def put(self, name: str, parts: list[Rows], options: dict[str, Any]) -> None:
        """Write a file, or write it again."""
        self.files[name] = parts, options
        self.write(self.folder / f"{name}{self.suffix}", parts, options)

    def add(self) -> None:
        """Add a file."""
        self.put(f"file{self.made}", [self.new_rows(), self.new_rows()], {})

    def remove(self) -> None:
        """Remove a file if there are several."""
        if len(self.files) > 1:
            name = self.any_name()
            del self.files[name]
            (self.folder / f"{name}{self.suffix}").unlink()

    def rename(self) -> None:
        """Rename a file."""
        name, self.made = self.any_name(), self.made + 1
        new = f"{'a' if self.rng.random() < 0.5 else 'z'}{self.made}"
        (self.folder / f"{name}{self.suffix}").rename(self.folder / f"{new}{self.suffix}")
        self.files[new] = self.files.pop(name)

    def rewrite(self) -> None:
        """Write the rows of a file in another way."""
        name = self.any_name()
        self.put(name, self.files[name][0], self.options())

    def rewrite_equally(self) -> None:
        """Write all files in other ways in which their rows stay the same."""
        for name, (parts, options) in list(self.files.items()):
            self.put(name, parts, options | self.equal_options())

    def edit(self) -> None:
        """Change, delete, insert or move rows of a file."""
        name = self.any_name()
        parts, options = list(self.files[name][0]), self.files[name][1]
        chosen = int(self.rng.integers(len(parts)))
        match self.rng.integers(4):
            case 0:
                parts[chosen] = self.rows(parts[chosen].ids)
            case 1 if len(parts) > 1:
                del parts[chosen]
            case 2:
                parts.insert(chosen, self.new_rows())
            case _:
                parts.reverse()
        self.put(name, parts, options)

    def change(self) -> None:
        """Make one to three random changes."""
        for _ in range(self.rng.integers(1, 4)):
            changes = [self.add, self.remove, self.rename, self.rewrite, self.edit, self.edit]
            changes[self.rng.integers(len(changes))]()

    def restore(self, files: dict[str, tuple[list[Rows], dict[str, Any]]]) -> None:
        """Replace all files by these."""
        for file in self.folder.iterdir():
            file.unlink()
        self.files = {}
        for name, (parts, options) in files.items():
            self.put(name, parts, options)

    def any_name(self) -> str:
        """Return the name of a file."""
        return sorted(self.files)[self.rng.integers(len(self.files))]


class ParquetCorpus(RandomCorpus):
    """Parquet files of columns of any Arrow type, a twentieth of whose values is invalid if one can be."""

    suffix = ".parquet"

    def __init__(self, folder: Path, seed: int, kept: list[pa.DataType]) -> None:
        self.kinds, self.names = kept, tuple(f"kept{number}" for number in range(len(kept)))
        assume(all(map(is_stored, kept)))
        super().__init__(folder, seed)

    def draw(self, count: int) -> list[Drawn]:
        return [draw(kind, count, self.rng, 0.05) for kind in self.kinds]

    def equal_options(self) -> dict[str, Any]:
        return {"zone": str(self.rng.choice(ZONES))}

    def options(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = [
            {"row_group_size": 3},
            {"compression": "zstd", "use_dictionary": False},
            {"data_page_version": "2.0", "write_page_index": True},
            {"store_schema": False},
            {"wide": True},
        ]
        return choices[self.rng.integers(len(choices))]

    def write(self, file: Path, parts: list[Rows], options: dict[str, Any]) -> None:
        options = dict(options)
        wide, zone = options.pop("wide", False), options.pop("zone", None)
        tables = []
        for part in parts:
            arrays = [in_zone(each.array, zone) if zone else each.array for each in part.columns]
            arrays = [wider(each) if wide else each for each in arrays]
            tables.append(
                pa.table([pa.array(part.ids), pa.array(part.texts), *arrays], ["id", "text", *self.names])
            )
        pq.write_table(pa.concat_tables(tables), file, **options)

    def may_be_refused(self) -> bool:
        """Return whether a file has other types than others or cannot be read, or no row can be published."""
        for file in self.folder.iterdir():
            try:
                pq.read_table(file)
            except (pa.ArrowException, OSError):  # a category that is not valid UTF-8
                return True
        of_types = [options.get("wide") or "store_schema" in options for _, options in self.files.values()]
        return any(of_types) or not self.expected()[0]

    def expected(self) -> tuple[dict[str, list[Any]], int, int]:
        """Return the values of good rows by id, and the numbers of bad rows and of values made null."""
        good, bad, nulled = {}, 0, 0
        for part in (part for parts, _ in self.files.values() for part in parts):
            for row, row_id in enumerate(part.ids):
                faults = [column.faults[row] for column in part.columns]
                if any("utf8" in each for each in faults):
                    bad += 1
                    continue
                nulled += sum(map(bool, faults))
                pairs = zip(part.columns, faults, strict=True)
                good[row_id] = [None if fault else column.values[row] for column, fault in pairs]
        return good, bad, nulled

    def check(self, rows: dict[str, list[pa.Scalar]], counts: dict[str, int]) -> None:
        """Compare the rows of a release, and its counts, with what was written."""
        good, bad, nulled = self.expected()
        assert {row_id: list(map(meaning, row)) for row_id, row in rows.items()} == good
        assert counts.get("quarantined", 0) == bad
        assert counts.get("kept_values_dropped", 0) == nulled


def is_stored(kind: pa.DataType) -> bool:
    """Return whether Parquet files can have columns of a type."""
    column, stream = draw(kind, 9, np.random.default_rng(0), 0).array, io.BytesIO()
    try:
        pq.write_table(pa.table([column], ["kept"]), stream)
        pq.read_table(stream)
    except (pa.ArrowException, OSError):
        return False
    return True


def wider(array: pa.Array) -> pa.Array:
    """Return the same values in a wider type, or in another form, if there is one."""
    types, kind = pa.types, array.type
    if types.is_string(kind) or types.is_binary(kind):
        return array.cast(pa.large_string() if types.is_string(kind) else pa.large_binary())
    if types.is_signed_integer(kind):
        return array.cast(pa.int64())
    if types.is_floating(kind):
        return array.cast(pa.float64())
    if types.is_dictionary(kind):
        return array.dictionary_decode()
    return array


class JsonCorpus(RandomCorpus):
    """JSON lines of two kept columns, whose values are drawn from the halves of a list."""

    suffix = ".jsonl"
    names = ("kept0", "kept1")

    def __init__(self, folder: Path, seed: int, pool: list[Any]) -> None:
        self.pool = pool
        super().__init__(folder, seed)

    def draw(self, count: int) -> list[list[Any]]:
        middle = len(self.pool) // 2
        pools = (self.pool[:middle], self.pool[middle:])
        return [[pool[each] for each in self.rng.integers(len(pool), size=count)] for pool in pools]

    def equal_options(self) -> dict[str, Any]:
        return {"separators": (",", ":")}

    def options(self) -> dict[str, Any]:
        return [{"ensure_ascii": False}, {"sort_keys": True}, {"separators": (",", ":")}][
            self.rng.integers(3)
        ]

    def write(self, file: Path, parts: list[Rows], options: dict[str, Any]) -> None:
        lines = (json.dumps(row, **options) for part in parts for row in self.lines(part))
        file.write_text("".join(f"{line}\n" for line in lines), errors="surrogatepass")

    def lines(self, part: Rows) -> Iterator[dict[str, Any]]:
        """Yield the rows as they are written; values that are null are left out."""
        for row_id, text, *kept in zip(part.ids, part.texts, *part.columns, strict=True):
            pairs = zip(self.names, kept, strict=True)
            yield {"id": row_id, "text": text} | {name: value for name, value in pairs if value is not None}

    def good_lines(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the valid UTF-8 lines of each file: half of a surrogate pair is not, except as an escape."""
        for parts, options in self.files.values():
            lines = [line for part in parts for line in self.lines(part)]
            encoded = [json.dumps(line, **options).encode(errors="replace") for line in lines]
            yield [line for line, content in zip(lines, encoded, strict=True) if b"?" not in content]

    def may_be_refused(self) -> bool:
        """Return whether a file lacks a kept column."""
        names = (set().union(*lines) for lines in self.good_lines())
        return any(not set(self.names) <= of_file for of_file in names)

    def check(self, rows: dict[str, list[pa.Scalar]], counts: dict[str, int]) -> None:
        """Compare the rows of a release, and its counts, with what was written."""
        lines = {line["id"]: line for of_file in self.good_lines() for line in of_file}
        assert rows.keys() == lines.keys()
        count = sum(len(part.ids) for parts, _ in self.files.values() for part in parts)
        assert counts.get("quarantined", 0) == count - len(lines)
        lost = [
            value
            for row_id, stored in rows.items()
            for value, scalar in zip(map(lines[row_id].get, self.names), stored, strict=True)
            if not is_kept(value, scalar.as_py())
        ]
        assert len(lost) == counts.get("kept_values_dropped", 0), lost


def scalars(table: pa.Table, names: tuple[str, ...]) -> dict[str, list[pa.Scalar]]:
    """Return the values of some columns by id."""
    columns = (list(table[name]) for name in names)
    return dict(zip(table["id"].to_pylist(), map(list, zip(*columns, strict=True)), strict=True))


def literal(kind: pa.DataType, value: Any) -> str | None:
    """Return a value, as `meaning` gives it, as a literal of a filter; None if there is none."""
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return "'" + value.decode().replace("'", "''") + "'"
    if types.is_boolean(kind):
        return str(value).lower()
    if types.is_integer(kind):
        return str(value)
    if types.is_floating(kind):
        return repr(value) if value != "nan" and math.isfinite(value) else None
    if types.is_decimal(kind):
        digits = str(abs(value) * 10**kind.scale).zfill(kind.scale + 1)
        point = len(digits) - kind.scale
        return f"{'-' * (value < 0)}{digits[:point]}.{digits[point:]}"
    if not types.is_temporal(kind) or types.is_duration(kind):
        return None
    try:
        at = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=value // 10**9)
    except OverflowError:
        return None
    if types.is_date(kind):
        return f"'{at.date()}'"
    fraction = f"{value % 10**9:09}"[: {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]]
    return f"'{at.time() if types.is_time(kind) else at}{'.' * bool(fraction)}{fraction}'"


def conditions(
    name: str, kind: pa.DataType, found: list[Any], rng: np.random.Generator
) -> Iterator[tuple[str, Callable[[Any], bool | None]]]:
    """Yield a filter of each form on a column, and what it says of a value that is not null."""
    number = [math.nan if value == "nan" else value for value in found if value is not None]
    pairs = [(text, value) for value in number if (text := literal(kind, value if value == value else "nan"))]
    chosen = [pairs[each] for each in rng.integers(len(pairs), size=2)] if pairs else []
    if pa.types.is_boolean(kind):
        yield name, lambda value: value
        yield f"not {name}", lambda value: not value
    for text, value in chosen:
        signs = ["=", "!="] if pa.types.is_boolean(kind) else sorted(OPERATORS)
        sign = str(rng.choice(signs))
        yield f"{name} {sign} {text}", lambda each, compare=OPERATORS[sign], value=value: compare(each, value)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            start = value.decode()[:2]
            yield f"{name} like '{start}%'", lambda each, start=start: each.startswith(start.encode())
    if chosen:
        listed = [value for _, value in chosen]
        values_of = ", ".join(text for text, _ in chosen)
        yield f"{name} in ({values_of})", lambda each: each in listed
        yield f"not {name} not in ({values_of})", lambda each: each in listed


def check_filters(release: OpenRelease, rows: dict[str, list[pa.Scalar]], corpus: RandomCorpus) -> None:
    """Search with filters, and compare the ids with those for which the filter is true in Python."""

    def ids(where: str) -> set[str]:
        return set(release.search(VECTORS, k=len(rows) + 3, where=where)["id"].to_pylist())

    for position, name in enumerate(corpus.names):
        column = {row_id: row[position] for row_id, row in rows.items()}
        kind = next(iter(column.values())).type
        known = {row_id: meaning(value) for row_id, value in column.items()}
        nulls = {row_id for row_id, value in known.items() if value is None}
        assert (ids(f"{name} is null"), ids(f"{name} is not null")) == (nulls, known.keys() - nulls)
        first, where = next(iter(known)), ""
        for where, is_true in conditions(name, kind, list(known.values()), corpus.rng):
            numbers = {key: math.nan if value == "nan" else value for key, value in known.items()}
            expected = {key for key, value in numbers.items() if value is not None and is_true(value)}
            assert ids(where) == expected, where
        if where:
            assert ids(f"{where} or id = '{first}'") == expected | {first}, where
            assert ids(f"not ({where})") == known.keys() - nulls - expected, where
        if pa.types.is_nested(kind) or pa.types.is_duration(kind):
            with pytest.raises(ConfigError, match="a column of numbers, strings, booleans, dates or times"):
                ids(f"{name} = 1")


def exported(root: Path, releases: Releases) -> pa.Table:
    """Export the changes since the last night, and return the rows that all change sets together give."""
    target = ParquetTarget(str(root.parent), "changes")
    try:
        export(releases, None, target, Stages())
    except DataError as error:  # the types of the columns changed
        if "--replace" not in error.remedy:
            raise
        export(releases, None, target, Stages(), replace=True)
    rows: dict[str, pa.Table] = {}
    for changes in target.change_sets():
        if changes.is_whole:
            rows = {}
        for file in changes.deletes:
            for row_id in pq.read_table(root.parent / file.path)["id"].to_pylist():
                rows.pop(row_id, None)
        for file in changes.upserts:
            table = pq.read_table(root.parent / file.path)
            rows |= {row_id: table.slice(row, 1) for row, row_id in enumerate(table["id"].to_pylist())}
    return pa.concat_tables(rows.values(), promote_options="permissive")


def job_of(folder: Path, words: Path, names: tuple[str, ...]) -> Job:
    """Return a job with units of five rows and without gates."""
    arguments = [
        *job_arguments(folder, words),
        f"corpus.keep=[{', '.join(names)}]",
        "corpus.max_quarantined=1",
        "encode.unit_rows=5",
        "whiten.mode=off",
        "index.kind=flat",
        *(f"gates.{name}=" for name in NO_GATES),
    ]
    return load_settings(Job, None, tuple(arguments))


def run_nights(folder: Path, words: Path, child: LocalWorkers, corpus: Any, nights: int) -> None:
    """Run nights over the corpus, and check each release.

    Before the second night all files are written in other ways, and before each later one the corpus changes.
    """
    job, root = job_of(folder, words, corpus.names), folder / "releases"
    releases, published = Releases(open_store(root)), None
    for night in range(nights):
        if night:
            corpus.rewrite_equally() if night == 1 else corpus.change()
        try:
            with connect(ClusterSettings(), Stages(), local=child):
                outcome = nightly(job, Stages())
        except (ConfigError, DataError) as error:
            event(f"refused: {error.expected[:20]}")
            if not corpus.may_be_refused():
                raise
            if published is None:
                return
            corpus.restore(published)
            continue
        status, counts = outcome.status, outcome.facts["counts"]
        assert status in ("published", "unchanged")
        published = dict(corpus.files)
        release = open_release(root, verify=True)
        if night == 1 and status == "published":  # zones are part of the columns' types
            assert not any(release.manifest.counts[name] for name in ("new", "changed", "deleted"))
        found = release.search(VECTORS, k=999)
        json.dumps(list(json_rows(found)), allow_nan=False)
        for kind in found.schema.types:
            if pa.types.is_timestamp(kind):
                pa.scalar(0, kind).as_py()  # raises if Python does not know the zone
        rows = scalars(found, corpus.names)
        corpus.check(rows, counts)
        corpus.check(scalars(exported(root, releases), corpus.names), counts)
        check_filters(release, rows, corpus)


few = settings(
    max_examples=max(2, settings.default.max_examples // 15),
    phases=(Phase.explicit, Phase.generate),  # nights take too long to shrink a corpus
)
kept_types = st.builds(lambda time, others: [time, *others], zoned, st.lists(kinds, min_size=1, max_size=5))
EVERY_FORM = [
    pa.list_(pa.dictionary(pa.int8(), pa.string())),
    pa.struct([("a", pa.string_view()), ("b", pa.list_(pa.uuid()))]),
    pa.time64("us"),
    pa.decimal128(5, 2),
    pa.timestamp("us", "Local"),
    pa.json_(),
    pa.string(),
    pa.float32(),
    pa.bool_(),
]


@pytest.mark.hypothesis
@few
@example(kept=EVERY_FORM, seed=5)
@given(kept=kept_types, seed=st.integers(0, 2**32))
def test_releases_hold_values_of_any_type(tmp_path_factory, child: LocalWorkers, words, kept, seed):
    """Nights over Parquet files of any types, whose rows, names, types and ways of writing change."""
    folder = tmp_path_factory.mktemp("random")
    run_nights(folder, words, child, ParquetCorpus(folder / "corpus", seed, kept), 4)


@pytest.mark.hypothesis
@few
@example(pool=[True, 1, [True], "yes", {"\ud800": 1}, 2.5, {}, {}, {"a": {}}, {"a": None}, [{}], {}], seed=1)
@given(pool=st.lists(values, min_size=2, max_size=12), seed=st.integers(0, 2**32))
def test_releases_hold_json_of_any_shape(tmp_path_factory, child: LocalWorkers, words, pool, seed):
    folder = tmp_path_factory.mktemp("random")
    run_nights(folder, words, child, JsonCorpus(folder / "corpus", seed, pool), 4)


def test_addresses_of_rows_that_a_night_only_deleted_are_not_used_again(tmp_path, child: LocalWorkers, words):
    """All rows of the last unit are deleted, and the next night has a new unit."""
    job, root = job_of(tmp_path, words, ("size",)), tmp_path / "releases"
    files = {"a": range(5), "b": range(5, 10), "c": range(10, 15)}
    (tmp_path / "corpus").mkdir()
    for names in ("ab", "a", "ac"):
        for name, rows in files.items():
            file = tmp_path / "corpus" / f"{name}.parquet"
            file.unlink(missing_ok=True)
            if name in names:
                table = {
                    "id": rows,
                    "text": sentences(15, 0)[rows.start : rows.stop],
                    "size": [row % 2 for row in rows],
                }
                pq.write_table(pa.table(table), file)
        with connect(ClusterSettings(), Stages(), local=child):
            nightly(job, Stages())
        release = open_release(root, verify=True)
        for where in ("size = 0", "size = 1", "id >= 0"):
            found = sorted(release.search(VECTORS, k=20, where=where)["id"].to_pylist())
            expected = [row for name in names for row in files[name]]
            assert found == [row for row in expected if where == "id >= 0" or f"size = {row % 2}" == where]
    ordinals = [[unit.ordinal for unit in release.releases.get(number).units] for number in (1, 2, 3)]
    assert ordinals == [[0, 1], [0], [0, 2]]

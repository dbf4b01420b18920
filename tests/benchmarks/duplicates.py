"""Measure the search for near-duplicates in a release of generated rows, and compare it with planted groups.

    python -m tests.benchmarks.duplicates --rows 1000000

A row is 28 to 40 random words; the encoder averages random word vectors of 64 dimensions. One row in fifty
is a copy of one of the first rows: in another order of the words, which has the same vector, or with one to
three other words. The groups that these rows form at the threshold follow from the word vectors alone; all
other pairs of rows are far apart.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.growth import Cost, night, run_command
from tests.benchmarks.machine import machine, print_table

_WORDS, _DIM = 5_000, 64
_FILE_ROWS = 100_000
_COPIED = 0.02  # proportion of rows that are copies
_ORIGINALS = 0.004  # proportion of rows that are copied, some of them several times
_THRESHOLD = 0.95
_UNCLEAR = 1e-5  # a cosine that is this near the threshold may fall on either side


def word_vectors() -> np.ndarray:
    """Return the vectors (words, d) that the file of the encoder has."""
    return np.random.default_rng(1).normal(size=(_WORDS, _DIM)).round(4)


def write_words(file: Path) -> None:
    """Write the word vectors in the format of word2vec."""
    rows = (f"w{number} {' '.join(map(str, row))}" for number, row in enumerate(word_vectors().tolist()))
    file.write_text("\n".join([f"{_WORDS} {_DIM}", *rows, ""]))


class Rows:
    """The made-up rows as numbers of words, drawn again in each call."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.originals = max(1, round(_ORIGINALS * count))
        self._first = [self._draw(np.random.default_rng([2, row])) for row in range(self.originals)]

    def texts(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yield the words of rows `start` to `stop`."""
        for row in range(start, stop):
            rng = np.random.default_rng([2, row])
            if row < self.originals:
                yield self._first[row]
            elif self.original_of(row) is None:
                yield self._draw(rng)
            else:
                yield self.copy(row)

    def original_of(self, row: int) -> int | None:
        """Return the row that a row is a copy of; None if it is no copy."""
        rng = np.random.default_rng([3, row])
        if row < self.originals or rng.random() >= _COPIED:
            return None
        return int(rng.integers(self.originals))

    def copy(self, row: int) -> np.ndarray:
        """Return the words of a copy: the original's in another order, or with one to three others."""
        original = self.original_of(row)
        assert original is not None
        rng = np.random.default_rng([4, row])
        words = rng.permutation(self._first[original])
        others = int(rng.integers(4))
        words[:others] = rng.integers(0, _WORDS, others)
        return words

    @staticmethod
    def _draw(rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, _WORDS, rng.integers(28, 41))


def write_corpus(folder: Path, rows: Rows) -> None:
    """Write ids and texts in files of 100,000 rows."""
    folder.mkdir(parents=True)
    names = np.array([f"w{number}" for number in range(_WORDS)])
    for number, start in enumerate(range(0, rows.count, _FILE_ROWS)):
        stop = min(rows.count, start + _FILE_ROWS)
        texts = [" ".join(names[words]) for words in rows.texts(start, stop)]
        table = pa.table({"id": np.arange(start, stop), "text": texts})
        pq.write_table(table, folder / f"part-{number:05d}.parquet")


def planted_groups(rows: Rows) -> tuple[set[frozenset[int]], int]:
    """Return the groups of rows at the threshold, and the number of families that are too close to it.

    A family is an original with its copies; no row is near a row of another family.
    """
    families: dict[int, list[int]] = {}
    for row in range(rows.originals, rows.count):
        if (original := rows.original_of(row)) is not None:
            families.setdefault(original, [original]).append(row)
    vectors, groups, unclear = word_vectors(), set[frozenset[int]](), 0
    for original, family in families.items():
        words = [next(rows.texts(original, original + 1)), *map(rows.copy, family[1:])]
        means = np.stack([vectors[each].mean(axis=0) for each in words])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        cosines = means @ means.T
        unclear += bool((abs(cosines - _THRESHOLD) < _UNCLEAR).any())
        groups |= {frozenset(family[row] for row in each) for each in _components(cosines >= _THRESHOLD)}
    return groups, unclear


def _components(is_near: np.ndarray) -> list[list[int]]:
    """Return the groups of at least two rows that are connected, by spreading from each row."""
    found, remaining = [], set(range(len(is_near)))
    while remaining:
        group, waiting = [], [remaining.pop()]
        while waiting:
            group.append(waiting.pop())
            near = [row for row in remaining if is_near[group[-1], row]]
            remaining.difference_update(near)
            waiting.extend(near)
        if len(group) > 1:
            found.append(group)
    return found


def found_groups(file: Path) -> set[frozenset[int]]:
    """Return the groups of rows in the Parquet file of the command."""
    table = pq.read_table(file, columns=["group", "id"])
    groups, ids = table["group"].to_numpy(), table["id"].to_numpy()
    order = np.argsort(groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    return {frozenset(each.tolist()) for each in np.split(ids[order], cuts)}


def measure(count: int, arguments: Sequence[str]) -> list[str]:
    """Publish a release, search it for near-duplicates, and return a line of the table."""
    rows = Rows(count)
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as folder:
        top = Path(folder)
        write_words(top / "words.vec")
        write_corpus(top / "corpus", rows)
        answer, _ = night(
            [
                f"corpus.uri={top}/corpus",
                f"encoder.path={top}/words.vec",
                f"release.root={top}/releases",
                "whiten.mode=off",
                "gates.recall_at_10=0.5",
                *arguments,
            ]
        )
        command = ["jobs.duplicates", f"{top}/releases", "--threshold", str(_THRESHOLD)]
        found, stages = run_command(command, top / "releases")
        groups = found_groups(Path(found["file"].removeprefix("file://")))
    return [f"{count:,}", _index(answer), *_costs(count, stages), *_agreement(groups, *planted_groups(rows))]


def _index(answer: dict[str, Any]) -> str:
    recall = answer["gates"]["recall_at_10"]["value"]
    return f"{answer['index']['factory']}, recall@10 {recall:.3f}"


def _costs(count: int, stages: dict[str, Cost]) -> list[str]:
    """Return rows per CPU second, CPU seconds, seconds, and the peaks of memory and scratch."""
    costs = stages.values()
    cpu_s = sum(cost.cpu_s for cost in costs)
    return [
        f"{count / cpu_s:,.0f}",
        f"{cpu_s:,.0f}",
        f"{sum(cost.wall_s for cost in costs):,.0f}",
        f"{max(cost.driver_mb for cost in costs):,.0f}",
        f"{max(cost.scratch_mb for cost in costs):,.0f}",
    ]


def _agreement(groups: set[frozenset[int]], planted: set[frozenset[int]], unclear: int) -> list[str]:
    """Return the numbers of planted groups, of those that were found, and of other found groups."""
    return [f"{len(planted):,}", f"{len(groups & planted):,}", f"{len(groups - planted):,}", f"{unclear:,}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("settings", nargs="*", help="further settings of the night, such as index.kind=flat")
    given = parser.parse_args()
    print_table(
        f"Near-duplicates with a cosine of at least {_THRESHOLD}; {machine()}",
        [measure(count, given.settings) for count in given.rows],
        (
            "rows",
            "index",
            "rows per CPU second",
            "CPU s",
            "seconds",
            "private MB",
            "scratch MB",
            "planted groups",
            "found exactly",
            "differing groups",
            "near the threshold",
        ),
    )

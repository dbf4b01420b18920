"""Triples from natural-language inference: a premise, a hypothesis that it entails, and one that it
contradicts.

Used as anchor, positive and hard negative by supervised SimCSE (Gao et al. 2021).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, DataError
from pipeline.store.base import Store
from pipeline.text.corpus.normalize import blake2b_digests
from pipeline.text.rows.pairs import TrainingRows

_ROWS = 8_192  # of a row group: small, because training shuffles whole row groups
SCHEMA = pa.schema([("anchor", pa.string()), ("positive", pa.string()), ("negative", pa.string())])


@dataclass
class _HalfTriples:
    """Premises that have one half of a triple, by digest; None as soon as the triple is complete.

    About 200 bytes for each premise, and its hypothesis until the triple is complete.
    """

    entailed: dict[bytes, str | None] = field(default_factory=dict)
    contradicted: dict[bytes, str | None] = field(default_factory=dict)

    def add(self, key: bytes, hypothesis: str, entails: bool) -> tuple[str, str] | None:
        """Add a hypothesis.

        Returns:
            (positive, negative) if this is the premise's first hypothesis of its kind and the other kind came
            before; else None.
        """
        own, other = (self.entailed, self.contradicted) if entails else (self.contradicted, self.entailed)
        if key in own:
            return None
        own[key] = hypothesis
        partner = other.get(key)
        if partner is None:
            return None
        own[key] = other[key] = None
        return (hypothesis, partner) if entails else (partner, hypothesis)


def write_triples(pairs: TrainingRows, store: Store, path: str) -> int:
    """Write one triple for each premise that has both kinds of hypothesis, with the first of each kind.

    Args:
        pairs: rows with premise, hypothesis, label.
        store: the store to write to.
        path: the Parquet file, with the columns anchor, positive, negative. Rows are in the order in which
            the triples become complete.

    Returns:
        The number of triples.

    Raises:
        ConfigError: the labels lack entailment or contradiction.
        DataError: no premise has both kinds of hypothesis.
    """
    names = pairs.settings.values.labels
    if not {"entailment", "contradiction"} <= set(names):
        expected = "entailment and contradiction among them"
        raise ConfigError(f"{pairs.name}: labels", expected, ", ".join(names), "set `labels`")
    with store.scratch() as scratch:
        file = scratch / "triples.parquet"
        count = _write(triples(pairs), file)
        if not count:
            expected = "a premise with an entailed and a contradicting hypothesis"
            remedy = "give files that have such premises"
            raise DataError(pairs.name, expected, f"none in {len(pairs):,} rows", remedy)
        store.put(file, path)
    return count


def triples(pairs: TrainingRows) -> Iterator[tuple[str, str, str]]:
    """Yield (anchor, positive, negative) of each triple."""
    names, halves = pairs.settings.values.labels, _HalfTriples()
    entails = {names.index("entailment"): True, names.index("contradiction"): False}
    for table in pairs.read(pairs.spans()):
        keys = blake2b_digests(table["premise"].combine_chunks(), 16).to_pylist()
        columns = (table[role].to_pylist() for role in ("premise", "hypothesis", "label"))
        for key, premise, hypothesis, label in zip(keys, *columns, strict=True):
            if label in entails and (found := halves.add(key, hypothesis, entails[label])):
                yield premise, *found


def _write(rows: Iterator[tuple[str, str, str]], file: Path) -> int:
    count, held = 0, []
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for row in rows:
            held.append(row)
            count += 1
            if len(held) == _ROWS:
                writer.write_table(_to_table(held))
                held.clear()
        if held:
            writer.write_table(_to_table(held))
    return count


def _to_table(rows: list[tuple[str, str, str]]) -> pa.Table:
    return pa.table([pa.array(column, pa.string()) for column in zip(*rows, strict=True)], schema=SCHEMA)

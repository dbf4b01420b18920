"""Triples from natural-language inference: a premise, a hypothesis that it entails and one that it contradicts (supervised SimCSE, Gao et al. 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, DataError
from pipeline.store.base import Store
from pipeline.text.corpus.normalize import digests
from pipeline.text.rows.pairs import Pairs

_ROWS = 8_192  # of a row group: small ones, since the order of training shuffles whole row groups
SCHEMA = pa.schema([("anchor", pa.string()), ("positive", pa.string()), ("negative", pa.string())])


@dataclass
class _Waiting:
    """Premises that have one half of a triple, by digest; None: those whose triple is made. About 200 bytes for each premise, and its hypothesis while it waits."""

    entailed: dict[bytes, str | None] = field(default_factory=dict)
    contradicted: dict[bytes, str | None] = field(default_factory=dict)

    def meet(self, key: bytes, hypothesis: str, entails: bool) -> tuple[str, str] | None:
        """Positive and negative, when this hypothesis is the first of its kind and the other kind has come before."""
        own, other = (self.entailed, self.contradicted) if entails else (self.contradicted, self.entailed)
        if key in own:
            return None
        own[key] = hypothesis
        partner = other.get(key)
        if partner is None:
            return None
        own[key] = other[key] = None
        return (hypothesis, partner) if entails else (partner, hypothesis)


def write_triples(pairs: Pairs, store: Store, path: str) -> int:
    """How many triples were written to the Parquet file `path` (anchor, positive, negative): one for each premise that has both, with the first of either, in the order
    in which they become whole. pairs: with premise, hypothesis, label.

    ConfigError for labels that are not called entailment and contradiction, DataError where no premise has both.
    """
    names = pairs.settings.values.labels
    if not {"entailment", "contradiction"} <= set(names):
        raise ConfigError(
            f"{pairs.name}: labels",
            "entailment and contradiction among them",
            ", ".join(names),
            "set `labels`",
        )
    with store.scratch() as place:
        file = place / "triples.parquet"
        count = _write(triples(pairs), file)
        if not count:
            raise DataError(
                pairs.name,
                "a premise with an entailed and a contradicting hypothesis",
                f"none in {len(pairs):,} rows",
                "give files that have such premises",
            )
        store.put(file, path)
    return count


def triples(pairs: Pairs) -> Iterator[tuple[str, str, str]]:
    """Anchor, positive, negative of each."""
    names, waiting = pairs.settings.values.labels, _Waiting()
    kinds = {names.index("entailment"): True, names.index("contradiction"): False}
    for table in pairs.read(pairs.spans()):
        keys = digests(table["premise"].combine_chunks(), 16).to_pylist()
        columns = (table[role].to_pylist() for role in ("premise", "hypothesis", "label"))
        for key, premise, hypothesis, label in zip(keys, *columns, strict=True):
            if label in kinds and (found := waiting.meet(key, hypothesis, kinds[label])):
                yield premise, *found


def _write(rows: Iterator[tuple[str, str, str]], file: Path) -> int:
    count, held = 0, []
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for row in rows:
            held.append(row)
            count += 1
            if len(held) == _ROWS:
                writer.write_table(_table(held))
                held.clear()
        if held:
            writer.write_table(_table(held))
    return count


def _table(rows: list[tuple[str, str, str]]) -> pa.Table:
    return pa.table([pa.array(column, pa.string()) for column in zip(*rows, strict=True)], schema=SCHEMA)

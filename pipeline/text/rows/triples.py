"""Triples from natural-language inference: a premise with an entailed and a contradicting hypothesis.

Used as anchor, positive and hard negative by supervised SimCSE (Gao et al. 2021).
"""

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, DataError
from pipeline.store.base import Store
from pipeline.text.corpus.normalize import blake2b_digests
from pipeline.text.rows.pairs import TrainingRows

_ROWS = 8_192  # of a row group: small, because training shuffles whole row groups
_KINDS = ("entailment", "contradiction")
SCHEMA = pa.schema([("anchor", pa.string()), ("positive", pa.string()), ("negative", pa.string())])


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
    if not set(_KINDS) <= set(names):
        raise ConfigError(
            f"{pairs.name}: labels",
            "entailment and contradiction among them",
            ", ".join(names),
            "set `labels`",
        )
    with store.scratch() as scratch:
        file = scratch / "triples.parquet"
        count = 0
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            found = triples(pairs)
            while rows := list(islice(found, _ROWS)):
                columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                writer.write_table(pa.table(columns, schema=SCHEMA))
                count += len(rows)
        if not count:
            raise DataError(
                pairs.name,
                "a premise with an entailed and a contradicting hypothesis",
                f"none in {len(pairs):,} rows",
                "give files that have such premises",
            )
        store.put(file, path)
    return count


def triples(pairs: TrainingRows) -> Iterator[tuple[str, str, str]]:
    """Yield (anchor, positive, negative) of each triple, as soon as a premise has both kinds of hypothesis.

    Holds about 200 bytes for each premise, and its hypothesis until the triple is complete.
    """
    names = pairs.settings.values.labels
    halves: dict[int, dict[bytes, str | None]] = {names.index(kind): {} for kind in _KINDS}
    positive, negative = halves
    for table in pairs.read(pairs.spans()):
        keys = blake2b_digests(table["premise"].combine_chunks(), 16).to_pylist()
        columns = (table[role].to_pylist() for role in ("premise", "hypothesis", "label"))
        for key, premise, hypothesis, label in zip(keys, *columns, strict=True):
            if label not in halves or key in halves[label]:
                continue
            halves[label][key] = hypothesis
            entailed, contradicted = halves[positive].get(key), halves[negative].get(key)
            if entailed is not None and contradicted is not None:
                yield premise, entailed, contradicted
                halves[positive][key] = halves[negative][key] = None

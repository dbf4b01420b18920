"""Make triples from natural-language inference: a premise with an entailed and a contradicting hypothesis.

Supervised SimCSE (Gao et al. 2021) trains on them as anchor, positive and hard negative.
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
_SCHEMA = pa.schema([("anchor", pa.string()), ("positive", pa.string()), ("negative", pa.string())])


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
            "labels that include entailment and contradiction",
            ", ".join(names),
            "set `labels`",
        )
    with store.scratch() as scratch:
        file = scratch / "triples.parquet"
        count = 0
        with pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
            remaining = triples(pairs)
            while rows := list(islice(remaining, _ROWS)):
                columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                writer.write_table(pa.table(columns, schema=_SCHEMA))
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

    Each premise takes about 200 bytes of memory, and its hypothesis until the triple is complete.
    """
    names = pairs.settings.values.labels
    # Label -> digest of the premise -> its first hypothesis; None once the triple is complete.
    hypotheses: dict[int, dict[bytes, str | None]] = {names.index(kind): {} for kind in _KINDS}
    positive, negative = hypotheses.values()
    for table in pairs.read(pairs.spans()):
        keys = blake2b_digests(table["premise"].combine_chunks(), 16).to_pylist()
        columns = (table[role].to_pylist() for role in ("premise", "hypothesis", "label"))
        for key, premise, hypothesis, label in zip(keys, *columns, strict=True):
            if label not in hypotheses or key in hypotheses[label]:
                continue
            hypotheses[label][key] = hypothesis
            entailed, contradicted = positive.get(key), negative.get(key)
            if entailed is not None and contradicted is not None:
                yield premise, entailed, contradicted
                positive[key] = negative[key] = None

"""From Parquet to Parquet: the task that encodes units of a corpus in a night, in this process."""

import os
import time
from collections.abc import Iterator
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cores import usable_cores
from pipeline.flows.encode.unit import EncodeUnit
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import CorpusUnit
from pipeline.store.records.write_once import store_table_by_content
from pipeline.store.rows.schema import corpus_schema, vector_matrix
from tests.gpu.scale import PartTable, Scale, bert, texts_of

UNITS = 3
CHECKED_ROWS = 50
LEAST_COSINE = 0.999


def files(scale: Scale) -> PartTable:
    """Encode units of a corpus, with all that is written for each, and check some of the vectors."""
    os.environ["RAYON_NUM_THREADS"] = str(usable_cores())  # of tokenizers; without Ray a worker takes one
    settings = EncoderSettings(path=str(bert(scale)), pooling="mean")
    store, rows = open_store(scale.folder / "store"), scale.choose(60, 32_768)
    units = [write_unit(store, number, texts_of(rows, 4, 60, seed=number)) for number in range(UNITS)]
    dtype = "float32" if scale.small else "bfloat16"
    encode = EncodeSettings.model_validate({"dtype": dtype, "device": scale.device})
    exact = load_encoder(settings, EncodeSettings(), scale.device)
    work = EncodeUnit(store, settings, encode, exact.space_id, "id").start()
    cells, problems = [], []
    for unit in units:
        start = time.perf_counter()
        record, stats = work(unit)
        taken = time.perf_counter() - start
        parts = (stats.waiting_s, stats.forward_s, stats.store_s)
        cells.append(
            [
                str(unit.ordinal),
                f"{record.rows:,}",
                f"{record.rows / taken:,.0f}",
                f"{stats.tokens / taken:,.0f}",
                *(f"{part / taken:.0%}" for part in parts),
            ]
        )
        problems += _problems(store, unit, record.path, exact.encode(_texts(store, unit)[:CHECKED_ROWS]))
    header = ("unit", "rows", "rows/s", "tokens/s", "waiting for tokens", "forward pass", "storing")
    title = f"Units in {dtype}, {usable_cores()} threads of the tokenizer; the first one includes compilation"
    return PartTable(title, header, cells, problems)


def write_unit(store: Store, ordinal: int, texts: list[str]) -> CorpusUnit:
    """Write a unit of a corpus with these texts."""
    columns = [
        pa.array([f"{ordinal}-{row}" for row in range(len(texts))]),
        pa.array(texts, pa.large_string()),
        pa.array([sha256(text.encode()).digest()[:16] for text in texts], pa.binary(16)),
        pa.array(["file"] * len(texts)),
        pa.array(range(len(texts)), pa.int64()),
    ]
    table = pa.Table.from_arrays(columns, schema=corpus_schema(pa.string()))
    file = store_table_by_content(store, table, f"units/corpus/{ordinal}")
    return CorpusUnit(name=str(ordinal), ordinal=ordinal, **dict(file))


def _texts(store: Store, unit: CorpusUnit) -> list[str]:
    texts: list[str] = pq.read_table(unit.file.open(store), columns=["text"])["text"].to_pylist()
    return texts


def _problems(store: Store, unit: CorpusUnit, path: str, exact: np.ndarray) -> Iterator[str]:
    """Compare the ids with those of the corpus, and the first vectors with float32."""
    table = pq.read_table(store.open(path))
    if table["id"].to_pylist() != [f"{unit.ordinal}-{row}" for row in range(unit.rows)]:
        yield f"unit {unit.ordinal} has other ids than the corpus"
    vectors = vector_matrix(table["vector"])[: len(exact)].astype(np.float64)
    products = (vectors * exact).sum(axis=1)
    cosines = products / np.linalg.norm(vectors, axis=1) / np.linalg.norm(exact, axis=1)
    if not cosines.min() >= LEAST_COSINE:
        yield f"unit {unit.ordinal}: cosine {cosines.min():.5f} with float32, below {LEAST_COSINE}"

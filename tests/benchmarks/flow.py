"""Train BERT-flow on real vectors, and measure likelihood, inverse error, time, and STS-B before and after.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.flow --captions 10000 --epochs 1

The vectors are unnormalised vectors of the packaged all-MiniLM-L6-v2 with two poolings. A flow is fitted once
on all sentences of STS-B, without the scores, and once on captions. The likelihood is measured on held-out
rows of the same set.
"""

import argparse
import os
import tempfile
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.rows import LiveRows
from pipeline.flows.transform.train_flow import FlowTraining, TrainFlow
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, FlowSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.rows.schema import vector_column, vectors_schema, writer_options
from pipeline.transforms.compare import DevPairs
from pipeline.transforms.flow import Flow
from tests.benchmarks.machine import machine, print_table

DIM = 384
HEADER = (
    "pooling",
    "fitted on",
    "rows",
    "steps",
    "bits/dim at start",
    "bits/dim trained",
    "bits/dim held out",
    "inverse error",
    "s",
    "dev raw",
    "dev at start",
    "dev best (step)",
    "dev end",
)


def sts(split: str) -> pa.Table:
    """Read a split of STS-B."""
    return pq.read_table(Path(os.environ["MANTA_EVAL_DATA"]) / "sts" / f"STSB-{split}.parquet")


def sentences(count: int) -> dict[str, list[str]]:
    """Read the sentences to fit on: STS-B, and `count` captions spread over all of them."""
    of_sts = [
        text
        for split in ("train", "dev", "test")
        for column in ("sentence1", "sentence2")
        for text in sts(split)[column].to_pylist()
    ]
    captions = pq.read_table(Path(os.environ["MANTA_EVAL_DATA"]) / "captions" / "flickr30k_captions.parquet")[
        "text"
    ].to_pylist()
    return {
        "STS-B": list(dict.fromkeys(of_sts)),
        "captions": captions[:: max(1, len(captions) // count)][:count],
    }


def write_unit(root: Path, x: np.ndarray) -> tuple[LiveRows, tuple[VectorUnit, ...]]:
    """Write x (n, d) as one unit of vectors."""
    schema = vectors_schema(pa.field("id", pa.int64()), (), x.shape[1], "a space")
    sink = pa.BufferOutputStream()
    columns = [
        pa.array(range(len(x)), pa.int64()),
        pa.array([bytes(16)] * len(x), pa.binary(16)),
        vector_column(x, schema.field("vector")),
    ]
    pq.write_table(
        pa.Table.from_arrays(columns, schema=schema), sink, row_group_size=2_048, **writer_options(schema)
    )
    content, store = sink.getvalue().to_pybytes(), open_store(root)
    store.write("units/0.parquet", content)
    unit = VectorUnit(
        ordinal=0,
        path="units/0.parquet",
        rows=len(x),
        bytes=len(content),
        sha256=sha256(content).hexdigest(),
        space_id="a space",
        numerics_id="",
        corpus=FileRef(path="", sha256=""),
        record="",
    )
    return LiveRows(store, "a space", "id"), (unit,)


def train_flow(x: np.ndarray, settings: FlowSettings, dev: DevPairs) -> tuple[Flow, float]:
    """Train a flow on x (n, d). Returns it with the seconds that training took."""
    with tempfile.TemporaryDirectory() as folder:
        source, units = write_unit(Path(folder), x)
        start = time.perf_counter()
        reference = TrainFlow().start()(FlowTraining(source, units, settings, dev=dev))
        return Flow.from_bytes(reference.read(source.store)), time.perf_counter() - start


def table_row(pooling: str, name: str, x: np.ndarray, settings: FlowSettings, dev: DevPairs) -> list[str]:
    """Train a flow and return its row of the table."""
    flow, seconds = train_flow(x, settings, dev)
    first, last = flow.curve[0], flow.curve[-1]
    best = max(flow.curve, key=lambda point: point.dev or 0)
    error = np.abs(flow.inverse(flow(x)) - x).max()
    for note in flow.notes:
        print(f"  {pooling}, {name}: {note}")
    bits = [f"{value:.4f}" for value in (first.heldout, last.train, last.heldout)]
    scores = [
        f"{100 * dev.score():.2f}",
        f"{100 * (first.dev or 0):.2f}",
        f"{100 * (best.dev or 0):.2f} ({best.step:,})",
        f"{100 * (last.dev or 0):.2f}",
    ]
    return [
        pooling,
        name,
        f"{flow.fitted_rows:,}",
        f"{last.step:,}",
        *bits,
        f"{error:.1e}",
        f"{seconds:.1f}",
        *scores,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--captions", type=int, default=10_000, help="number of captions to fit on")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--poolings", nargs="+", default=["mean", "first_last"])
    parser.add_argument("--levels", type=int, default=FlowSettings().levels)
    arguments = parser.parse_args()
    print(machine())
    settings, rows, dev = FlowSettings(epochs=arguments.epochs, levels=arguments.levels), [], sts("dev")
    encoder = load_encoder(
        EncoderSettings(pooling="+".join(arguments.poolings), normalize=False),
        EncodeSettings(threads=os.cpu_count() or 1),
    )
    left, right = (encoder.encode(dev[column].to_pylist()) for column in ("sentence1", "sentence2"))
    for name, texts in sentences(arguments.captions).items():
        x = encoder.encode(texts)
        for number, pooling in enumerate(arguments.poolings):  # vectors of all poolings are concatenated
            columns = slice(number * DIM, (number + 1) * DIM)
            dev_pairs = DevPairs(left[:, columns], right[:, columns], dev["score"].to_numpy())
            rows.append(table_row(pooling, name, x[:, columns], settings, dev_pairs))
    print_table(
        f"BERT-flow on all-MiniLM-L6-v2, d = {DIM}; dev is Spearman x100 of the cosine on STSB-dev",
        rows,
        HEADER,
    )
    print(
        "\nat start: after the actnorm layers were initialised on the first batch; trained: mean over the "
        "last twentieth of the steps"
    )


if __name__ == "__main__":
    main()

"""Measure the nights after the first one.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.incremental nights
    python -m tests.benchmarks.incremental idle --units 1000
    python -m tests.benchmarks.incremental keys --rows 1000000 10000000

`nights`: a full night on captions, nights with 1 % of the rows changed, and a night without changes. `idle`:
a night without changes over many units. `keys`: seconds and memory to find the changed rows of a corpus.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Changes, Corpus
from pipeline.text.ingest.corpus_record import record_path, tables_folder
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from tests.benchmarks.machine import machine, print_table
from tests.benchmarks.night import captions

_FILES = 10


def write(folder: Path, ids: np.ndarray, texts: list[str]) -> None:
    """Write the rows, in order, to ten files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(ids)), _FILES)):
        pq.write_table(
            pa.table({"id": ids[rows], "text": [texts[row] for row in rows]}),
            folder / f"part-{number:02d}.parquet",
        )


def edit_rows(ids: np.ndarray, texts: list[str], rng: np.random.Generator) -> tuple[np.ndarray, list[str]]:
    """Change the text of 0.4 % of the rows, delete 0.2 %, and append 0.4 % new rows.

    The rows are drawn from all files, so that every file changes.
    """
    thousandth = len(ids) // 1000
    drawn = rng.permutation(len(ids))
    changed, deleted, copied = np.split(drawn[: 10 * thousandth], [4 * thousandth, 6 * thousandth])
    texts = list(texts)
    for row in changed:
        texts[row] += " once more"
    remaining = np.setdiff1d(np.arange(len(ids)), deleted)
    new_texts = [f"{texts[row]} for the first time" for row in copied]
    new_ids = np.arange(len(new_texts)) + ids.max() + 1
    return np.concatenate([ids[remaining], new_ids]), [*(texts[row] for row in remaining), *new_texts]


def night(arguments: list[str]) -> tuple[float, dict[str, Any]]:
    """Run `manta nightly` in a process. Returns its wall seconds and its JSON answer."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "jobs.nightly", "--json", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - start, json.loads(done.stdout)


def nights(rows: int, rounds: int) -> None:
    """Measure a full night, nights with 1 % of the rows changed, and a night without changes."""
    table = pa.concat_tables(
        [pq.read_table(file, columns=["text"]) for file in sorted(captions().glob("*.parquet"))]
    ).slice(0, rows)
    ids, texts, rng = np.arange(len(table)), table["text"].to_pylist(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        arguments = [f"corpus.uri={top}/corpus", f"release.root={top}/releases", "encode.unit_rows=4096"]
        write(Path(top, "corpus"), ids, texts)
        full, answer = night(arguments)
        encode = answer["seconds"]["encode"]
        lines = [_line("all rows are new", full, answer, full, encode)]
        for _ in range(rounds):
            ids, texts = edit_rows(ids, texts, rng)
            write(Path(top, "corpus"), ids, texts)
            lines.append(_line("1 % changed", *night(arguments), full, encode))
        wall, answer = night(arguments)
        lines.append(_line("nothing changed", wall, answer, full, encode))
    print_table(
        f"{rows:,} captions, all-MiniLM-L6-v2; {machine()}",
        lines,
        (
            "night",
            "seconds",
            "of the full night",
            "encode s",
            "of its encode",
            "rows encoded",
            "index",
            "stages",
        ),
    )


def _line(name: str, wall: float, answer: dict[str, Any], full: float, encode: float) -> tuple[str, ...]:
    seconds = answer.get("seconds", {}).get("encode", 0.0)
    index = next((choice["chosen"] for choice in answer["decisions"] if choice["what"] == "index"), "")
    stages = ", ".join(
        f"{stage} {stage_s:.1f}" for stage, stage_s in answer.get("seconds", {}).items() if stage_s >= 0.1
    )
    encoded = answer["counts"]["encoded"] if answer["status"] == "published" else 0
    return (
        name,
        f"{wall:.1f}",
        f"{wall / full:.1%}",
        f"{seconds:.2f}",
        f"{seconds / encode:.1%}",
        f"{encoded:,}",
        index,
        stages,
    )


def idle(units: int) -> None:
    """Measure nights without changes over `units` units, with a small random encoder."""
    from tests.models.folders import save_folder

    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        save_folder(Path(top, "encoder"), "bert")
        write(
            Path(top, "corpus"),
            np.arange(20 * units),
            [f"a dog runs near river {number}" for number in range(20 * units)],
        )
        arguments = [
            f"corpus.uri={top}/corpus",
            f"release.root={top}/releases",
            f"encoder.path={top}/encoder",
            "encode.unit_rows=20",
            "index.kind=flat",
        ]
        full, answer = night(arguments)
        seconds = [night(arguments)[0] for _ in range(5)]
    assert answer["status"] == "published"
    lines = [
        ("all rows are new", f"{full:.1f}"),
        ("nothing changed, median of 5", f"{float(np.median(seconds)):.2f}"),
        ("slowest", f"{max(seconds):.2f}"),
    ]
    print_table(f"{units:,} units of 20 rows; {machine()}", lines, ("night", "seconds"))


def keys_night(folder: Path, rows: int) -> None:
    """Ingest generated rows and print seconds and memory as JSON.

    The first call in a folder ingests the first corpus, the second call a corpus in which one of a hundred
    files has changed.
    """
    settings, store = CorpusSettings(uri=str(folder / "corpus")), open_store(folder / "out")
    parts = np.array_split(np.arange(rows), 100)
    record = folder / "first"
    first = Corpus.load(store, record.read_text()) if record.exists() else None
    for number, part in enumerate(parts):
        if first is None or number == 50:
            _write_part(
                folder / "corpus" / f"{number:02d}.parquet", part, "" if first is None else " changed"
            )
    start = time.perf_counter()
    corpus = ingest(settings, 32_768, store, PreviousCorpus(first, first.next_ordinal) if first else None)
    ingest_s = time.perf_counter() - start
    record.write_text(record_path(corpus.id))
    assert corpus.changes == (
        Changes(changed=len(parts[50]), unchanged=rows - len(parts[50])) if first else Changes(new=rows)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        json.dumps(
            {
                "seconds": ingest_s,
                "peak_mb": peak,
                "tables_mb": _written_bytes(corpus) / 1e6,
            }
        )
    )


def _written_bytes(corpus: Corpus) -> int:
    """Return the bytes of the tables' files that were written for this corpus."""
    files = (file for bucket in (*corpus.keys, *corpus.texts) for file in bucket.references())
    return sum(file.bytes for file in files if file.path.startswith(tables_folder(corpus.id)))


def _write_part(file: Path, part: np.ndarray, suffix: str) -> None:
    pq.write_table(
        pa.table(
            {
                "id": [f"document-{row:012d}" for row in part],
                "text": [f"sentence number {row}{suffix}" for row in part],
            }
        ),
        file,
    )


def keys(sizes: list[int]) -> None:
    """Print a line for each size. Each night runs in its own process, because its peak memory is measured."""
    lines = []
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
            Path(top, "corpus").mkdir()
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.incremental",
                "one",
                "--rows",
                str(rows),
                "--folder",
                top,
            ]
            first, again = (
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                for _ in range(2)
            )
        peaks = [f"{night['peak_mb']:,.0f}" for night in (first, again)]
        rates = [f"{1e6 * again['seconds'] / rows:.2f}", f"{again['tables_mb']:,.1f}"]
        lines.append(
            (f"{rows:,}", f"{first['seconds']:.1f}", peaks[0], f"{again['seconds']:.1f}", peaks[1], *rates)
        )
    header = (
        "rows",
        "first corpus, s",
        "peak MB",
        "1 % changed, s",
        "peak MB",
        "µs a row",
        "tables written, MB",
    )
    print_table(f"Generated corpora, one of a hundred files changed; {machine()}", lines, header)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("nights", "idle", "keys", "one"))
    parser.add_argument("--rows", type=int, nargs="+", default=[135_070])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--units", type=int, default=1_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.what == "nights":
        nights(options.rows[0], options.rounds)
    elif options.what == "idle":
        idle(options.units)
    elif options.what == "keys":
        keys(options.rows)
    else:
        keys_night(options.folder, options.rows[0])

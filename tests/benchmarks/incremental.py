"""What the nights after the first one cost.

MANTA_EVAL_DATA=... python -m tests.benchmarks.incremental nights       # 135,070 captions, then 1 % of the
rows changed, then nothing python -m tests.benchmarks.incremental idle --units 1000                # nothing
changed over a thousand units python -m tests.benchmarks.incremental keys --rows 1000000 10000000     #
finding what changed among made-up rows: seconds and memory
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
from pipeline.store.store import open_store
from pipeline.store.units import Changes, Corpus
from pipeline.text.corpus.corpus_record import record_path
from pipeline.text.corpus.ingest import ParentCorpus, ingest
from tests.benchmarks.machine import machine, print_table
from tests.benchmarks.night import captions

_FILES = 10


def write(folder: Path, ids: np.ndarray, texts: list[str]) -> None:
    """Rows in ten files, by their order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(ids)), _FILES)):
        pq.write_table(
            pa.table({"id": ids[rows], "text": [texts[row] for row in rows]}),
            folder / f"part-{number:02d}.parquet",
        )


def edited(ids: np.ndarray, texts: list[str], rng: np.random.Generator) -> tuple[np.ndarray, list[str]]:
    """0.4 % of the rows with another text, 0.2 % gone, 0.4 % new ones at the end: scattered over all files,
    so that every file has changed.
    """
    share = len(ids) // 1000
    chosen = rng.permutation(len(ids))
    changed, gone, more = chosen[: 4 * share], chosen[4 * share : 6 * share], chosen[6 * share : 10 * share]
    texts = list(texts)
    for row in changed:
        texts[row] += " once more"
    kept = np.setdiff1d(np.arange(len(ids)), gone)
    new = [f"{texts[row]} for the first time" for row in more]
    return np.concatenate([ids[kept], np.arange(len(new)) + ids.max() + 1]), [
        *(texts[row] for row in kept),
        *new,
    ]


def night(arguments: list[str]) -> tuple[float, dict[str, Any]]:
    """(seconds of the whole process, its answer) of one `manta nightly`."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "jobs.nightly", "--json", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - start, json.loads(done.stdout)


def nights(rows: int, rounds: int) -> None:
    """A full night, nights with 1 % changed rows, a night with nothing changed."""
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
            ids, texts = edited(ids, texts, rng)
            write(Path(top, "corpus"), ids, texts)
            lines.append(_line("1 % changed", *night(arguments), full, encode))
        wall, answer = night(arguments)
        lines.append(_line("nothing changed", wall, answer, full, encode))
    print_table(
        f"{rows:,} captions, all-MiniLM-L6-v2; {machine()}",
        lines,
        ("night", "seconds", "share", "encode s", "share", "rows encoded", "index", "stages"),
    )


def _line(name: str, wall: float, answer: dict[str, Any], full: float, encode: float) -> tuple[str, ...]:
    seconds = answer.get("seconds", {}).get("encode", 0.0)
    index = next((choice["chosen"] for choice in answer["decisions"] if choice["what"] == "index"), "")
    stages = ", ".join(
        f"{stage} {spent:.1f}" for stage, spent in answer.get("seconds", {}).items() if spent >= 0.1
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
    """Nothing changed over so many units, with a small random encoder."""
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
    """The first corpus of made-up rows in `folder`, or the one after it with one of a hundred files changed;
    prints a JSON line.
    """
    corpus, store, parts = (
        CorpusSettings(uri=str(folder / "corpus")),
        open_store(folder / "out"),
        np.array_split(np.arange(rows), 100),
    )
    before = folder / "first"
    first = Corpus.load(store, before.read_text()) if before.exists() else None
    for number, part in enumerate(parts):
        if first is None or number == 50:
            _made(folder / "corpus" / f"{number:02d}.parquet", part, "" if first is None else " changed")
    start = time.perf_counter()
    made = ingest(corpus, 32_768, store, ParentCorpus(first, first.next_ordinal) if first else None)
    spent = time.perf_counter() - start
    before.write_text(record_path(made.id))
    assert made.changes == (
        Changes(changed=len(parts[50]), unchanged=rows - len(parts[50])) if first else Changes(new=rows)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        json.dumps(
            {
                "seconds": spent,
                "peak_mb": peak,
                "tables_mb": sum(ref.bytes for ref in (*made.keys, *made.texts)) / 1e6,
            }
        )
    )


def _made(file: Path, part: np.ndarray, suffix: str) -> None:
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
    """Each night in a process of its own, since memory is measured by its peak."""
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
        spent = [f"{1e6 * again['seconds'] / rows:.2f}", f"{again['tables_mb']:,.0f}"]
        lines.append(
            (f"{rows:,}", f"{first['seconds']:.1f}", peaks[0], f"{again['seconds']:.1f}", peaks[1], *spent)
        )
    header = ("rows", "first corpus, s", "peak MB", "1 % changed, s", "peak MB", "µs a row", "tables, MB")
    print_table(f"Corpora of made-up rows, one of a hundred files changed; {machine()}", lines, header)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("nights", "idle", "keys", "one"))
    parser.add_argument("--rows", type=int, nargs="+", default=[135_070])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--units", type=int, default=1_000)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    if asked.what == "nights":
        nights(asked.rows[0], asked.rounds)
    elif asked.what == "idle":
        idle(asked.units)
    elif asked.what == "keys":
        keys(asked.rows)
    else:
        keys_night(asked.folder, asked.rows[0])

"""Compare the time of five STS tasks in `manta evaluate` and in sentence-transformers' evaluators.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.evaluate --rounds 5

Whole commands are measured, one of each in turn.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.benchmarks.machine import machine, print_table, spread

TASKS = ("STS12", "STS13", "STS15", "STSB-dev", "STSB-test")

# sentence-transformers as in its documentation: one evaluator for each task, which encodes its sentences.
# Prints the Spearman correlations x100 by task, and the seconds without imports.
PEER = """
import json, sys, time
import pyarrow.parquet as pq, torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
folder, encoder, threads, *tasks = sys.argv[1:]
torch.set_num_threads(int(threads))
start = time.perf_counter()
model, found = SentenceTransformer(encoder, device="cpu"), {}
for task in tasks:
    pairs = pq.read_table(f"{folder}/{task}.parquet")
    columns = [pairs[name].to_pylist() for name in ("sentence1", "sentence2", "score")]
    judge = EmbeddingSimilarityEvaluator(*columns, main_similarity="cosine", batch_size=64)
    found[task] = 100 * judge(model)["spearman_cosine"]
print(json.dumps({"values": found, "seconds": time.perf_counter() - start}))
"""


def run_manta(folder: str, arguments: list[str]) -> tuple[float, dict[str, Any]]:
    """Run `manta evaluate` with an empty root. Returns the wall seconds and the JSON answer."""
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as root:
        names = f"evaluate.names=[{','.join(TASKS)}]"
        return run_timed(
            [
                sys.executable,
                "-m",
                "jobs.evaluate",
                "--json",
                f"evaluate.tasks={folder}",
                names,
                f"release.root={root}",
                "evaluate.bootstrap=0",
                *arguments,
            ]
        )


def run_timed(command: list[str]) -> tuple[float, dict[str, Any]]:
    """Run a command, and exit if it fails. Returns the wall seconds and the JSON object on its last line."""
    start = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "true"},
    )
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - start, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="threads of sentence-transformers")
    parser.add_argument("settings", nargs="*", help="key.path=value for manta evaluate")
    options = parser.parse_args()
    from pipeline.models.folder.locate import locate

    folder, encoder = os.environ["MANTA_EVAL_DATA"], str(locate("all-MiniLM-L6-v2"))
    pairs = []
    for _ in range(options.rounds):
        manta = run_manta(folder, options.settings)
        peer = run_timed([sys.executable, "-c", PEER, f"{folder}/sts", encoder, str(options.threads), *TASKS])
        pairs.append((manta, peer))
    report(pairs)


def report(pairs: list[tuple[tuple[float, dict[str, Any]], tuple[float, dict[str, Any]]]]) -> None:
    """Print times and scores. Each pair has (seconds, answer) of Manta and of sentence-transformers."""
    manta_s = [seconds for (seconds, _), _ in pairs]
    peer_s = [seconds for _, (seconds, _) in pairs]
    peer_without_imports_s = [answer["seconds"] for _, (_, answer) in pairs]
    rows = [
        ("manta evaluate, whole command", spread(manta_s, ".1f")),
        ("sentence-transformers, whole program", spread(peer_s, ".1f")),
        ("sentence-transformers, without imports", spread(peer_without_imports_s, ".1f")),
        (
            "ratio of the whole commands",
            spread([peer / manta for manta, peer in zip(manta_s, peer_s, strict=True)]),
        ),
    ]
    print_table(
        f"{', '.join(TASKS)}, all-MiniLM-L6-v2; {len(pairs)} pairs; {machine()}", rows, ("", "seconds")
    )
    (_, manta_answer), (_, peer_answer) = pairs[-1]
    manta_scores, peer_scores = (
        {result["task"]: result["value"] for result in manta_answer["results"]},
        peer_answer["values"],
    )
    print_table(
        "Spearman x100, all",
        [(task, f"{manta_scores[task]:.2f}", f"{peer_scores[task]:.2f}") for task in TASKS],
        ("task", "manta", "sentence-transformers"),
    )


if __name__ == "__main__":
    main()

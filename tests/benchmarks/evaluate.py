"""The STS suite through `manta evaluate` and through sentence-transformers' evaluators: whole commands, in
pairs one after the other.

MANTA_EVAL_DATA=... python -m tests.benchmarks.evaluate --rounds 5
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

# The peer, as its documentation shows it: one evaluator a task, each encoding its own sentences. Prints
# {task: Spearman x100} and its seconds without imports.
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


def ours(folder: str, arguments: list[str]) -> tuple[float, dict[str, Any]]:
    """(seconds of the whole command, its answer), from an empty root."""
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as root:
        names = f"evaluate.names=[{','.join(TASKS)}]"
        return timed(
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


def timed(command: list[str]) -> tuple[float, dict[str, Any]]:
    """(wall seconds, the JSON object on its standard output); ends the benchmark where the command fails."""
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
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("settings", nargs="*", help="key.path=value for manta evaluate")
    chosen = options.parse_args()
    from pipeline.models.folder.locate import locate

    folder, encoder = os.environ["MANTA_EVAL_DATA"], str(locate("all-MiniLM-L6-v2"))
    pairs = []
    for _ in range(chosen.rounds):
        mine = ours(folder, chosen.settings)
        peer = timed([sys.executable, "-c", PEER, f"{folder}/sts", encoder, str(chosen.threads), *TASKS])
        pairs.append((mine, peer))
    report(pairs)


def report(pairs: list[tuple[tuple[float, dict[str, Any]], tuple[float, dict[str, Any]]]]) -> None:
    """The table of whole commands and the figures of both."""
    mine, peer = [seconds for (seconds, _), _ in pairs], [seconds for _, (seconds, _) in pairs]
    work = [answer["seconds"] for _, (_, answer) in pairs]
    rows = [
        ("manta evaluate, whole command", spread(mine, ".1f")),
        ("sentence-transformers, whole program", spread(peer, ".1f")),
        ("sentence-transformers, without imports", spread(work, ".1f")),
        (
            "ratio of the whole commands",
            spread([there / here for here, there in zip(mine, peer, strict=True)]),
        ),
    ]
    print_table(
        f"{', '.join(TASKS)}, all-MiniLM-L6-v2; {len(pairs)} pairs; {machine()}", rows, ("", "seconds")
    )
    (_, answer), (_, theirs) = pairs[-1]
    own = {result["task"]: result["value"] for result in answer["results"]}
    print_table(
        "Spearman x100, all",
        [(task, f"{own[task]:.2f}", f"{theirs['values'][task]:.2f}") for task in TASKS],
        ("task", "manta", "sentence-transformers"),
    )


if __name__ == "__main__":
    main()

"""Show that each config of a new encoder, made small, learns on real text, by losses and scores.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.papers.learning results --only fastsent skip-thought

Trainings run by the functions that `manta train` calls, with the settings of `jobs/configs/train/` except for
those that CASES names: sizes, rows and steps. The loss is that of the same rows before and after. Scores are
those of the new encoder before the first step and of the trained one, by `manta evaluate`: Spearman x100 of
the cosine over all pairs, and accuracy on CR in five folds; then those of each genre of STS-B dev. An
asterisk marks a difference whose interval of 1,000 paired resamples excludes 0. Results are kept in the
folder: the same command prints them again.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.report import facts_of
from pipeline.flows.workers.cluster import connect, local_workers
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import ClusterSettings, EncoderSettings, Job
from tests.benchmarks.machine import machine, print_table
from tests.benchmarks.papers.claim import Training
from tests.benchmarks.papers.data import open_sources
from tests.benchmarks.papers.learning_cases import CASES, VECTORS
from tests.benchmarks.papers.rated_pairs import read_pairs
from tests.benchmarks.papers.runner import Runner, arguments, progress

TASKS = ("STSB-dev", "SICK-R-train", "CR")
_SEED = 0


def resolved(runner: Runner, value: Any) -> Any:
    """Replace names of trained word vectors in settings by the paths of their files, after training them."""
    if isinstance(value, dict):
        return {key: resolved(runner, each) for key, each in value.items()}
    if isinstance(value, str) and value.startswith(VECTORS):
        return f"{runner.product(CASES[value.removeprefix(VECTORS)], _SEED)}/word2vec.txt"
    return value


def compare(runner: Runner, training: Training) -> dict[str, Any]:
    """Evaluate the new encoder of a training and the trained one; return the answer of the evaluation."""
    before, after = runner.initial(training, _SEED), runner.product(training, _SEED)
    settings: dict[str, Any] = {
        "evaluate.tasks": str(runner.sources.data),
        "evaluate.names": list(TASKS),
        "evaluate.candidates": [
            {"name": name, "encoder": {"path": path}} for name, path in (("before", before), ("after", after))
        ],
        "evaluate.folds": 5,
        "evaluate.root": str(runner.folder),
        "release.root": str(runner.folder / "releases"),
    }
    return facts_of(evaluate(load_settings(Job, None, arguments(settings)), Stages()))


def genres(file: Path, paths: Sequence[str]) -> Iterator[str]:
    """Yield the scores of encoders on each genre of STS-B, such as "forums 30.91 to 26.72"."""
    pairs, subsets = read_pairs(file), pq.read_table(file, columns=["subset"])["subset"].to_pylist()
    of_pair = np.array([subset.partition("/")[0].removeprefix("main-") for subset in subsets])
    vectors = [load_encoder(EncoderSettings(path=path)).encode(pairs.texts) for path in paths]
    for genre in sorted(set(of_pair)):
        yield f"{genre} " + " to ".join(f"{pairs.score(x, of_pair == genre):.2f}" for x in vectors)


def cells(runner: Runner, name: str, times: int) -> Iterator[str]:
    """Yield the cells of a case with `times` its steps: rows, steps, losses, scores before and after."""
    case = CASES[name]
    steps = times * (case.max_steps or 1)
    training = replace(case, settings=resolved(runner, case.settings), max_steps=steps)
    facts = compare(runner, training)
    measured = runner.measured(training, _SEED)
    seconds = runner.seconds(training, _SEED)
    yield from (name, training.data, f"{steps:,}", f"{seconds / 60:.1f}")
    yield f"{measured['start_loss']:.2f} to {measured['end_loss']:.2f}"
    values = {(each["task"], each["candidate"]): each["value"] for each in facts["results"]}
    differs = {each["task"]: each["excludes_zero"] for each in facts["differences"]}
    for task in TASKS:
        mark = "*" if differs[task] else ""
        yield f"{values[task, 'before']:.2f} to {values[task, 'after']:.2f}{mark}"
    paths = runner.initial(training, _SEED), runner.product(training, _SEED)
    yield ", ".join(genres(runner.sources.data / "sts" / "STSB-dev.parquet", paths))


def main(folder: Path, names: Sequence[str], times: int, device: str) -> None:
    """Train and measure the cases whose names begin with one of the names, and print a line for each.

    Args:
        folder: where results are kept.
        names: beginnings of names.
        times: factor of the numbers of steps.
        device: device of trainings.
    """
    if "MANTA_EVAL_DATA" not in os.environ:
        sys.exit("set MANTA_EVAL_DATA to the folder of evaluation data")
    sources = open_sources(folder / "data", "")
    runner = Runner(folder, {}, {}, sources, 1, [_SEED], {}, 1.0, float("inf"), device)
    chosen = [name for name in CASES if any(name.startswith(each) for each in names)]
    lines, cluster = [], ClusterSettings()
    with local_workers(True, cluster.patience_s) as local, connect(cluster, Stages(), local=local):
        for name in chosen:
            progress(name)
            lines.append(tuple(cells(runner, name, times)))
            progress(" | ".join(lines[-1]))
    header = ("config", "rows", "steps", "minutes", "loss", *TASKS, "STSB-dev by genre")
    print_table(f"{time.strftime('%d %B %Y')}, {machine()}", lines, header)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where results are kept")
    parser.add_argument("--only", nargs="+", default=[""], metavar="CASE", help="beginnings of cases' names")
    parser.add_argument("--times", type=int, default=1, help="factor of the numbers of steps")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="device of trainings")
    given = parser.parse_args()
    main(given.folder.resolve(), given.only, given.times, given.device)

"""How far trainings moved the vectors of their start, and the scores before: why an ordering may not show."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipeline.models.folder.encoder_folder import MASKED
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings
from pipeline.stats.geometry import cosines
from tests.benchmarks.machine import print_table
from tests.benchmarks.papers.claim import Row, Table
from tests.benchmarks.papers.rated_pairs import read_pairs
from tests.benchmarks.papers.runner import Runner

_SETS = {"english": "sts/STSB-dev.parquet", "chinese": "stsb-multi/STSB-zh-dev.parquet"}


def print_movement(runner: Runner, table: Table) -> None:
    """Print the score on STS-B dev before and after each training, and the mean cosine of both vectors.

    Before is the start with the pooling of the trained encoder. A layer that the training added, as cls_mlp
    does, is missing before, so there is no cosine. A new encoder has taken one step.
    """
    rows = [line for row in runner.rows(table) if row.training for line in _movement(runner, row)]
    if rows:
        print_table("Movement", rows, ("row", "seed", "before", "after", "cosine of before and after"))


def _movement(runner: Runner, row: Row) -> Iterator[Sequence[str]]:
    """Yield a line for each seed; none for an encoder with a template."""
    pairs = read_pairs(runner.sources.data / _SETS.get(row.start, _SETS["english"]))
    for seed in runner.seeds:
        encoder: dict[str, Any] = runner.candidate(row, seed)["encoder"]
        trained = EncoderSettings.model_validate(encoder)
        if (poolings := open_folder(trained).pooling) == MASKED:
            return
        start = _start(runner, row, "+".join(poolings).replace("cls_mlp", "cls"), seed)
        before, after = (load_encoder(settings).encode(pairs.texts) for settings in (start, trained))
        is_comparable = before.shape == after.shape and "cls_mlp" not in poolings
        cosine = f"{cosines(before, after).mean():.3f}" if is_comparable else ""
        yield row.name, f"{seed}", f"{pairs.score(before):.2f}", f"{pairs.score(after):.2f}", cosine


def _start(runner: Runner, row: Row, pooling: str, seed: int) -> EncoderSettings:
    """Return the start of a row with a pooling, or its new encoder after one step."""
    if row.training is None or row.start in runner.starts:
        return EncoderSettings(path=runner.starts[row.start], pooling=pooling)
    one_step = {**row.training.settings, "train.max_steps": 1}
    return EncoderSettings(path=runner.product(replace(row.training, settings=one_step), seed))

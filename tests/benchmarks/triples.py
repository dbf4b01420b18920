"""Triples of natural-language inference for the benchmarks of trainings, as `manta pairs` builds them."""

from pathlib import Path

import pyarrow.parquet as pq

from pipeline.log import Stages
from pipeline.settings.pairs import PairsSettings
from pipeline.settings.training import SourceSettings
from pipeline.text.pairs.build import build_rows, open_build


def write_triples(source: Path, folder: Path) -> None:
    """Build the folder `triples` below `folder` from a file of premises, hypotheses and labels."""
    settings = PairsSettings(
        root=str(folder), name="triples", kind="nli", data=SourceSettings(uri=str(source))
    )
    build_rows(open_build(settings), Stages())


def write_pairs_of_triples(folder: Path) -> Path:
    """Write the triples of `write_triples` without their negatives; return the file."""
    file = folder / "pairs-of-triples.parquet"
    pq.write_table(pq.read_table(folder / "triples" / "train.parquet", columns=["anchor", "positive"]), file)
    return file

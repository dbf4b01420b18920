"""Small data for every kind of pairs, and the rows that are built from it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.log import Stages
from pipeline.settings.pairs import PairsSettings
from pipeline.text.pairs.build import TEST, TRAIN, build_rows, open_build

Rows = list[dict[str, Any]]


def settings_of(folder: Path, kind: str, **changes: Any) -> PairsSettings:
    """Settings that build rows of a kind from the files of folder/data."""
    defaults = {"root": str(folder / "pairs"), "name": "made", "kind": kind, "data": str(folder / "data")}
    return PairsSettings.model_validate({**defaults, **changes})


def write_data(folder: Path, rows: Rows, files: int = 1) -> None:
    """Write rows to folder/data, divided among files."""
    (folder / "data").mkdir(parents=True)
    size = -(-len(rows) // files)
    for number in range(files):
        part = pa.Table.from_pylist(rows[number * size : (number + 1) * size])
        pq.write_table(part, folder / "data" / f"{number}.parquet", row_group_size=100)


def build(folder: Path, kind: str, rows: Rows, **changes: Any) -> Rows:
    """Write rows to folder/data, build training rows from them, and read these back."""
    write_data(folder, rows)
    _, built = build_rows(open_build(settings_of(folder, kind, **changes)), Stages())
    training_rows: Rows = pq.read_table(folder / "pairs" / "made" / TRAIN).to_pylist()
    assert built.train.rows == len(training_rows)
    return training_rows


def read_test_set(folder: Path) -> Rows:
    """Read the rows that `build` wrote to the test set."""
    rows: Rows = pq.read_table(folder / "pairs" / "made" / TEST).to_pylist()
    return rows


def inference(premises: int) -> Rows:
    """Premises with two hypotheses of each label; every fifth lacks contradictions."""
    return [
        {"premise": f"p{premise}", "hypothesis": f"p{premise} {label} {number}", "label": label}
        for premise in range(premises)
        for label in ("entailment", "neutral", "contradiction")
        for number in range(2)
        if label != "contradiction" or premise % 5
    ]


def grouped(groups: int) -> Rows:
    """Groups of 1 to 6 texts."""
    return [
        {"group": group, "text": f"g{group} {number}"}
        for group in range(groups)
        for number in range(1 + group % 6)
    ]


def sectioned(documents: int) -> Rows:
    """Documents of 1 to 3 sections of 1 to 4 texts."""
    return [
        {"document": f"d{document}", "section": f"s{section}", "text": f"d{document} s{section} {number}"}
        for document in range(documents)
        for section in range(1 + document % 3)
        for number in range(1 + (document + section) % 4)
    ]


def running_text(documents: int) -> Rows:
    """Documents of 1 to 9 sentences."""
    return [
        {"document": document, "position": position, "text": f"d{document} {position}"}
        for document in range(documents)
        for position in range(1 + document % 9)
    ]


DATA = {"nli": inference, "groups": grouped, "sections": sectioned, "neighbours": running_text}

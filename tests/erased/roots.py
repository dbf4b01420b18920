"""Roots of several nights whose rows have ids, texts and kept values of their own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.publish import NightOutcome
from pipeline.log import Stages
from pipeline.settings import Job
from tests.flows.conftest import ANY_CORPUS, WORDS, job_arguments, sentences
from tests.models.folder.wordfiles import write_words

DIM = 24
TEXTS = sentences(1_000)


def person(number: int, *, version: int = 0) -> dict[str, Any]:
    """Return a row that no other row resembles; its text depends on `version`."""
    text = TEXTS[(number + 450 * version) % len(TEXTS)]
    return {"id": f"person-{number:05d}", "text": text, "mail": f"mail{number:05d}@example.org"}


def people(numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return the rows with some numbers."""
    return [person(number) for number in numbers]


class Nights:
    """Nights over a corpus of one file, with an encoder of word vectors."""

    def __init__(self, folder: Path, *settings: str, root: str | None = None) -> None:
        """Make the corpus and the encoder. `root` is the root of the releases, by default below `folder`."""
        (folder / "corpus").mkdir(parents=True)
        vectors = np.random.default_rng(0).normal(size=(len(WORDS), DIM)).astype(np.float32)
        write_words(folder / "words.txt.gz", WORDS, vectors, "word2vec")
        self.folder, self.root = folder, root or str(folder / "releases")
        self.settings = (
            *(*job_arguments(folder, folder / "words.txt.gz"), *ANY_CORPUS),
            *("corpus.keep=[mail]", "encode.unit_rows=25", "gates.recall_at_10="),
            *(f"release.root={self.root}", *settings),
        )

    def job(self, *settings: str) -> Job:
        """Return the settings of a night."""
        return load_settings(Job, None, (*self.settings, *settings))

    def write(self, rows: list[dict[str, Any]], name: str = "rows") -> None:
        """Write a file of the corpus."""
        pq.write_table(pa.Table.from_pylist(rows), self.folder / "corpus" / f"{name}.parquet")

    def night(self, rows: list[dict[str, Any]] | None = None, *settings: str) -> NightOutcome:
        """Run a night, over other rows if they are given."""
        if rows is not None:
            self.write(rows)
        return nightly(self.job(*settings), Stages())

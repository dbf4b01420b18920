"""An estimate of a night: from file footers, a sample of the text, and ten seconds of encoding on this
machine.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pipeline.device import resolve
from pipeline.errors import DataError
from pipeline.flows.corpus import open_releases
from pipeline.flows.night.previous import load_previous
from pipeline.index.plan import IndexPlan, plan_index
from pipeline.log import Stages
from pipeline.settings import CorpusSettings, Job
from pipeline.text.corpus.corpus_record import reading_digest
from pipeline.text.corpus.docstrings import harvest_docstrings
from pipeline.text.corpus.reader import CorpusSurvey, read_batches, survey_files
from pipeline.text.corpus.sources import SourceFile, list_files

SECONDS = 10.0  # of measuring
_SAMPLED_FILES, _SAMPLED_ROWS = 8, 4_096
_MEASURED_TEXTS = 256  # encoded at once while measuring: enough for full buffers
_PROCESS_BYTES = 700 << 20  # a worker with torch and Ray loaded


@dataclass(frozen=True)
class NightPlan:
    """rows: exact for Parquet, else estimated from the sample. rows_per_s: of one worker, measured here;
    bytes: of all vectors and of the index.
    """

    files: int
    rows: int
    exact: bool
    sampled: int
    tokens_per_row: float
    truncated_share: float
    unusable_share: float
    """texts without a vector, such as those in which word vectors know no word"""
    units: int
    workers: int
    rows_per_s: float
    encode_s: float
    vector_bytes: int
    worker_bytes: int
    index: IndexPlan
    release: int | None = None
    """the live one; the two below are seen from it"""
    changed_files: int | None = None
    tonight_rows: int | None = None
    """rows of these files: at most so many are encoded"""

    def facts(self) -> dict[str, Any]:
        """For --json."""
        own = {name: value for name, value in vars(self).items() if name != "index"}
        return own | {"index": self.index.model_dump(mode="json")}


def plan(job: Job, stages: Stages, *, seconds: float = SECONDS) -> NightPlan:
    """The estimate.

    Nothing is written below release.root or corpus.uri; a harvested corpus is harvested into a temporary
    directory.
    """
    with tempfile.TemporaryDirectory(prefix="manta-plan-") as directory:
        corpus = _readable(job.corpus, directory)
        with stages("sample"):
            files = list_files(corpus)
            looked = survey_files(files, corpus)
            texts, read_bytes = _sample(files, looked, corpus)
        made = _planned(job, corpus, files, looked, texts, read_bytes, stages, seconds)
        return replace(made, **_tonight(job, corpus, files, made))


def _tonight(job: Job, corpus: CorpusSettings, files: list[SourceFile], made: NightPlan) -> dict[str, Any]:
    """Compare the files with those of the live release; rows are estimated by the proportion of bytes."""
    before = load_previous(open_releases(job))
    if before.release is None:
        return {}
    lives_on = (
        before.corpus is not None
        and not before.parent(job, 0).rebuild_reason
        and before.corpus.reading == reading_digest(corpus)
    )
    known = (
        {(file.name, file.size, file.stamp) for file in before.corpus.files}
        if before.corpus is not None and lives_on
        else set()
    )
    changed = [file for file in files if (file.name, file.size, file.stamp) not in known]
    share = sum(file.size for file in changed) / max(1, sum(file.size for file in files))
    return {
        "release": before.release.release,
        "changed_files": len(changed),
        "tonight_rows": round(made.rows * share),
    }


def _readable(corpus: CorpusSettings, directory: str) -> CorpusSettings:
    if corpus.harvest is None:
        return corpus
    harvest_docstrings(directory, corpus.max_rows)
    return corpus.model_copy(update={"uri": directory, "harvest": None})


def _planned(
    job: Job,
    corpus: CorpusSettings,
    files: list[SourceFile],
    looked: CorpusSurvey,
    texts: list[str],
    read_bytes: int,
    stages: Stages,
    seconds: float,
) -> NightPlan:
    from pipeline.models.inference.encoder import load_encoder

    rows, exact = _rows(files, looked, corpus, len(texts), read_bytes)
    workers = job.cluster.workers.max or max(1, int((os.cpu_count() or 1) / job.cluster.cpus_per_worker))
    with stages("measure", unit="texts") as bar:
        encoder = load_encoder(
            job.encoder, job.encode, resolve(job.encode.device, job.cluster.gpus_per_worker)
        )
        encoder.encode(texts[:_MEASURED_TEXTS])  # the first buffers pay for preparation
        lengths, cut, bad, spent, done = 0, 0, 0, 0.0, 0
        batches = _again(texts)
        while spent < seconds:
            start = time.perf_counter()
            for encoded in encoder.encode_stream([next(batches)]):
                lengths, cut, done = (
                    lengths + int(encoded.counts.lengths.sum()),
                    cut + int(encoded.counts.truncated.sum()),
                    done + len(encoded.counts.lengths),
                )
                bad += int(encoded.bad.sum())
            spent += time.perf_counter() - start
            bar.add(done - bar.stage.done)
    weights = sum(encoder.folder.file(name).stat().st_size for name in encoder.folder.weights)
    units = -(-rows // job.encode.unit_rows)
    workers = min(workers, units)
    value = 2 if job.encode.vectors == "float16" else 4
    return NightPlan(
        files=len(files),
        rows=rows,
        exact=exact,
        sampled=len(texts),
        tokens_per_row=lengths / done,
        truncated_share=cut / done,
        unusable_share=bad / done,
        units=units,
        workers=workers,
        rows_per_s=done / spent,
        encode_s=rows * spent / done / workers,
        vector_bytes=rows * encoder.dim * value,
        worker_bytes=_PROCESS_BYTES + 2 * weights + 3 * min(rows, job.encode.unit_rows) * encoder.dim * 4,
        index=plan_index(rows, encoder.dim, job.index),
    )


def _again(texts: list[str]) -> Iterator[list[str]]:
    while True:
        for start in range(0, len(texts), _MEASURED_TEXTS):
            yield texts[start : start + _MEASURED_TEXTS]


def _sample(files: list[SourceFile], looked: CorpusSurvey, corpus: CorpusSettings) -> tuple[list[str], int]:
    """Texts from the beginnings of a few files spread over the corpus, and the input bytes they came from."""
    usable = [file for file in files if file.name not in looked.refused]
    chosen = usable[:: max(1, len(usable) // _SAMPLED_FILES)][:_SAMPLED_FILES]
    texts: list[str] = []
    read = 0
    for file in chosen:
        share = _SAMPLED_ROWS // len(chosen)
        for batch in islice(read_batches(file, corpus, looked.columns), 1):
            taken = batch.good["text"].to_pylist()[:share]
            texts += taken
            read += int(batch.position * len(taken) / max(1, batch.good.num_rows))
    if not texts:
        raise DataError(
            corpus.uri,
            "a row with an id and a text in the first batches",
            "none",
            "check corpus.id and corpus.text",
        )
    return texts, read


def _rows(
    files: list[SourceFile], looked: CorpusSurvey, corpus: CorpusSettings, sampled: int, read_bytes: int
) -> tuple[int, bool]:
    known = [looked.rows.get(file.name) for file in files if file.name not in looked.refused]
    exact = all(count is not None for count in known)
    guessed = (
        sum(file.size for file in files if looked.rows.get(file.name) is None) * sampled / max(1, read_bytes)
    )
    rows = sum(count for count in known if count is not None) + (0 if exact else int(guessed))
    return max(1, min(rows, corpus.max_rows or rows)), exact

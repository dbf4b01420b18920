"""The task on which a transform is compared and tuned: pairs of whiten.dev, else texts of the corpus."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.encode.probe import SampleTexts, encode_texts, sample_texts
from pipeline.flows.run import Run
from pipeline.post.compare import MIN_WORDS, DevPairs, DevTask, Halves, split_halves
from pipeline.store.arrays import plain_type
from pipeline.store.store import store_of
from pipeline.store.units import Corpus
from pipeline.text.corpus.normalize import strings_of

MIN_TEXTS = 10  # least number of texts for a comparison
_MIN_CHARACTERS = 2 * MIN_WORDS - 1  # of a text of MIN_WORDS words, which have at least one letter each


def dev_task(run: Run, corpus: Corpus) -> DevTask | None:
    """Encode the pairs of whiten.dev, else halves of sampled texts; None if fewer than ten can be halved."""
    settings = run.job.whiten
    if settings.dev:
        left, right, gold = dev_pairs(settings.dev)
        vectors = encode_texts(run, (*left, *right))
        return DevPairs(vectors[: len(left)], vectors[len(left) :], gold, settings.dev)
    sample = SampleTexts(run.store, settings.dev_texts, _MIN_CHARACTERS, corpus.dead)
    texts = sample_texts(run.workers, run.job.cluster, sample, corpus.units)
    halves = [pair for pair in map(split_halves, texts) if pair]
    if len(halves) < MIN_TEXTS:
        return None
    first, second = zip(*halves, strict=True)
    vectors = encode_texts(run, (*first, *second))
    return Halves(vectors[: len(halves)], vectors[len(halves) :])


def dev_pairs(uri: str) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Read sentence1, sentence2 and score of an STS file.

    A missing sentence becomes a single space; a pair without a score is dropped.

    Raises:
        DataError: not a Parquet file, columns missing or of another type, or scores not finite or all equal.
    """
    location = f"whiten.dev: {uri}"
    left, right, scores = _dev_columns(uri)
    numbers = np.asarray(pc.cast(scores, pa.float64(), safe=False).to_numpy())  # NaN if missing
    has_score = ~np.isnan(numbers)
    gold = numbers[has_score]
    if infinite := int(np.isinf(gold).sum()):
        raise DataError(
            location,
            "finite scores",
            f"{infinite:,} infinite ones",
            "correct the file; a pair without a score has null there",
        )
    if len(gold) < 2 or np.ptp(gold) == 0:
        raise DataError(
            location,
            "at least two pairs with different scores",
            f"{len(gold):,}" if len(gold) < 2 else f"{len(gold):,} pairs, all with {gold[0]:g}",
            "give another dev file",
        )
    first, second = (
        tuple(text or " " for text in column.filter(pa.array(has_score)).to_pylist())
        for column in (left, right)
    )
    return first, second, gold


def _dev_columns(uri: str) -> tuple[pa.ChunkedArray, ...]:
    """Read the columns sentence1, sentence2 and score."""
    wanted, location = ("sentence1", "sentence2", "score"), f"whiten.dev: {uri}"
    store, name = store_of(uri)
    try:
        table = pq.read_table(store.open(name))
        names = table.column_names
    except (OSError, pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise DataError(
            location, "a Parquet file", " ".join(f"{type(error).__name__}: {error}".split()), "check the path"
        ) from None
    if missing := [column for column in wanted if column not in names]:
        raise DataError(
            location,
            f"columns {', '.join(wanted)}",
            ", ".join(names),
            f"add {', '.join(missing)}",
        )
    kinds = [plain_type(table.schema.field(column).type) for column in wanted]
    texts = (pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds[:2])
    if not all(texts) or not (pa.types.is_integer(kinds[2]) or pa.types.is_floating(kinds[2])):
        raise DataError(
            location, "two columns of strings and scores as numbers", ", ".join(map(str, kinds)), "cast them"
        )
    for column in wanted[:2]:
        strings_of(table[column], f"{location}: {column}")  # raises for bytes that are not UTF-8
    return tuple(table[column].cast(kind) for column, kind in zip(wanted, kinds, strict=True))

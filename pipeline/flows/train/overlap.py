"""Measure the lexical overlap of the pairs of a training set (Gao et al. 2021, SimCSE, section 4.1)."""

from statistics import fmean

import pyarrow as pa

from pipeline.models.folder.word_vectors import words_of
from pipeline.stats.geometry import Metric
from pipeline.stats.lexical import lexical_overlap
from pipeline.stats.sample import SEED
from pipeline.text.rows.row_sample import sample_rows
from pipeline.text.rows.training_rows import TrainingRows

_MAX_ROWS = 10_000  # the mean has a standard error of about 0.003 for a standard deviation of 0.25
_BESIDE_ANCHOR = ("positive", "negative", "negative2")


def measure_overlap(training_rows: TrainingRows, max_rows: int = _MAX_ROWS) -> dict[str, Metric]:
    """Measure the mean lexical overlap of the anchors with their positives and with their negatives.

    Words are those of `words_of`: lowercased texts are split at white space, and then into words, numbers and
    signs. Texts in scripts without spaces have to be segmented before. Pairs in which a text has no word are
    left out.

    Args:
        training_rows: rows of one source.
        max_rows: largest number of rows in the random sample, which `sample_rows` draws.

    Returns:
        The mean of `lexical_overlap` by role, positive first. Empty if the rows have no anchors. A role is
        left out if it is read from the same column as the anchors, or has no pair to measure.

    Raises:
        DataError: as in `TrainingRows.read`.
    """
    roles = _roles_beside_anchor(training_rows)
    if not roles:
        return {}
    rows, overlaps = 0, {role: list[float]() for role in roles}
    for table in sample_rows(training_rows, ("anchor", *roles), max_rows, SEED):
        anchors = _words(table["anchor"])
        for role in roles:
            pairs = zip(anchors, _words(table[role]), strict=True)
            overlaps[role] += [lexical_overlap(left, right) for left, right in pairs if left and right]
        rows += len(table)
    seed = SEED if rows < len(training_rows) else None
    return {
        role: Metric(value=fmean(values), count=len(values), of="pairs", seed=seed)
        for role, values in overlaps.items()
        if values
    }


def _roles_beside_anchor(training_rows: TrainingRows) -> list[str]:
    """Return the roles whose texts are compared with the anchors, without those of the same column."""
    columns = {role: training_rows.settings.columns.get(role, role) for role in training_rows.roles}
    anchor = columns.get("anchor")
    return [role for role in _BESIDE_ANCHOR if anchor and columns.get(role, anchor) != anchor]


def _words(texts: pa.ChunkedArray) -> list[list[str]]:
    return [list(words_of(text)) for text in texts.to_pylist()]

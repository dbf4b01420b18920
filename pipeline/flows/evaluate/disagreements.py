"""Find the pairs of sentences whose similarity ranks differ most between two candidates."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from pipeline.flows.evaluate.scoring import MeasuredTask
from pipeline.report.evaluation_report import DifferingPair, Disagreement
from pipeline.stats.tensors import unpack
from pipeline.store.base import Store

_MAX_PAIRS = 4  # shown for each task and candidate
_MAX_COMPARISONS = 8  # shown of all tasks and candidates
# Kinds of tasks whose rows are pairs -> name of the human judgements in their evidence.
_GOLD = {"sts": "gold", "pairs": "positive"}
_LABELS = {0: "not the same", 1: "the same"}
_MAX_CHARACTERS = 300  # shown of a sentence


def disagreements(
    measured: Sequence[MeasuredTask], names: Sequence[str], store: Store
) -> tuple[Disagreement, ...]:
    """Compare each candidate with the first one on tasks over pairs. Returns the first few comparisons.

    Args:
        measured: tasks with each candidate's result, in the order of `names`.
        names: names of the candidates.
        store: store of the tasks' evidence.
    """
    return tuple(islice(_comparisons(measured, names, store), _MAX_COMPARISONS))


def _comparisons(
    measured: Sequence[MeasuredTask], names: Sequence[str], store: Store
) -> Iterator[Disagreement]:
    for task, results in ((each.task, each.results) for each in measured if each.task.kind in _GOLD):
        references = [each.result.evidence for each in results]
        evidence = [unpack(file.read(store), kind="evidence")[0] for file in references if file is not None]
        if len(evidence) < len(names):
            continue
        sentences = task.sentences()
        for name, other in zip(names[1:], evidence[1:], strict=True):
            if pairs := tuple(_most_different(task.kind, sentences, evidence[0], other)):
                yield Disagreement(task.name, names[0], name, pairs)


def _most_different(
    kind: str, sentences: Sequence[str], first: dict[str, np.ndarray], other: dict[str, np.ndarray]
) -> Iterator[DifferingPair]:
    """Yield the pairs whose ranks by similarity differ most, largest difference first.

    A rank is the proportion of the other pairs that are less similar, with ties counted half.

    Args:
        kind: kind of the task.
        sentences: the first sentences of all pairs, then the second ones.
        first: evidence of the first candidate.
        other: evidence of the other candidate.
    """
    from scipy.stats import rankdata  # takes a second to import

    values, gold = [each["prediction"] for each in (first, other)], first[_GOLD[kind]]
    ranks = [(rankdata(each) - 1) / max(len(each) - 1, 1) for each in values]
    gaps = np.abs(ranks[1] - ranks[0])
    pair_count = len(sentences) // 2
    for row in np.argsort(-gaps, kind="stable")[:_MAX_PAIRS].tolist():
        if gaps[row] > 0:
            yield DifferingPair(
                sentences[row][:_MAX_CHARACTERS],
                sentences[pair_count + row][:_MAX_CHARACTERS],
                f"{gold[row]:g}" if kind == "sts" else _LABELS[int(gold[row])],
                (float(values[0][row]), float(values[1][row])),
                (float(ranks[0][row]), float(ranks[1][row])),
            )

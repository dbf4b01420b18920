"""Pairs of sentences on which candidates differ most: one finds them similar, another does not."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from pipeline.flows.evaluate.scoring import MeasuredTask
from pipeline.report.evaluation import DifferingPair, Disagreement
from pipeline.stats.tensors import unpack
from pipeline.store.base import Store

_PAIRS = 4  # shown per task and candidate
_MOST = 8  # tasks times candidates shown
# Kinds of tasks over pairs, and the name of the human judgements in their evidence.
_GOLD = {"sts": "gold", "pairs": "positive"}
_SAID = {0: "not the same", 1: "the same"}
_LETTERS = 300  # characters kept of a sentence


def disagreements(
    measured: Sequence[MeasuredTask], names: Sequence[str], store: Store
) -> tuple[Disagreement, ...]:
    """Compare each candidate with the first on tasks over pairs; the first few results are returned.

    Args:
        measured: tasks with each candidate's result, in the order of `names`.
        names: of the candidates.
        store: of the evidence.
    """
    return tuple(islice(_found(measured, names, store), _MOST))


def _found(measured: Sequence[MeasuredTask], names: Sequence[str], store: Store) -> Iterator[Disagreement]:
    for task, scored in ((each.task, each.scored) for each in measured if each.task.kind in _GOLD):
        references = [each.result.evidence for each in scored]
        evidence = [unpack(file.read(store), kind="evidence")[0] for file in references if file is not None]
        if len(evidence) < len(names):
            continue
        sentences = task.sentences()
        for name, other in zip(names[1:], evidence[1:], strict=True):
            if pairs := tuple(_pairs(task.kind, sentences, evidence[0], other)):
                yield Disagreement(task.name, names[0], name, pairs)


def _pairs(
    kind: str, sentences: Sequence[str], first: dict[str, np.ndarray], other: dict[str, np.ndarray]
) -> Iterator[DifferingPair]:
    """Yield the pairs whose ranks by similarity differ most, largest difference first.

    A rank is the proportion of the other pairs that are less similar, with ties counted half.
    """
    from scipy.stats import rankdata  # takes a second to import

    values, gold = [each["prediction"] for each in (first, other)], first[_GOLD[kind]]
    ranks = [(rankdata(each) - 1) / max(len(each) - 1, 1) for each in values]
    gaps = np.abs(ranks[1] - ranks[0])
    half = len(sentences) // 2
    for row in np.argsort(-gaps, kind="stable")[:_PAIRS].tolist():
        if gaps[row] > 0:
            yield DifferingPair(
                sentences[row][:_LETTERS],
                sentences[half + row][:_LETTERS],
                f"{gold[row]:g}" if kind == "sts" else _SAID[int(gold[row])],
                (float(values[0][row]), float(values[1][row])),
                (float(ranks[0][row]), float(ranks[1][row])),
            )

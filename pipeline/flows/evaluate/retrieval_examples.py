"""Show what two candidates find for the same queries, where their results differ most."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from pipeline.evaluate.retrieval import RetrievalTask, SearchProblem
from pipeline.flows.evaluate.scoring import MeasuredTask
from pipeline.report.evaluation_report import RetrievalExample, RetrievedText, Section
from pipeline.stats.tensors import unpack
from pipeline.store.files.base import Store

_MAX_QUERIES = 4  # shown for each task and candidate
_MAX_EXAMPLES = 16  # shown for all tasks and candidates together
_MAX_CHARACTERS = 200  # characters of a text that are shown


def retrieval_examples(
    measured: Sequence[MeasuredTask], names: Sequence[str], store: Store
) -> tuple[RetrievalExample, ...]:
    """Compare the results of each candidate with the first candidate's. Returns the first few examples.

    Args:
        measured: tasks with each candidate's result, in the order of `names`.
        names: names of the candidates.
        store: store of the tasks' evidence.
    """
    return tuple(islice(_examples(measured, names, store), _MAX_EXAMPLES))


def _examples(
    measured: Sequence[MeasuredTask], names: Sequence[str], store: Store
) -> Iterator[RetrievalExample]:
    for each in measured:
        if not isinstance(each.task, RetrievalTask) or len(names) < 2:
            continue
        files = [measured_result.result.evidence for measured_result in each.results]
        evidence = [unpack(file.read(store), kind="evidence")[0] for file in files if file is not None]
        if len(evidence) < len(names) or any("nearest" not in arrays for arrays in evidence):
            continue  # a result of an earlier version
        problem = each.task.problem()
        for name, other in zip(names[1:], evidence[1:], strict=True):
            for query in _most_different(evidence[0]["gain"], other["gain"]):
                found = (
                    _texts(problem, query, arrays["nearest"][query].tolist())
                    for arrays in (evidence[0], other)
                )
                text = problem.texts[problem.queries[query]][:_MAX_CHARACTERS]
                yield RetrievalExample(each.task.name, (names[0], name), text, *found)


def _most_different(first: np.ndarray, other: np.ndarray) -> Iterator[int]:
    """Yield the queries whose gains (q,) differ most, largest difference first."""
    gaps = np.abs(other - first)
    for query in np.argsort(-gaps, kind="stable")[:_MAX_QUERIES].tolist():
        if gaps[query] > 0:
            yield query


def _texts(problem: SearchProblem, query: int, nearest: Sequence[int]) -> tuple[RetrievedText, ...]:
    """Return the texts of the nearest targets of a query; -1 stands for none."""
    relevant = set(problem.relevant[query].tolist())
    return tuple(
        RetrievedText(problem.texts[problem.targets[target]][:_MAX_CHARACTERS], target in relevant)
        for target in nearest
        if target >= 0
    )


def retrieval_section(examples: Sequence[RetrievalExample]) -> Iterator[Section]:
    """Yield a section of the page for each task and pair of candidates: three rows for each query."""
    for task, names in dict.fromkeys((each.task, each.candidates) for each in examples):
        rows: list[tuple[str, ...]] = [("query", "rank", *names)]
        for each in examples:
            if (each.task, each.candidates) == (task, names):
                rows += _rows(each)
        yield Section(
            f"What is retrieved in {task}",
            table=tuple(rows),
            notes=("The nearest targets of the queries whose nDCG differs most; + marks a relevant target.",),
            has_texts=True,
        )


def _rows(example: RetrievalExample) -> Iterator[tuple[str, ...]]:
    for rank, texts in enumerate(zip(example.first, example.other, strict=True), start=1):
        cells = ((f"+ {each.text}" if each.is_relevant else each.text) for each in texts)
        yield (example.query if rank == 1 else "", str(rank), *cells)

"""Indexes over clustered vectors, with queries and their exact neighbours."""

from typing import Any

from pipeline.index.build.build import fill, train
from pipeline.index.build.index_shape import plan_index
from pipeline.index.measure.truth import ExactTopK, Neighbours, Queries
from pipeline.settings import IndexSettings
from tests.index.clustered import Vectors, some_map


def build_with_truth(kind: str, vectors: Vectors, step: int = 20) -> tuple[Any, Queries, Neighbours]:
    """Build an index, with every `step`-th row as a query, and the queries' exact neighbours."""
    plan = plan_index(
        len(vectors.raw), 28, IndexSettings(kind=kind, nlist=40 if kind.startswith("ivf") else None)
    )
    index = train(plan, some_map(), vectors.raw)
    queries = vectors.queries(step)
    truth = fill(index, vectors.batches(), ExactTopK(queries, some_map())).neighbours
    assert truth is not None
    return index, queries, truth

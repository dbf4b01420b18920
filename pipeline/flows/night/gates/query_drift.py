"""Compare the queries of gates.queries with rows of the corpus: drift, and queries without a near answer.

Both need nothing but the vectors and exact neighbours by which recall was measured: those of sampled rows,
and those of the queries.
"""

from typing import TYPE_CHECKING

import numpy as np

from pipeline.evaluate.two_samples import LEAST_ROWS, separability
from pipeline.flows.index.records import BuiltIndex, load_queries, load_truth
from pipeline.flows.night.user_queries import EncodedQueries
from pipeline.index.measure.metrics import Proportion
from pipeline.store.files.base import Store
from pipeline.store.releases.manifest import FAR_QUERIES, QUERY_DRIFT, Gate

if TYPE_CHECKING:
    from pipeline.index.measure.truth import Neighbours, Queries

FAR_QUANTILE = 0.05
"""proportion of the corpus's rows whose nearest other row is not near, by definition"""


def query_drift_gates(store: Store, built: BuiltIndex, users: EncodedQueries | None) -> dict[str, Gate]:
    """Return drift and the proportion of far queries as gates that always pass; {} without gates.queries."""
    if users is None or users.file is None:
        return {}
    return compare_queries(load_queries(store, built.queries), load_truth(store, built.truth), users.dates)


def compare_queries(queries: "Queries", truth: "Neighbours", dates: str = "") -> dict[str, Gate]:
    """Compare the queries of users among `queries` with the rows among them.

    Args:
        truth: exact neighbours of all queries; those of a row leave the row itself out.
        dates: a phrase with the days of the queries.
    """
    of_users = queries.of_users
    asked, rows = (int(mask.sum()) for mask in (of_users, ~of_users))
    what = f"{asked:,} queries of gates.queries{dates} and {rows:,} rows of the corpus"
    if min(asked, rows) < LEAST_ROWS:
        sentence = f"{what} are not compared, because {LEAST_ROWS} of each are needed; reported only"
        gate = Gate(value=None, threshold=None, passed=True, sentence=sentence)
        return {QUERY_DRIFT: gate, FAR_QUERIES: gate}
    area = separability(queries.vectors[of_users], queries.vectors[~of_users])
    best = truth.scores[:, 0]
    threshold = float(np.quantile(best[~of_users], FAR_QUANTILE))
    far = Proportion.of(int((best[of_users] < threshold).sum()), asked)
    return {
        QUERY_DRIFT: Gate(
            value=area.value,
            threshold=None,
            passed=True,
            sentence=f"a classifier distinguishes {what} with an AUC of {area.value:.3f} (95 % interval "
            f"{area.low:.3f} to {area.high:.3f}; 0.5 if they do not differ, 1 if it is always right): "
            "reported only",
        ),
        FAR_QUERIES: Gate(
            value=far.value,
            threshold=None,
            passed=True,
            sentence=f"{far.value:.1%} of {asked:,} queries of gates.queries{dates} have no near answer "
            f"(95 % interval {far.low:.1%} to {far.high:.1%}): the cosine of the best one is below "
            f"{threshold:.3f}, which {FAR_QUANTILE:.0%} of {rows:,} rows do not reach with their nearest "
            "other row; reported only",
        ),
    }

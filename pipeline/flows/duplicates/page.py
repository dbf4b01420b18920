"""The page of near-duplicates: the largest groups, and pairs at the threshold."""

from collections.abc import Mapping

import numpy as np

from pipeline.flows.duplicates.compare import ROUNDING, ComparedRows, DuplicateSearch
from pipeline.index.ids import Ids
from pipeline.index.texts import MissingTexts, Texts
from pipeline.log import packages, say
from pipeline.report.duplicates import DuplicateRow, DuplicatesReport, render

_GROUPS, _ROWS = 20, 5  # groups that are shown, and rows of each
_PAIRS = 20  # pairs that are shown
_EDGES = (0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99, 0.999, 1.0001)  # cosines between which pairs are counted


def render_page(
    search: DuplicateSearch,
    compared: ComparedRows,
    ids: Ids,
    facts: Mapping[str, float],
    created: str,
) -> str:
    """Render the page with the texts of some rows. Texts that cannot be read are left out, with a message."""
    rows = _DescribedRows(search, ids)
    groups = compared.groups
    _, starts, sizes = np.unique(groups.firsts, return_index=True, return_counts=True)
    largest = np.argsort(-sizes, kind="stable")[:_GROUPS]
    shown = []
    for number in largest.tolist():
        start, size = int(starts[number]), int(sizes[number])
        members = slice(start, start + min(size, _ROWS))
        addresses = compared.addresses[groups.rows[members]]
        shown.append((size, rows.describe(addresses, compared.to_first[members])))
    nearest = np.argsort(compared.cosines, kind="stable")[:_PAIRS]
    lefts = rows.describe(compared.pairs.left[nearest], compared.cosines[nearest])
    rights = rows.describe(compared.pairs.right[nearest], compared.cosines[nearest])
    report = DuplicatesReport(
        created=created,
        facts=dict(facts),
        cosines=_count_cosines(compared.cosines, search.threshold),
        groups=tuple(shown),
        borderline=tuple(zip(lefts, rights, strict=True)),
        packages=packages("manta-embeddings", "faiss-cpu", "faiss-gpu", "numpy", "pyarrow", "scipy"),
    )
    return render(report)


def _count_cosines(cosines: np.ndarray, threshold: float) -> tuple[tuple[float, float, int], ...]:
    """Count pairs between cosines: (lowest, highest, count)."""
    edges = [threshold, *(edge for edge in _EDGES if edge > threshold)]
    counts, _ = np.histogram(cosines.astype(np.float64), [edges[0] - ROUNDING, *edges[1:]])
    return tuple(
        (low, min(1.0, high), int(count)) for low, high, count in zip(edges, edges[1:], counts, strict=False)
    )


class _DescribedRows:
    """Ids and texts of rows, as the page shows them."""

    def __init__(self, search: DuplicateSearch, ids: Ids) -> None:
        self._ids, self._texts = ids, Texts(search.store, search.manifest.units)
        self._has_texts = True

    def describe(self, addresses: np.ndarray, cosines: np.ndarray) -> tuple[DuplicateRow, ...]:
        """Return the rows of `addresses` (n,) with their cosines (n,)."""
        names = self._ids.take(addresses)["id"].to_pylist()
        texts = self._read(addresses)
        return tuple(
            DuplicateRow(str(name), text, float(cosine))
            for name, text, cosine in zip(names, texts, cosines, strict=True)
        )

    def _read(self, addresses: np.ndarray) -> list[str]:
        if self._has_texts:
            try:
                return [str(text) for text in self._texts.take(addresses).to_pylist()]
            except MissingTexts as error:
                self._has_texts = False
                say(f"the page shows no texts: {error}")
        return [""] * len(addresses)

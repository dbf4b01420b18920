"""Triples of natural-language inference, as supervised SimCSE trains on them (Gao et al. 2021, section 4)."""

from typing import ClassVar

import numpy as np

from pipeline.errors import ConfigError
from pipeline.settings.training import Values
from pipeline.text.pairs.builder import BUILDERS, Builder, BuiltTable
from pipeline.text.pairs.grouped import GroupedRows


@BUILDERS.register("nli")
class NliTriples(Builder):
    """One triple for each premise that has an entailed and a contradicting hypothesis.

    If several hypotheses have the same label, one is drawn. A premise makes no triple if the drawn hypotheses
    are equal, or equal to the premise.
    """

    columns: ClassVar[tuple[str, ...]] = ("premise", "hypothesis", "label")
    group: ClassVar[str] = "premise"
    within: ClassVar[str | None] = "label"
    text: ClassVar[str] = "hypothesis"
    needed: ClassVar[str] = "premises with an entailed and a contradicting hypothesis"

    neutral: bool = False
    """only premises that have a neutral hypothesis too, which is the column negative2"""

    @property
    def roles(self) -> dict[str, str]:
        """Label of the hypothesis in each column that is written."""
        kinds = {"positive": "entailment", "negative": "contradiction"}
        return kinds | ({"negative2": "neutral"} if self.neutral else {})

    def check(self, values: Values, where: str) -> None:
        wanted = self.roles.values()
        if not set(wanted) <= set(values.labels):
            raise ConfigError(
                f"{where}: labels",
                f"labels that include {', '.join(wanted)}",
                ", ".join(values.labels),
                "set pairs.data.values.labels, or give files with these labels",
            )

    def build(self, rows: GroupedRows) -> BuiltTable:
        premises = len(rows.sizes)
        first = {role: _first_hypotheses(rows, label) for role, label in self.roles.items()}
        complete = np.flatnonzero(np.all([hypotheses >= 0 for hypotheses in first.values()], axis=0))
        chosen = {role: hypotheses[complete] for role, hypotheses in first.items()}
        differs = rows.differ(
            ("premise", chosen["positive"]), *(("hypothesis", hypotheses) for hypotheses in chosen.values())
        )
        columns = {role: rows.texts("hypothesis", hypotheses[differs]) for role, hypotheses in chosen.items()}
        counts = {
            "premises": premises,
            "premises_without_every_label": premises - len(complete),
            "triples_with_equal_texts": int((~differs).sum()),
        }
        return BuiltTable({"anchor": rows.texts("premise", chosen["positive"][differs]), **columns}, counts)


def _first_hypotheses(rows: GroupedRows, label: str) -> np.ndarray:
    """(premises,) int64: the first row of each premise with the label; -1 for a premise without one."""
    labelled = np.flatnonzero(rows.within == rows.labels.index(label))
    premises, first = np.unique(rows.groups[labelled], return_index=True)
    hypotheses = np.full(len(rows.sizes), -1)
    hypotheses[premises] = labelled[first]
    return hypotheses

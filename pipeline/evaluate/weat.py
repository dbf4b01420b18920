"""Word Embedding Association Test: is one set of words nearer to some attributes than another set?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.source import RowOptions, TaskRoles
from pipeline.evaluate.vocabulary import missing_facts, missing_texts, missing_warnings
from pipeline.stats.correlation import is_constant
from pipeline.stats.geometry import unit_rows

TARGETS, ATTRIBUTES = ("X", "Y"), ("A", "B")
_SETS = (*TARGETS, *ATTRIBUTES)
_BATCH = 10_000  # permutations at once: 4 MB for 50 target words


class WeatOptions(RowOptions):
    """Options of tasks of kind "weat"; `split` selects one of several tests in a file."""

    permutations: int = Field(default=100_000, ge=100)
    """largest number of divisions of the target words for the p value; if there are fewer, all are used"""


@TASKS.register("weat")
@dataclass(frozen=True)
class WeatTask(EvaluationTask):
    """Association of two sets of target words with two sets of attribute words (Caliskan et al. 2017).

    Roles: text (words, or sentences as in May et al. 2019), set (X and Y for the targets, A and B for the
    attributes). The value is the effect size x100: positive if X is nearer to A, and Y nearer to B. It
    measures an association, not quality. Options: see WeatOptions.
    """

    kind: ClassVar[str] = "weat"
    description: ClassVar[str] = (
        "Association of two sets of words with two sets of attributes, in standard deviations x100: positive "
        "if X is nearer to A and Y to B, 0 without a difference. Neither sign is better."
    )
    quick: ClassVar[bool] = True
    roles: ClassVar[TaskRoles] = TaskRoles(("text", "set"))
    options_type: ClassVar[type[WeatOptions]] = WeatOptions
    score_settings: ClassVar[tuple[str, ...]] = ("seed",)
    options: WeatOptions

    def sets(self) -> dict[str, list[str]]:
        """Return the words of X, Y, A and B. Raises DataError for other sets or unsuitable words."""
        rows = self.file.rows()
        texts, (codes, names) = rows.texts("text"), rows.codes("set")
        if set(names) != {*_SETS} or (codes < 0).any():
            raise DataError(
                self.file.where,
                "the sets X, Y, A and B, one for every row",
                ", ".join(map(str, names)) + (" and rows without one" if (codes < 0).any() else ""),
                "correct the column `set`, or choose one test by the option `split`",
            )
        sets = {name: [texts[row] for row in np.flatnonzero(codes == names.index(name))] for name in names}
        for members in ([*sets["X"], *sets["Y"]], sets["A"], sets["B"]):
            if repeated := next((text for text in members if members.count(text) > 1), None):
                raise DataError(
                    self.file.where,
                    "different words in X and Y, in A, and in B",
                    f"{repeated!r} more than once",
                    "remove it, or choose one test by the option `split`",
                )
        if small := [name for name in TARGETS if len(sets[name]) < 2]:
            raise DataError(
                self.file.where, "at least two words in X and in Y", f"one in {small[0]}", "use more words"
            )
        return sets

    def sentences(self) -> Sequence[str]:
        sets = self.sets()
        return [text for name in _SETS for text in sets[name]]

    def score(self, vectors: Vectors) -> Score:
        sets, words = self.sets(), self.sentences()
        x = vectors_of(vectors, words, self.name)
        missing = missing_texts(words, x)
        ends = np.cumsum([len(sets[name]) for name in _SETS])[:-1]
        x_of = dict(zip(_SETS, np.split(x, ends), strict=True))
        first, second = (associations(x_of[name], x_of["A"], x_of["B"]) for name in TARGETS)
        effect = effect_size(first, second)
        p_value = permutation_p_value(first, second, self.options.permutations, self.settings.seed)
        is_flat = is_constant(np.r_[first, second])
        flat = f"{self.name}: every word of X and Y has the same association; the effect is given as 0"
        return Score(
            "effect size x100, WEAT (an association, no quality)",
            100 * effect,
            len(first) + len(second),
            metrics={
                "effect size": effect,
                "p value": p_value,
                "mean association of X": float(first.mean()),
                "mean association of Y": float(second.mean()),
            },
            facts={
                "words": {name: len(members) for name, members in sets.items()},
                "p_value": f"one-sided, at most {self.options.permutations:,} divisions of X and Y",
                "interval": "none: the p value says whether the effect may be due to chance",
                **missing_facts(missing),
            },
            warnings=(
                *((flat,) if is_flat else ()),
                *missing_warnings(self.name, missing, "their cosines with all words count as 0"),
            ),
        )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        """Return nan: the scores have no evidence to resample."""
        return float("nan")


def associations(words: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute s(w, A, B), the mean cosine with A minus the mean cosine with B: (n,) for words (n, d)."""
    cosines_a, cosines_b = (unit_rows(words) @ unit_rows(attributes).T for attributes in (a, b))
    return np.asarray(cosines_a.mean(axis=1) - cosines_b.mean(axis=1))


def effect_size(first: np.ndarray, second: np.ndarray) -> float:
    """Return mean(first) - mean(second), divided by the standard deviation of all values; 0 if all are equal.

    The standard deviation has the denominator n - 1, as in the code of May et al. 2019.
    """
    both = np.r_[first, second]
    return 0.0 if is_constant(both) else float((first.mean() - second.mean()) / both.std(ddof=1))


def permutation_p_value(first: np.ndarray, second: np.ndarray, permutations: int, seed: int) -> float:
    """Compute the one-sided p value of the difference of means, by a permutation test.

    It is the proportion of divisions of the words of X and Y into two sets of the same sizes whose difference
    is at least the observed one. If there are at most `permutations` divisions, all are counted; else
    `permutations` random ones and the observed one.
    """
    from scipy.stats import permutation_test  # takes a second to import

    test = permutation_test(
        (first, second),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        vectorized=True,
        n_resamples=permutations,
        batch=_BATCH,
        alternative="greater",
        random_state=np.random.default_rng(seed),
    )
    return float(test.pvalue)

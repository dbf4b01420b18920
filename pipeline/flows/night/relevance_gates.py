"""The gates of gates.relevance, with sentences about their values."""

from typing import NamedTuple

from pipeline.evaluate.bootstrap import ScoreEstimate
from pipeline.evaluate.relevance import RESAMPLES, SEED, RelevanceScores, ScoreChange
from pipeline.settings import RelevanceSettings
from pipeline.store.manifest import RELEVANCE, RELEVANCE_CHANGE, Gate


class Omitted(NamedTuple):
    """Relevant ids that are not in the corpus.

    Attributes:
        ids: number of different ids in the file.
        missing: number of these that are not in the corpus.
        queries: number of queries that are left out, because none of their ids is in the corpus.
    """

    ids: int = 0
    missing: int = 0
    queries: int = 0

    @property
    def sentence(self) -> str:
        """A clause about what is missing; empty if nothing is."""
        if not self.missing:
            return ""
        left_out = f"; queries that have no other, left out: {self.queries:,}" if self.queries else ""
        return f"; relevant ids that are not in the corpus: {self.missing:,} of {self.ids:,}{left_out}"


def relevance_gates(
    settings: RelevanceSettings,
    scores: RelevanceScores,
    omitted: Omitted,
    previous: int | None,
    change: ScoreChange | None,
) -> dict[str, Gate]:
    """Return the gates by name.

    Args:
        previous: number of the previous release; None for the first.
        change: the change since then; None if there is nothing to compare with.
    """
    gates = {RELEVANCE: _value_gate(settings.at_least, scores, omitted)}
    if settings.not_below is not None and previous is not None:
        gates[RELEVANCE_CHANGE] = _change_gate(scores, previous, change)
    return gates


def _value_gate(at_least: float | None, scores: RelevanceScores, omitted: Omitted) -> Gate:
    """Return the gate on the value, which only reports it without a bound."""
    measured = scores.estimate()
    value = measured.value
    assert value is not None  # the file has different scores
    bound = "reported only" if at_least is None else f"{at_least:g} at least"
    sentence = (
        f"{scores.metric} of {len(scores.keys):,} {scores.unit} of gates.relevance is {value:.4f}"
        f"{_interval(measured)}, {bound}{omitted.sentence}"
    )
    return Gate(
        value=value, threshold=at_least, passed=at_least is None or value >= at_least, sentence=sentence
    )


def _change_gate(scores: RelevanceScores, previous: int, change: ScoreChange | None) -> Gate:
    """Return the gate on the difference, which fails only if the whole interval is below 0."""
    if change is None or change.difference.value is None:
        sentence = (
            f"{scores.metric} is not compared: release {previous} has no scores of these {scores.unit}; the "
            "next release will be compared with this one"
        )
        return Gate(value=None, threshold=0, passed=True, sentence=sentence)
    difference, shared = change.difference, len(change.keys)
    assert difference.value is not None
    of_all = "" if shared == len(scores.keys) else f" of {len(scores.keys):,}"
    sentence = (
        f"{scores.metric} of {shared:,}{of_all} {scores.unit}, which release {previous} has too, changed by "
        f"{difference.value:+.4f}{_interval(difference)}, 0 at least within it ({RESAMPLES:,} paired "
        f"resamples, seed {SEED})"
    )
    return Gate(value=difference.value, threshold=0, passed=not change.is_worse, sentence=sentence)


def _interval(measured: ScoreEstimate) -> str:
    interval = measured.interval(lambda value: "" if value is None else f"{value:.4f}")
    return f" (95 % interval {interval})" if interval else ""

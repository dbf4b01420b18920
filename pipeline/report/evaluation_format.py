"""Scores with intervals, and their formats."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoreEstimate:
    """A value with its 95 % interval; None if it is undefined or has no interval."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def score(value: float | None) -> str:
    """Format with two decimals and a true minus."""
    return "not defined" if value is None else f"{value:.2f}".replace("-", "\u2212")


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}".replace("-", "\u2212") if round(value, 2) else "0.00"


def interval(figure: ScoreEstimate) -> str:
    """Format an interval: 70.12 to 74.40; empty if there is none."""
    if figure.low is None or figure.high is None:
        return ""
    return f"{score(figure.low)} to {score(figure.high)}"


def signed_interval(figure: ScoreEstimate) -> str:
    """Format a signed interval: −1.20 to +0.40; empty if there is none."""
    if figure.low is None or figure.high is None:
        return ""
    return f"{signed(figure.low)} to {signed(figure.high)}"

"""Render the page that compares the answers of a service with those of its shadow, from its values alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.report.page import render_template


class ShadowRow(NamedTuple):
    """One measured number."""

    label: str
    value: str
    interval: str
    """its 95 % interval"""


@dataclass(frozen=True, kw_only=True)
class ShadowPage:
    """Values of the page."""

    name: str
    """release or candidate of the shadow"""
    compared_with: int
    """number of the release that answers"""
    state: str
    """a sentence"""
    verdict: str
    """a sentence"""
    rows: Sequence[ShadowRow]
    outcomes: Mapping[str, int]
    """number of requests by outcome"""


def render_shadow(page: ShadowPage) -> str:
    """Render the page; all texts are escaped."""
    return render_template("shadow.html.j2", {}, page=page)

"""Render the page on which people look at a corpus (a search, its answers, a map) from its values alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from markupsafe import Markup

from pipeline.charts.frame import shorten
from pipeline.report.page import render_template

_MAX_TEXT = 600  # characters of an answer's text


class Question(NamedTuple):
    """A question that a person asked on the page."""

    q: str = ""
    """the text of a query"""
    near: str = ""
    """id of a row whose neighbours are wanted"""
    where: str = ""
    """a filter"""
    k: int = 10
    """answers"""
    group: bool = False
    """answer with documents"""


@dataclass(frozen=True, kw_only=True)
class ExplorePage:
    """Values of the page."""

    root: str
    """URI of the root"""
    release: int
    """number of the release"""
    rows: int
    """number of the live rows that can be found"""
    is_limited: bool
    """whether a filter limits the rows, so that maps and reports, which show all of them, are left out"""
    published: str
    """date and time of its publication"""
    encoder: str
    """name of the encoder"""
    has_chunks: bool
    """whether answers can be documents"""
    columns: Sequence[str]
    """kept columns"""
    question: Question
    """what was asked"""
    answers: Sequence[Mapping[str, Any]] | None = None
    """rows of the answer, best first; None if nothing was asked"""
    problem: str = ""
    """why there is no answer"""
    seconds: float = 0.0
    """duration of the search"""


@dataclass(frozen=True, kw_only=True)
class MapPage:
    """Values of the page of the map."""

    release: int
    """number of the release"""
    rows: int
    """number of the release's live rows"""
    method: str
    """UMAP or PCA"""
    variance: float | None
    """proportion of the vectors' variance that PCA shows; None for UMAP"""
    shown: int
    """number of points"""
    columns: Sequence[str]
    """columns that colours can show"""
    colour: str
    """the column that the colours show; empty for none"""
    labels: Sequence[str]
    """label of each colour"""
    chart: Markup
    """the map"""


def render(page: ExplorePage) -> str:
    """Render the page of a search; all texts are escaped."""
    return render_template("explore.html.j2", {"excerpt": _excerpt}, page=page)


def render_map(page: MapPage) -> str:
    """Render the page of the map."""
    return render_template("plane.html.j2", {}, page=page)


@lru_cache(1)  # many requests may wait for one map
def render_map_wait(release: int) -> str:
    """Render the page that is shown while the map of a release is drawn."""
    return render_template("plane_wait.html.j2", {}, release=release)


def _excerpt(value: Any) -> str:
    """Return a value as one line of limited length."""
    return "" if value is None else shorten(" ".join(str(value).split()), _MAX_TEXT)

"""Render the page on which people look at a corpus: a search, its answers, and a map."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from markupsafe import Markup

from pipeline.charts.frame import shorten
from pipeline.report.page import render_template

_MAX_TEXT = 600  # characters of an answer's text


class Question(NamedTuple):
    """A question that a person asked on the page.

    Attributes:
        q: the text of a query.
        near: id of a row whose neighbours are wanted.
        where: a filter.
        k: answers.
        group: answer with documents.
    """

    q: str = ""
    near: str = ""
    where: str = ""
    k: int = 10
    group: bool = False


@dataclass(frozen=True, kw_only=True)
class ExplorePage:
    """Values of the page.

    Attributes:
        root: URI of the root.
        release: number of the release.
        rows: its live rows.
        published: date and time.
        encoder: name of the encoder.
        has_chunks: whether answers can be documents.
        columns: kept columns.
        question: what was asked.
        answers: rows of the answer, best first; None if nothing was asked.
        problem: why there is no answer.
        seconds: duration of the search.
    """

    root: str
    release: int
    rows: int
    published: str
    encoder: str
    has_chunks: bool
    columns: Sequence[str]
    question: Question
    answers: Sequence[Mapping[str, Any]] | None = None
    problem: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MapPage:
    """Values of the page of the map.

    Attributes:
        release: number of the release.
        rows: its live rows.
        method: UMAP or PCA.
        variance: proportion of the vectors' variance that PCA shows; None for UMAP.
        shown: number of points.
        columns: columns that colours can show.
        colour: the column that they show; empty for none.
        labels: label of each colour.
        chart: the map.
    """

    release: int
    rows: int
    method: str
    variance: float | None
    shown: int
    columns: Sequence[str]
    colour: str
    labels: Sequence[str]
    chart: Markup


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

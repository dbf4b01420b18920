"""Render the page of a search for a template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.evaluate.template_search import SearchStep, TemplateScore
from pipeline.report.evaluation_report import Section
from pipeline.report.formats import two_decimals
from pipeline.report.page import render_template

_NOTES = {
    "relation": "Words between text and mask, with the first of the wrappers. The best ones are kept.",
    "wrapper": "Words around the text, with the best relation.",
    "others": "Templates that the settings name, as they are.",
    "generated": "Templates that a T5 proposed for words and their definitions, the most probable first.",
}


@dataclass(frozen=True, kw_only=True)
class TemplateReport:
    """Values of the page."""

    encoder: str
    """path of the encoder"""
    created: str
    """date and time, as shown on the page"""
    pairs: int
    """number of pairs with human scores"""
    source: str
    """name of the pairs"""
    steps: tuple[SearchStep, ...]
    """steps of the search"""
    best: TemplateScore
    """best template of all steps"""
    settings: str
    """settings as YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)
    """versions of packages"""


def render(report: TemplateReport) -> str:
    """Render the page; all texts are escaped."""
    return render_template(
        "templates.html.j2", {"score": two_decimals}, report=report, sections=sections(report.steps)
    )


def sections(steps: Sequence[SearchStep]) -> list[Section]:
    """Build the table of each step. The best template of a step is marked by a star."""
    return [
        Section(
            f"Step {number}: {step.name}",
            table=(
                ("template", "Spearman x100", "best"),
                *(
                    (each.template, two_decimals(each.score), "*" if each is step.best else "")
                    for each in step.scores
                ),
            ),
            notes=(_NOTES[step.name],),
        )
        for number, step in enumerate(steps, 1)
    ]

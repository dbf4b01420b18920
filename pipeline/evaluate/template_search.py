"""Search for the template whose mask token represents a text best (Jiang et al. 2022, PromptBERT)."""

from collections.abc import Callable, Sequence

from pipeline.config import Settings
from pipeline.settings import TemplateSettings
from pipeline.store.stored import Stored

ScoreTemplates = Callable[[str, Sequence[str]], Sequence[float]]
"""maps the name of a step and its templates to their scores; higher is better"""


class TemplateScore(Stored):
    """A template, and Spearman x100 of its vectors' cosines with human scores."""

    template: str
    score: float


class SearchStep(Settings):
    """The templates of one step of a search, in the order of the settings."""

    name: str
    scores: tuple[TemplateScore, ...]

    @property
    def best(self) -> TemplateScore:
        """The template of the highest score; the first of equal ones."""
        return max(self.scores, key=lambda each: each.score)


def search_greedily(settings: TemplateSettings, score: ScoreTemplates) -> tuple[SearchStep, ...]:
    """Choose the words between text and mask first, then the words around the text.

    The relations are tried with the first wrapper, the wrappers with the best relation, and the further
    templates as they are.

    Returns:
        The steps that have templates, in order.
    """
    first, *_ = settings.wrappers
    templates = [_template(first, relation, settings.ending) for relation in settings.relations]
    relations = _step("relation", templates, score)
    relation = settings.relations[relations.scores.index(relations.best)]
    templates = [_template(wrapper, relation, settings.ending) for wrapper in settings.wrappers]
    steps = [relations, _step("wrapper", templates, score)]
    if settings.others:
        steps.append(_step("others", settings.others, score))
    return tuple(steps)


def best_of(steps: Sequence[SearchStep]) -> TemplateScore:
    """Return the template of the highest score of all steps; the first of equal ones."""
    return max((step.best for step in steps), key=lambda each: each.score)


def _template(wrapper: str, relation: str, ending: str) -> str:
    return " ".join(part for part in (wrapper, relation, "[MASK]") if part) + ending


def _step(name: str, templates: Sequence[str], score: ScoreTemplates) -> SearchStep:
    distinct = list(dict.fromkeys(templates))
    values = score(name, distinct)
    return SearchStep(
        name=name,
        scores=tuple(
            TemplateScore(template=template, score=value)
            for template, value in zip(distinct, values, strict=True)
        ),
    )

"""Search for the template whose mask token represents a text best (Jiang et al. 2022, PromptBERT)."""

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.config import Settings
from pipeline.errors import DataError
from pipeline.evaluate.source import TaskRoles, open_file
from pipeline.models.translation.definitions import Definition
from pipeline.settings import GeneratorSettings, TaskSettings, TemplateSettings
from pipeline.store.files.open_store import store_of
from pipeline.store.records.sealed_json import Stored

ScoreTemplates = Callable[[str, Sequence[str]], Sequence[float]]
"""maps the name of a step and its templates to their scores; higher is better"""


class TemplateScore(Stored):
    """A template, and Spearman x100 of its vectors' cosines with human scores."""

    template: str
    score: float


class GeneratedTemplates(Stored):
    """Templates that a T5 has proposed, the most probable first."""

    templates: tuple[str, ...]


class SearchStep(Settings):
    """One step of a search: its templates with their scores, in the order of the settings."""

    name: str
    scores: tuple[TemplateScore, ...]

    @property
    def best(self) -> TemplateScore:
        """The template with the highest score; the first of several with equal scores."""
        return max(self.scores, key=lambda each: each.score)


def search_greedily(
    settings: TemplateSettings, score: ScoreTemplates, generated: Sequence[str] = ()
) -> tuple[SearchStep, ...]:
    """Choose the words between text and mask first, then the words around the text.

    All relations are tried with the first wrapper, then all wrappers with the best relation. Given and
    generated templates are tried as they are.

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
    if generated:
        steps.append(_step("generated", generated, score))
    return tuple(steps)


def read_definitions(settings: GeneratorSettings) -> list[Definition]:
    """Read words with definitions for a generator, and draw `settings.examples` of them with its seed.

    Rows without a word or a definition are left out.

    Raises:
        DataError: the file cannot be read, or has no usable row.
    """
    source = TaskSettings(kind="definitions", uri=settings.definitions)
    rows = open_file(source, *store_of(settings.definitions), TaskRoles(("word", "definition"))).rows()
    pairs = zip(rows.texts("word"), rows.texts("definition"), strict=True)
    found = [Definition(word.strip(), text.strip()) for word, text in pairs if word.strip() and text.strip()]
    if not found:
        raise DataError(rows.where, "words with definitions", f"{len(rows)} rows, none with both", "add some")
    drawn = np.random.default_rng(settings.seed).permutation(len(found))[: settings.examples]
    return [found[index] for index in np.sort(drawn)]


def best_of(steps: Sequence[SearchStep]) -> TemplateScore:
    """Return the template with the highest score of all steps; the first of several with equal scores."""
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

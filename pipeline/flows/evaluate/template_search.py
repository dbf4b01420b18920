"""Search for the best template of an encoder. Workers score templates; later searches reuse the scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.config import digest_of, to_yaml
from pipeline.device import resolve
from pipeline.errors import DataError, ModelError
from pipeline.evaluate.mask_words import pair_correlation
from pipeline.evaluate.template_search import (
    GeneratedTemplates,
    SearchStep,
    TemplateScore,
    best_of,
    read_definitions,
    search_greedily,
)
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.evaluate.candidates import evaluations_store
from pipeline.flows.evaluate.geometry import human_scored_pairs
from pipeline.flows.night.candidate import PACKAGES
from pipeline.flows.workers.cluster import connect, is_local, local_workers
from pipeline.flows.workers.tasks import PlainTask
from pipeline.flows.workers.worker_encoder import gpu_assigned, worker_encoder
from pipeline.log import Stages, packages
from pipeline.models.folder.folder import announce_warnings, open_folder
from pipeline.models.folder.locate import absolute_path
from pipeline.models.translation.definitions import Definition
from pipeline.models.translation.seq2seq import open_translator
from pipeline.report.template_search import TemplateReport, render
from pipeline.settings import EncoderSettings, EncodeSettings, GeneratorSettings, Job, TemplateSettings
from pipeline.settings.augment import TranslatorSettings
from pipeline.stats.space import ScoredPairs
from pipeline.store.files.base import Store
from pipeline.store.records.write_once import load_or_make

_VERSION = 1  # version of the measurement; raise it to measure again


@dataclass(frozen=True)
class TemplateSearch:
    """The result of a search."""

    id: str
    """digest of encoder, pairs and settings of the search, equal for equal searches"""
    store: Store
    """store of the evaluations"""
    encoder: str
    """path of the encoder"""
    pairs: int
    """number of pairs with human scores"""
    source: str
    """name of the pairs"""
    steps: tuple[SearchStep, ...]
    """the steps with their templates"""
    best: TemplateScore
    """the best template of all steps"""
    settings: str
    """settings of the job, as YAML"""
    packages: dict[str, str]
    """versions of packages"""


@dataclass(frozen=True, eq=False)
class ScoreTemplate(PlainTask[str, TemplateScore]):
    """Score a template by Spearman's correlation of its vectors' cosines with human scores."""

    store: Store
    """store of the scores"""
    encoder: EncoderSettings
    """settings of the encoder, without a template"""
    encode: EncodeSettings
    """numerical settings"""
    pairs: ScoredPairs
    """the pairs"""
    digest: str
    """digest of the encoder and the pairs, which with the template determine the score"""

    def work(self, template: str) -> TemplateScore:
        path = f"templates/{self.digest[:16]}/{digest_of([template])[:32]}.json"
        return load_or_make(self.store, path, TemplateScore, lambda: self._score(template))

    def _score(self, template: str) -> TemplateScore:
        encoder = worker_encoder(self.encoder.model_copy(update={"template": template}), self.encode)
        sentences = self.pairs.sentences
        row = {text: index for index, text in enumerate(sentences)}
        vectors = encoder.encode(sentences)
        left, right = (vectors[[row[text] for text in side]] for side in (self.pairs.left, self.pairs.right))
        return TemplateScore(template=template, score=pair_correlation(left, right, self.pairs.gold))


@dataclass(frozen=True, eq=False)
class GenerateTemplates(PlainTask[int, GeneratedTemplates]):
    """Let a T5 propose templates for definitions of words."""

    store: Store
    """store of the result"""
    path: str
    """path of the result"""
    generator: GeneratorSettings
    """settings of the generator"""
    definitions: tuple[Definition, ...]
    """the definitions"""
    encode: EncodeSettings
    """device and threads"""

    def work(self, _: int) -> GeneratedTemplates:
        return load_or_make(self.store, self.path, GeneratedTemplates, self._generate)

    def _generate(self) -> GeneratedTemplates:
        from pipeline.models.layers.numerics import use_threads
        from pipeline.models.translation.span_filling import SpanFilling

        generator, device = self.generator, resolve(self.encode.device, float(gpu_assigned()))
        with use_threads(self.encode.threads):
            filling = SpanFilling(generator.path, self.definitions, device)
            found = filling.templates(generator.candidates, generator.beams, generator.max_tokens)
        return GeneratedTemplates(templates=tuple(found))


def search_template(job: Job, stages: Stages, *, verbose: bool = False) -> TemplateSearch:
    """Search for the best template of the job's encoder on pairs with human scores.

    Raises:
        DataError: there are no pairs.
        ModelError: the encoder cannot be used, or has no mask token.
    """
    store, root = evaluations_store(job)
    announce_warnings(open_folder(job.encoder))
    sample = human_scored_pairs(job)
    if (pairs := sample.pairs) is None:
        raise DataError(
            "search-template",
            "pairs with human scores, on which templates are compared",
            f"none: {sample.reason}",
            "set evaluate.tasks to a folder with STS-B, or evaluate.own to your own pairs of kind sts",
        )
    settings = job.evaluate.templates
    encoder = job.encoder.model_copy(update={"template": None, "pooling": None})
    _check_mask(encoder, settings)
    digest = _digest(encoder, job.encode, pairs)
    templates = len(settings.relations) + len(settings.wrappers) + len(settings.others)
    if (generator := settings.generator) is not None:
        definitions = tuple(read_definitions(generator))
        templates += generator.candidates
    small = is_local(job.cluster) and templates * len(pairs.sentences) <= job.cluster.small_rows
    with (
        local_workers(small, job.cluster.patience_s) as local,
        connect(job.cluster, stages, verbose=verbose, local=local, stores={root: store}) as workers,
    ):
        context = FlowContext(job, store, workers, stages)
        encode = workers.encode_settings(job.encode)
        task = ScoreTemplate(store, encoder_for_workers(encoder, store, workers), encode, pairs, digest)
        generated = _generate(context, generator, definitions, encode) if generator is not None else ()
        steps = search_greedily(settings, partial(_score_all, context, task), generated)
    return TemplateSearch(
        id=digest_of([_VERSION, digest, settings.model_dump(mode="json")])[:24],
        store=store,
        encoder=job.encoder.path,
        pairs=len(pairs.gold),
        source=sample.source,
        steps=steps,
        best=best_of(steps),
        settings=to_yaml(job),
        packages=packages(*PACKAGES),
    )


def _generate(
    context: FlowContext,
    generator: GeneratorSettings,
    definitions: tuple[Definition, ...],
    encode: EncodeSettings,
) -> tuple[str, ...]:
    """Let one worker generate templates, or load those that an earlier search with the same T5 generated."""
    model = open_translator(TranslatorSettings(path=generator.path)).digests()
    limits = [generator.candidates, generator.beams, generator.max_tokens]
    drawn = [[each.word, each.definition] for each in definitions]
    path = f"templates/generated/{digest_of([_VERSION, model, limits, drawn])[:32]}.json"
    generator = generator.model_copy(update={"path": absolute_path(generator.path)})
    task = GenerateTemplates(context.store, path, generator, definitions, encode)
    with context.stages("generate templates", 1, "model") as bar:
        ((_, generated),) = context.workers.map_units(task, [0], context.workers.pool(context.job.cluster, 1))
        bar.add(1)
    return generated.templates


def _score_all(context: FlowContext, task: ScoreTemplate, name: str, templates: Sequence[str]) -> list[float]:
    """Score the templates of one step on the workers."""
    pool = context.workers.pool(context.job.cluster, len(templates))
    scores = dict[int, float]()
    with context.stages(f"score: {name}", len(templates), "templates") as bar:
        for number, result in context.workers.map_units(task, templates, pool):
            scores[number] = result.score
            bar.add(1)
    return [scores[number] for number in range(len(templates))]


def _check_mask(encoder: EncoderSettings, settings: TemplateSettings) -> None:
    """Raise ModelError, before a worker starts, if the encoder cannot read a text in a template."""
    first = f"{settings.wrappers[0]} [MASK]{settings.ending}"
    try:
        open_folder(encoder.model_copy(update={"template": first})).tokenizer()
    except ModelError as error:
        remedy = "set encoder.path to a masked language model"
        raise ModelError("encoder.path", error.expected, error.found, remedy) from None


def _digest(encoder: EncoderSettings, encode: EncodeSettings, pairs: ScoredPairs) -> str:
    """Return a digest of everything but the template that determines a score."""
    return digest_of(
        [
            _VERSION,
            open_folder(encoder).space_id,
            encode.dtype,
            pairs.left,
            pairs.right,
            pairs.gold.tolist(),
        ]
    )


def store_page(search: TemplateSearch, created: str) -> str:
    """Store the page of a search, and return its URI.

    Args:
        search: the result.
        created: date and time, as shown on the page.
    """
    report = TemplateReport(
        encoder=search.encoder,
        created=created,
        pairs=search.pairs,
        source=search.source,
        steps=search.steps,
        best=search.best,
        settings=search.settings,
        packages=search.packages,
    )
    path = f"templates/{search.id}/report.html"
    search.store.write(path, render(report).encode())
    return search.store.uri_of(path)

"""Measure the geometry of candidates on sentences of the corpus and on pairs with human scores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import DataError, ModelError
from pipeline.evaluate.sts import StsOptions, StsTask
from pipeline.evaluate.tasks import task_of_file
from pipeline.flows.context import FlowContext
from pipeline.flows.corpus import corpus_of, open_releases
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.encode.trial_encode import SampleTexts, sample_texts
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.sentences import clean_sentences
from pipeline.flows.night.previous_release import load_previous
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import PlainTask
from pipeline.flows.workers.worker_encoder import worker_encoder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.vectorfile import word2vec_text
from pipeline.settings import EncoderSettings, EncodeSettings, GeometrySettings, Job, TaskSettings
from pipeline.stats.contextuality import MAX_STATE_BYTES, LayerStates, gather_states, static_vector
from pipeline.stats.encoder_geometry import (
    RAW,
    EncoderGeometry,
    GeometryReport,
    Level,
    NamedLayers,
    NamedSpace,
    StaticWords,
    measure_layer,
)
from pipeline.stats.frequency import frequency_bands
from pipeline.stats.lexical import rank_correlation
from pipeline.stats.occurrences import Occurrences, Tokenized, choose_occurrences
from pipeline.stats.space import POSITIVE, ScoredPairs, Space, sentence_space, with_pairs, word_metrics
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import load_or_make, store_by_content
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.transforms.transform import Transform, load_transform

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder
    from pipeline.models.inference.hidden_states import HiddenStates


def store_static_words(
    store: Store, layers: Sequence[LayerStates], chosen: Occurrences, words: dict[int, str]
) -> tuple[FileRef, ...]:
    """Store the static vectors of words, one file in word2vec's text form for each layer.

    Args:
        store: store of the evaluation.
        layers: accumulated states of the layers.
        chosen: the occurrences whose states the layers hold.
        words: words to store, by their number in `chosen.words`; at least one.
    """
    return tuple(
        store_by_content(
            store,
            word2vec_text(
                list(words.values()),
                np.stack([static_vector(layer.occurrences[chosen.words[word]]) for word in words]),
            ),
            f"geometry/words/layer-{number}",
            ".txt",
            rows=len(words),
        )
        for number, layer in enumerate(layers)
    )


def storable_words(names: Sequence[str], is_whole: np.ndarray) -> dict[int, str]:
    """Return the printable whole words among m tokens by token number, each spelling once.

    Args:
        names: spellings of the tokens.
        is_whole: (m,) bool; pieces that continue a word are left out, because no text has them as a word.
    """
    numbers = {
        name: number
        for number, name in enumerate(names)
        if is_whole[number] and name.isprintable() and name and "\ufffd" not in name and " " not in name
    }
    return {number: name for name, number in numbers.items()}


_VERSION = 3  # version of the measurement; raise it to measure again


@dataclass(frozen=True)
class EncoderToMeasure:
    """An encoder and the transforms to apply to its vectors, by transform_id."""

    encoder: EncoderSettings
    space_id: str
    transforms: Mapping[str, FileRef]


@dataclass(frozen=True, eq=False)
class MeasureEncoder(PlainTask[EncoderToMeasure, EncoderGeometry]):
    """Measure one encoder on sampled texts and on pairs of known similarity. Stored results are reused."""

    store: Store
    encode: EncodeSettings
    settings: GeometrySettings
    texts: tuple[str, ...]
    pairs: ScoredPairs | None

    def work(self, target: EncoderToMeasure) -> EncoderGeometry:
        pairs = None if self.pairs is None else [self.pairs.left, self.pairs.right, self.pairs.gold.tolist()]
        digest = digest_of(
            [
                _VERSION,
                target.space_id,
                sorted(target.transforms),
                self.settings.model_dump(mode="json"),
                self.texts,
                pairs,
                self.encode.dtype,
            ]
        )
        return load_or_make(
            self.store, f"geometry/{digest[:24]}.json", EncoderGeometry, lambda: self._measure(target)
        )

    def _measure(self, target: EncoderToMeasure) -> EncoderGeometry:
        encoder = worker_encoder(target.encoder, self.encode)
        transforms = {name: load_transform(file.read(self.store)) for name, file in target.transforms.items()}
        hidden_states = encoder.hidden_states()
        tokens = hidden_states.tokens(self.texts)
        word_ids, counts = np.unique(tokens.ids[hidden_states.words(tokens).is_word], return_counts=True)
        table = hidden_states.table(word_ids)
        words, missing = word_metrics(table, counts, self.settings.neighbours)
        bands, without_bands = frequency_bands(table, counts)
        missing |= without_bands
        if not hidden_states.layers:
            missing["layers"] = "an average of word vectors has none"
        levels, static_words = self._levels(hidden_states) if hidden_states.layers else ((), ())
        if levels and self.settings.static_words and not static_words:
            missing["static_words"] = f"no whole word occurs in {self.settings.contexts} of the sentences"
        return EncoderGeometry(
            space_id=target.space_id,
            spaces=self._spaces(encoder, transforms),
            levels=levels,
            words=words,
            bands=bands,
            static_words=static_words,
            missing=missing,
        )

    def _spaces(self, encoder: "Encoder", transforms: Mapping[str, Transform]) -> dict[str, Space]:
        """Encode every text once, then measure the raw vectors and the vectors after each transform."""
        vectors, settings = encoder.encode(self.texts), self.settings
        pair_vectors = encoder.encode(self.pairs.sentences) if self.pairs else None
        functions: dict[str, Callable[[np.ndarray], np.ndarray]] = {RAW: lambda x: x, **transforms}
        spaces = {}
        for name, function in functions.items():
            spaces[name] = sentence_space(function(vectors), self.texts, settings.neighbours, settings.seed)
            if self.pairs is not None and pair_vectors is not None:
                spaces[name] = with_pairs(spaces[name], function(pair_vectors), self.pairs, settings.seed)
        # Only the raw vectors get this note: a transform may map the zero vector to another vector.
        if zeros := int((~vectors.any(axis=1)).sum()):
            reason = (
                f"{zeros:,} of {len(vectors):,} sampled texts have the zero vector, such as those without "
                "any known word: their cosines count as 0"
            )
            spaces[RAW] = spaces[RAW].model_copy(
                update={"missing": {**spaces[RAW].missing, "direction": reason}}
            )
        return spaces

    def _levels(self, hidden_states: "HiddenStates") -> tuple[tuple[Level, ...], tuple[FileRef, ...]]:
        """Measure each layer, on so few sentences and words that their states fit in memory.

        Returns:
            The layers, and the static word vectors of each layer if they are requested.
        """
        max_sentences = max(2, MAX_STATE_BYTES // (4 * hidden_states.width * (hidden_states.layers + 1)))
        tokens = hidden_states.tokens(self.texts[:max_sentences])
        words, settings = hidden_states.words(tokens), self.settings
        chosen = choose_occurrences(
            words, min_texts=settings.contexts, pairs=settings.pairs, limit=max_sentences, seed=settings.seed
        )
        layers = gather_states(hidden_states.states(tokens), words, chosen)
        first_tokens = [chosen.token_indices[word[0]] for word in chosen.words]
        word_ids = words.ids[np.array(first_tokens, np.int64)]
        names, static_words = hidden_states.spellings(word_ids), tuple[FileRef, ...]()
        if settings.static_words and (storable := storable_words(names, hidden_states.whole_words(word_ids))):
            static_words = store_static_words(self.store, layers, chosen, storable)
        positives = self._positives(hidden_states, max_sentences)
        levels = tuple(
            measure_layer(
                number,
                layer,
                chosen,
                names,
                positives[number] if positives else None,
                seed=settings.seed,
                mev=settings.mev,
            )
            for number, layer in enumerate(layers)
        )
        return levels, static_words

    def _positives(
        self, hidden_states: "HiddenStates", max_sentences: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Compute the mean states of pairs of equal meaning. No words are chosen: only the means are used.

        Returns:
            For each layer the mean-pooled states of the first and of the second sentences; [] without pairs.
        """
        if (pairs := self.pairs) is None or not (pairs.gold > POSITIVE).any():
            return []
        positive_rows = np.flatnonzero(pairs.gold > POSITIVE)[: max_sentences // 2]
        sides = (pairs.left, pairs.right)
        tokens = hidden_states.tokens([side[row] for side in sides for row in positive_rows])
        no_words = np.zeros(0, np.int64)
        layers = gather_states(
            hidden_states.states(tokens),
            Tokenized(tokens.ids, tokens.offsets, np.zeros(len(tokens.ids), dtype=bool)),
            Occurrences(no_words, (), np.zeros((0, 2), np.int64), random=no_words, compared=0),
        )
        return [(layer.means[: len(positive_rows)], layer.means[len(positive_rows) :]) for layer in layers]


_PAIR_FILES = ("sts/STSB-dev.parquet", "sts/STSB-test.parquet")
_MAXIMUM = 5.0  # highest human score of STS-B
_MIN_TEXTS = 10  # with fewer texts no metric is meaningful
_WITHOUT_STATES = {"dan": "a deep averaging network", "paragraph": "paragraph vectors"}  # by family


@dataclass(frozen=True)
class Sample:
    """Texts or pairs on which geometry is measured."""

    texts: tuple[str, ...] = ()
    pairs: ScoredPairs | None = None
    source: str = ""
    """name of the corpus or task that the sample is from"""
    reason: str | None = None
    """why there are no texts or pairs, or too few texts"""


def check_hidden_states(candidates: Sequence[ResolvedCandidate]) -> None:
    """Raise ModelError, before anything is encoded, for a candidate whose tokens have no states to read."""
    for candidate in candidates:
        folder = open_folder(candidate.encoder)
        found = f"{len(folder.parts)} encoders side by side" if folder.parts else None
        if found := found or _WITHOUT_STATES.get(folder.family):
            raise ModelError(
                f"evaluate --geometry: {candidate.name}",
                "an encoder whose tokens have hidden states",
                found,
                "leave this candidate out, or evaluate without --geometry",
            )


def measure_geometry(context: FlowContext, candidates: Sequence[ResolvedCandidate]) -> GeometryReport:
    """Measure the geometry of every candidate, with and without its transform.

    Texts come from the corpus; if it is missing or has too few texts, from the pairs. Results of an earlier
    run are reused.

    Raises:
        DataError: there are neither enough texts in a corpus nor a task with pairs.
    """
    job, store, workers = context.job, context.store, context.workers
    settings, pairs = job.evaluate.geometry, human_scored_pairs(job)
    with context.stages("geometry", unit="encoders") as bar:
        texts = _sample_corpus(job, workers)
        if len(texts.texts) < _MIN_TEXTS:
            texts = _texts_of_pairs(texts, pairs, settings)
        encoders = list(_encoders(candidates, store, workers))
        task = MeasureEncoder(store, workers.encode_settings(job.encode), settings, texts.texts, pairs.pairs)
        results = dict(workers.map_units(task, encoders, workers.pool(job.cluster, len(encoders))))
        bar.add(len(encoders))
    by_space = {encoder.space_id: results[number] for number, encoder in enumerate(encoders)}
    scored = pairs.pairs
    return GeometryReport(
        sentences=len(texts.texts),
        source=texts.source,
        pairs=len(scored.gold) if scored else 0,
        pairs_source=pairs.source or None,
        seed=settings.seed,
        neighbours=settings.neighbours,
        edit_unit=settings.edit_distance,
        mev=settings.mev,
        missing={name: each.reason for name, each in (("corpus", texts), ("pairs", pairs)) if each.reason},
        gold_edits=rank_correlation(scored.gold, scored.edits, "pairs") if scored else None,
        series=tuple(_named_spaces(candidates, by_space)),
        depths=tuple(_named_layers(candidates, by_space, store)),
    )


def human_scored_pairs(job: Job) -> Sample:
    """Load pairs with human scores: STS-B of evaluate.tasks, or the first STS task of evaluate.own.

    Scores are from 0 to 5, whatever the scale of the task.
    """
    options = job.evaluate
    source = next((each for each in options.own if each.kind == "sts"), None)
    reason = "evaluate.tasks is not set: it names a folder with STS-B"
    if options.tasks is not None:
        folder, reason = open_store(options.tasks), f"evaluate.tasks has neither {' nor '.join(_PAIR_FILES)}"
        if path := next(filter(folder.exists, _PAIR_FILES), None):
            source = TaskSettings(kind="sts", uri=folder.uri_of(path))
    if source is None:
        return Sample(reason=reason)
    task = task_of_file(source, options)
    assert isinstance(task, StsTask)
    pairs = task.pairs()
    left, right = (clean_sentences(side).to_pylist() for side in (pairs.left, pairs.right))
    gold = _from_0_to_5(pairs.gold, task.options)
    return Sample(pairs=ScoredPairs.of(left, right, gold, options.geometry.edit_distance), source=task.name)


def _from_0_to_5(gold: np.ndarray, options: StsOptions) -> np.ndarray:
    """Map scores to the scale of STS-B.

    If the task has another scale, its lowest score becomes 0, and its highest 5.
    """
    if options.low >= 0 and options.high == _MAXIMUM:  # the scale of STS-B, and of SICK, which begins at 1
        return gold
    lowest = gold.min()
    return np.asarray(_MAXIMUM * (gold - lowest) / (gold.max() - lowest))


def _sample_corpus(job: Job, workers: Workers) -> Sample:
    """Sample texts by content key from the corpus of the current release, else from corpus.uri."""
    releases = open_releases(job)
    try:
        live = load_previous(releases)
        if live.release is not None and live.corpus is not None:
            corpus, source = live.corpus, f"the corpus of release {live.release.release}"
        else:
            parent, source = PreviousCorpus(next_ordinal=releases.next_ordinal()), job.corpus.uri
            corpus = ingest(corpus_of(job), job.encode.unit_rows, releases.store, parent)
    except DataError as error:
        return Sample(reason=str(error))
    sample = SampleTexts(releases.store, job.evaluate.geometry.sentences, 1, corpus.dead)
    texts = sample_texts(workers, job.cluster, sample, corpus.units)
    return Sample(
        texts,
        source=source,
        reason=f"the corpus has {len(texts)} different texts" if len(texts) < _MIN_TEXTS else None,
    )


def _texts_of_pairs(texts: Sample, pairs: Sample, settings: GeometrySettings) -> Sample:
    """Sample texts from the pairs, because the corpus is missing or has too few texts."""
    if pairs.pairs is None:
        raise DataError(
            "evaluate --geometry",
            "texts of a corpus, or pairs of known similarity",
            f"neither: {texts.reason}; {pairs.reason}",
            "set corpus.uri or evaluate.tasks",
        )
    sentences = pairs.pairs.sentences
    chosen = np.sort(np.random.default_rng(settings.seed).permutation(len(sentences))[: settings.sentences])
    return replace(texts, texts=tuple(sentences[index] for index in chosen), source=pairs.source)


def _encoders(
    candidates: Sequence[ResolvedCandidate], store: Store, workers: Workers
) -> Iterator[EncoderToMeasure]:
    """Yield each encoder once, with the transforms of all candidates that use it."""
    for space_id in dict.fromkeys(each.space_id for each in candidates):
        same_space = [each for each in candidates if each.space_id == space_id]
        transforms = {
            each.transform_id: each.transform for each in same_space if each.transform_id and each.transform
        }
        yield EncoderToMeasure(
            encoder_for_workers(same_space[0].encoder, store, workers), space_id, transforms
        )


def _named_layers(
    candidates: Sequence[ResolvedCandidate], by_space: dict[str, EncoderGeometry], store: Store
) -> Iterator[NamedLayers]:
    """Yield the layers of every encoder; encoders that differ only after their layers share one entry."""
    equal: dict[str, list[str]] = {}  # layers as JSON -> space_ids
    for space_id, each in by_space.items():
        equal.setdefault(each.model_dump_json(include={"levels", "words", "bands", "missing"}), []).append(
            space_id
        )
    for space_ids in equal.values():
        first = by_space[space_ids[0]]
        names = ", ".join(_raw_name(space_id, candidates) for space_id in space_ids)
        yield NamedLayers(
            name=names,
            levels=first.levels,
            words=first.words,
            bands=first.bands,
            static_words=tuple(
                StaticWords(layer=level.number, words=file.rows, uri=store.uri_of(file.path))
                for level, file in zip(first.levels, first.static_words, strict=False)
            ),
            missing=first.missing,
        )


def _named_spaces(
    candidates: Sequence[ResolvedCandidate], by_space: dict[str, EncoderGeometry]
) -> Iterator[NamedSpace]:
    """Yield every space once: an encoder's raw vectors, then its transformed vectors."""
    names: dict[tuple[str, str], str] = {}
    for each in candidates:
        names.setdefault((each.space_id, RAW), _raw_name(each.space_id, candidates))
        if each.transform_id:
            names.setdefault((each.space_id, each.transform_id), each.name)
    for (space_id, key), name in names.items():
        yield NamedSpace(name=name, space=by_space[space_id].spaces[key])


def _raw_name(space_id: str, candidates: Sequence[ResolvedCandidate]) -> str:
    """Name an encoder's raw vectors, if possible after a candidate without a transform."""
    same_space = [each for each in candidates if each.space_id == space_id]
    return next(
        (each.name for each in same_space if each.transform_id is None),
        f"{same_space[0].name} without its transform",
    )

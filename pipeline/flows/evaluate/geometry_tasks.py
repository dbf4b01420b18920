"""Measure the geometry of one encoder on a worker: its sentence vectors, layers and token embeddings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.flows.workers.tasks import PlainTask
from pipeline.flows.workers.worker_encoder import worker_encoder
from pipeline.models.folder.vectorfile import word2vec_text
from pipeline.settings import EncoderSettings, EncodeSettings, GeometrySettings
from pipeline.stats.contextuality import MAX_STATE_BYTES, LayerStates, gather_states, static_vector
from pipeline.stats.encoder_geometry import RAW, EncoderGeometry, Level, measure_layer
from pipeline.stats.frequency import frequency_bands
from pipeline.stats.occurrences import Occurrences, Tokenized, choose_occurrences
from pipeline.stats.space import POSITIVE, ScoredPairs, Space, sentence_space, with_pairs, word_metrics
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import load_or_make, store_by_content
from pipeline.transforms import Transform, load_transform

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
    """Return the whole words among tokens (m,), by number: printable, and each spelling once.

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
        vectors, settings = _check_finite(encoder.encode(self.texts)), self.settings
        pair_vectors = _check_finite(encoder.encode(self.pairs.sentences)) if self.pairs else None
        functions: dict[str, Callable[[np.ndarray], np.ndarray]] = {RAW: lambda x: x, **transforms}
        spaces = {}
        for name, function in functions.items():
            spaces[name] = sentence_space(function(vectors), self.texts, settings.neighbours, settings.seed)
            if self.pairs is not None and pair_vectors is not None:
                spaces[name] = with_pairs(spaces[name], function(pair_vectors), self.pairs, settings.seed)
        # A transform may map the zero vector to another one, so that only the raw vectors have this note.
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
        """Measure each layer, on few enough sentences and words that their states fit in memory.

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


def _check_finite(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors unchanged. ModelError if some are not finite."""
    if invalid := int((~np.isfinite(vectors)).any(axis=1).sum()):
        raise ModelError(
            "encoder",
            "finite vectors",
            f"{invalid:,} of {len(vectors):,} with NaN or infinity",
            "check its weights, or set encode.dtype=float32",
        )
    return vectors

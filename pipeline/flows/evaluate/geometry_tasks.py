"""The geometry of one encoder, measured on a worker: its sentence vectors, its layers, its token table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.config import digest_of
from pipeline.errors import ModelError
from pipeline.flows.workers.tasks import PlainTask
from pipeline.flows.workers.worker import loaded
from pipeline.post import Transform, load_transform
from pipeline.settings import EncoderSettings, EncodeSettings, GeometrySettings
from pipeline.stats.contextuality import KEPT_BYTES, gather_states
from pipeline.stats.measured import RAW, EncoderGeometry, Level, measure_layer
from pipeline.stats.occurrences import Occurrences, Tokenized, choose_occurrences
from pipeline.stats.space import POSITIVE, ScoredPairs, Space, sentence_space, with_pairs, word_metrics
from pipeline.store.base import Store
from pipeline.store.once import remembered
from pipeline.store.stored import FileRef

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder
    from pipeline.models.inference.hidden_states import HiddenStates

_VERSION = 1  # of the measurement; with another version it is repeated


@dataclass(frozen=True)
class Subject:
    """An encoder and the transforms to apply to its vectors, by transform_id."""

    encoder: EncoderSettings
    space_id: str
    transforms: Mapping[str, FileRef]


@dataclass(frozen=True, eq=False)
class MeasureEncoder(PlainTask[Subject, EncoderGeometry]):
    """Measure one encoder on sampled texts and on pairs of known similarity. Stored results are reused."""

    store: Store
    encode: EncodeSettings
    settings: GeometrySettings
    texts: tuple[str, ...]
    pairs: ScoredPairs | None

    def work(self, subject: Subject) -> EncoderGeometry:
        pairs = None if self.pairs is None else [self.pairs.left, self.pairs.right, self.pairs.gold.tolist()]
        digest = digest_of(
            [
                _VERSION,
                subject.space_id,
                sorted(subject.transforms),
                self.settings.model_dump(mode="json"),
                self.texts,
                pairs,
                self.encode.dtype,
            ]
        )
        return remembered(
            self.store, f"geometry/{digest[:24]}.json", EncoderGeometry, lambda: self._measured(subject)
        )

    def _measured(self, subject: Subject) -> EncoderGeometry:
        encoder = loaded(subject.encoder, self.encode)
        transforms = {
            name: load_transform(file.read(self.store)) for name, file in subject.transforms.items()
        }
        inside = encoder.hidden_states()
        tokens = inside.tokens(self.texts)
        known, counts = np.unique(tokens.ids[inside.words(tokens).is_word], return_counts=True)
        words, missing = word_metrics(inside.table(known), counts, self.settings.neighbours)
        if not inside.layers:
            missing["layers"] = "an average of word vectors has none"
        return EncoderGeometry(
            space_id=subject.space_id,
            spaces=self._spaces(encoder, transforms),
            levels=self._levels(inside) if inside.layers else (),
            words=words,
            missing=missing,
        )

    def _spaces(self, encoder: "Encoder", transforms: Mapping[str, Transform]) -> dict[str, Space]:
        """Encode every text once, then measure the raw vectors and those after each transform."""
        texts, settings = _finite(encoder.encode(self.texts)), self.settings
        paired = _finite(encoder.encode(self.pairs.sentences)) if self.pairs else None
        views: dict[str, Callable[[np.ndarray], np.ndarray]] = {RAW: lambda x: x, **transforms}
        spaces = {}
        for name, view in views.items():
            spaces[name] = sentence_space(view(texts), self.texts, settings.neighbours, settings.seed)
            if self.pairs is not None and paired is not None:
                spaces[name] = with_pairs(spaces[name], view(paired), self.pairs, settings.seed)
        if empty := int((~texts.any(axis=1)).sum()):
            why = (
                f"{empty:,} of {len(texts):,} sampled texts have the zero vector, such as those without any "
                "known word: their cosines count as 0"
            )
            spaces[RAW] = spaces[RAW].model_copy(
                update={"missing": {**spaces[RAW].missing, "direction": why}}
            )
        return spaces

    def _levels(self, inside: "HiddenStates") -> tuple[Level, ...]:
        """Measure each layer, on as many sentences and words as the states of all layers leave memory for."""
        most = max(2, KEPT_BYTES // (4 * inside.width * (inside.layers + 1)))
        tokens = inside.tokens(self.texts[:most])
        words, settings = inside.words(tokens), self.settings
        chosen = choose_occurrences(
            words, contexts=settings.contexts, pairs=settings.pairs, most=most, seed=settings.seed
        )
        layers, positives = gather_states(inside.states(tokens), words, chosen), self._positives(inside, most)
        return tuple(
            measure_layer(
                number,
                layer,
                chosen,
                positives[number] if positives else None,
                seed=settings.seed,
                centred=settings.centred,
            )
            for number, layer in enumerate(layers)
        )

    def _positives(self, inside: "HiddenStates", most: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return mean-pooled states of both sides of pairs of equal meaning, by layer; [] without pairs."""
        if (pairs := self.pairs) is None or not (pairs.gold > POSITIVE).any():
            return []
        same = np.flatnonzero(pairs.gold > POSITIVE)[: most // 2]
        tokens = inside.tokens([side[row] for side in (pairs.left, pairs.right) for row in same])
        nothing = np.zeros(0, np.int64)
        layers = gather_states(
            inside.states(tokens),
            Tokenized(tokens.ids, tokens.offsets, np.zeros(len(tokens.ids), dtype=bool)),
            Occurrences(nothing, (), np.zeros((0, 2), np.int64), nothing),
        )
        return [(layer.means[: len(same)], layer.means[len(same) :]) for layer in layers]


def _finite(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors. Raises ModelError if some are not finite."""
    if bad := int((~np.isfinite(vectors)).any(axis=1).sum()):
        raise ModelError(
            "encoder",
            "finite vectors",
            f"{bad:,} of {len(vectors):,} with NaN or infinity",
            "check its weights, or set encode.dtype=float32",
        )
    return vectors

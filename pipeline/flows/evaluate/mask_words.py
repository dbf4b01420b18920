"""Describe candidates by words: those that masked language models predict at the mask of their template."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.config import digest_of
from pipeline.device import resolve
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.mask_words import (
    READINGS,
    MaskWords,
    MaskWordsReport,
    NamedMaskWords,
    TextWords,
    pair_correlation,
)
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.geometry import human_scored_pairs
from pipeline.flows.workers.tasks import PlainTask
from pipeline.flows.workers.worker_encoder import gpu_assigned
from pipeline.models.folder.encoder_folder import MASKED
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, EncodeSettings, MaskWordsSettings
from pipeline.stats.space import ScoredPairs
from pipeline.store.files.base import Store
from pipeline.store.records.write_once import load_or_make

_VERSION = 1  # version of the measurement; raise it to measure again


@dataclass(frozen=True)
class EncoderToRead:
    """An encoder whose predictions at the mask token are read as words."""

    encoder: EncoderSettings
    space_id: str


@dataclass(frozen=True, eq=False)
class ReadMaskWords(PlainTask[EncoderToRead, MaskWords]):
    """Read the sentences of pairs, and texts to show, with one encoder. Stored results are reused."""

    store: Store
    encode: EncodeSettings
    settings: MaskWordsSettings
    texts: tuple[str, ...]
    pairs: ScoredPairs | None

    def work(self, target: EncoderToRead) -> MaskWords:
        pairs = None if self.pairs is None else [self.pairs.left, self.pairs.right, self.pairs.gold.tolist()]
        settings = self.settings.model_dump(mode="json")
        digest = digest_of([_VERSION, target.space_id, settings, self.texts, pairs])
        return load_or_make(
            self.store, f"mask_words/{digest[:24]}.json", MaskWords, lambda: self._read(target)
        )

    def _read(self, target: EncoderToRead) -> MaskWords:
        # imported here, because they import torch
        from pipeline.models.layers.numerics import use_threads
        from pipeline.models.trainable.mask_words import MaskReader

        folder = open_folder(target.encoder)
        device = resolve(self.encode.device, float(gpu_assigned()))
        with use_threads(self.encode.threads):
            reader = MaskReader(folder, device, self.settings.top_k)
            sentences = self.pairs.sentences if self.pairs else []
            distinct = list(dict.fromkeys((*self.texts, *sentences)))
            readings = reader.read(distinct)
        row = {text: index for index, text in enumerate(distinct)}

        def likeliest(ids: np.ndarray, text: str) -> tuple[str, ...]:
            return tuple(reader.spellings(ids[row[text], : self.settings.shown]))

        correlations = dict[str, float]()
        if self.pairs is not None:
            left, right = ([row[text] for text in side] for side in (self.pairs.left, self.pairs.right))
            for name in READINGS:
                vectors = getattr(readings, name)
                correlations[name] = pair_correlation(vectors[left], vectors[right], self.pairs.gold)
        return MaskWords(
            space_id=target.space_id,
            template=folder.template,
            top_k=reader.top_k,
            correlations=correlations,
            texts=tuple(
                TextWords(
                    text=text,
                    words=likeliest(readings.ids, text),
                    denoised=likeliest(readings.denoised_ids, text),
                )
                for text in self.texts
            ),
        )


def read_mask_words(context: FlowContext, candidates: Sequence[ResolvedCandidate]) -> MaskWordsReport:
    """Read as words what each candidate that pools a mask token predicts there. Stored results are reused.

    Raises:
        ConfigError: no candidate pools the mask token of a template.
        DataError: there are neither texts nor pairs.
        ModelError: an encoder has no language model head.
    """
    job, store, workers = context.job, context.store, context.workers
    settings, pairs = job.evaluate.mask_words, human_scored_pairs(job)
    texts = settings.texts or tuple(pairs.pairs.sentences[: settings.sentences] if pairs.pairs else ())
    if not texts:
        raise DataError(
            "evaluate --mask-words",
            "texts to read, or pairs with human scores",
            f"neither: {pairs.reason}",
            "set evaluate.mask_words.texts or evaluate.tasks",
        )
    masked = {
        each.space_id: each for each in reversed(candidates) if open_folder(each.encoder).pooling == MASKED
    }
    if not masked:
        raise ConfigError(
            "evaluate --mask-words",
            "a candidate that pools the mask token of a template",
            f"none among {', '.join(each.name for each in candidates)}",
            "set encoder.template",
        )
    in_order = [each for each in candidates if masked.get(each.space_id) is each]
    targets = [
        EncoderToRead(encoder_for_workers(each.encoder, store, workers), each.space_id) for each in in_order
    ]
    task = ReadMaskWords(store, workers.encode_settings(job.encode), settings, texts, pairs.pairs)
    with context.stages("read by words", len(targets), "encoders") as bar:
        results = dict(workers.map_units(task, targets, workers.pool(job.cluster, len(targets))))
        bar.add(len(targets))
    return MaskWordsReport(
        pairs=len(pairs.pairs.gold) if pairs.pairs else 0,
        pairs_source=pairs.source or None,
        candidates=tuple(
            NamedMaskWords(name=each.name, words=results[number]) for number, each in enumerate(in_order)
        ),
    )

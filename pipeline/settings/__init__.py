"""The settings of a job: one class for each section of its YAML, the same for every command.

Settings are pickled and sent to workers, so they do no I/O and contain neither tensors nor devices.
"""

from pydantic import model_validator

from pipeline.config import Settings
from pipeline.settings.augment import AugmentSettings
from pipeline.settings.cluster import ClusterSettings, NodesSettings, WorkerSettings
from pipeline.settings.corpus import CHUNK_COLUMNS, ChunkSettings, CorpusSettings
from pipeline.settings.encode import Dtype, EncoderSettings, EncodeSettings
from pipeline.settings.evaluate import (
    CandidateSettings,
    EvaluateSettings,
    FitSettings,
    GeneratorSettings,
    GeometrySettings,
    MaskWordsSettings,
    TaskSettings,
    TemplateSettings,
)
from pipeline.settings.gates import GateSettings, RelevanceSettings
from pipeline.settings.index import IndexSettings
from pipeline.settings.pairs import PairsSettings
from pipeline.settings.release import EventSettings, ExportSettings, ReleaseSettings
from pipeline.settings.training import TrainSettings
from pipeline.settings.whiten import FlowSettings, WhitenSettings

__all__ = [
    "CHUNK_COLUMNS",
    "AugmentSettings",
    "CandidateSettings",
    "ChunkSettings",
    "ClusterSettings",
    "CorpusSettings",
    "Dtype",
    "EncodeSettings",
    "EncoderSettings",
    "EvaluateSettings",
    "EventSettings",
    "ExportSettings",
    "FitSettings",
    "FlowSettings",
    "GateSettings",
    "GeneratorSettings",
    "GeometrySettings",
    "IndexSettings",
    "Job",
    "MaskWordsSettings",
    "NodesSettings",
    "PairsSettings",
    "ReleaseSettings",
    "RelevanceSettings",
    "TaskSettings",
    "TemplateSettings",
    "TrainSettings",
    "WhitenSettings",
    "WorkerSettings",
]

# Names of columns in files of vectors and in search results. No column of the corpus may have one of them.
_VECTOR_COLUMNS = ("text_key", "vector")
RESULT_COLUMNS = (*_VECTOR_COLUMNS, "address", "query", "rank", "score")


class Job(Settings):
    """All settings of a YAML file; each command reads the sections that it needs."""

    corpus: CorpusSettings = CorpusSettings()
    encoder: EncoderSettings = EncoderSettings()
    encode: EncodeSettings = EncodeSettings()
    whiten: WhitenSettings = WhitenSettings()
    index: IndexSettings = IndexSettings()
    gates: GateSettings = GateSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    train: TrainSettings = TrainSettings()
    augment: AugmentSettings = AugmentSettings()
    pairs: PairsSettings = PairsSettings()
    release: ReleaseSettings = ReleaseSettings()
    cluster: ClusterSettings = ClusterSettings()

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "Job":
        """Refuse a repeated column, and an id or a kept column with a name that vectors or results use."""
        kept = self.corpus.keep
        reserved = {*RESULT_COLUMNS, *(["id"] if self.corpus.id != "id" else [])} & set(kept)
        if self.corpus.id in kept or len(set(kept)) < len(kept):
            raise ValueError(
                "corpus.id and corpus.keep to name each column once, not "
                f"{', '.join((self.corpus.id, *kept))}"
            )
        taken = set(CHUNK_COLUMNS) & {self.corpus.id, *kept}
        if self.corpus.chunk.by is not None and taken:
            raise ValueError(
                f"corpus.id and corpus.keep to leave out {', '.join(sorted(taken))}: with corpus.chunk, "
                "chunks have columns of that name; rename the column"
            )
        if self.corpus.id in _VECTOR_COLUMNS:
            raise ValueError(
                f"corpus.id to be another column than {self.corpus.id}: files of vectors use that name; "
                "rename the column"
            )
        if reserved:
            raise ValueError(
                f"corpus.keep to leave out {', '.join(sorted(reserved))}: vectors and search results use "
                "that name; rename the column"
            )
        return self

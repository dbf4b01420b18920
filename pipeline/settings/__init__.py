"""Every section of a job's YAML: the same keys for every command.

Settings are values that travel to workers: they do no I/O and hold neither tensors nor devices.
"""

from pydantic import model_validator

from pipeline.config import Settings
from pipeline.settings.augment import AugmentSettings
from pipeline.settings.cluster import ClusterSettings, WorkerSettings
from pipeline.settings.corpus import CorpusSettings
from pipeline.settings.encode import Dtype, EncoderSettings, EncodeSettings
from pipeline.settings.evaluate import CandidateSettings, EvaluateSettings, GeometrySettings, TaskSettings
from pipeline.settings.index import GateSettings, IndexSettings, ReleaseSettings
from pipeline.settings.training import TrainSettings
from pipeline.settings.transform import FlowSettings, WhitenSettings

__all__ = [
    "AugmentSettings",
    "CandidateSettings",
    "ClusterSettings",
    "CorpusSettings",
    "Dtype",
    "EncodeSettings",
    "EncoderSettings",
    "EvaluateSettings",
    "FlowSettings",
    "GateSettings",
    "GeometrySettings",
    "IndexSettings",
    "Job",
    "ReleaseSettings",
    "TaskSettings",
    "TrainSettings",
    "WhitenSettings",
    "WorkerSettings",
]

RESULT_COLUMNS = ("text_key", "vector", "address", "query", "rank", "score")


class Job(Settings):
    """One YAML: every command reads the sections that it needs."""

    corpus: CorpusSettings = CorpusSettings()
    encoder: EncoderSettings = EncoderSettings()
    encode: EncodeSettings = EncodeSettings()
    whiten: WhitenSettings = WhitenSettings()
    index: IndexSettings = IndexSettings()
    gates: GateSettings = GateSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    train: TrainSettings = TrainSettings()
    augment: AugmentSettings = AugmentSettings()
    release: ReleaseSettings = ReleaseSettings()
    cluster: ClusterSettings = ClusterSettings()

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "Job":
        kept = self.corpus.keep
        taken = {*RESULT_COLUMNS, *(["id"] if self.corpus.id != "id" else [])} & set(kept)
        if self.corpus.id in kept or len(set(kept)) < len(kept):
            raise ValueError(
                "corpus.id and corpus.keep to name each column once, not "
                f"{', '.join((self.corpus.id, *kept))}"
            )
        if taken:
            raise ValueError(
                f"corpus.keep to leave out {', '.join(sorted(taken))}: vectors and search results use "
                "that name; rename the column"
            )
        return self

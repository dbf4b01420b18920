"""Values that the page and the model card of a training show."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.models.folder.encoder_folder import MASKED, EncoderFolder
from pipeline.models.folder.modules import Denoising, Dense
from pipeline.models.layers.pooling import POOLINGS
from pipeline.settings.training import TrainSettings
from pipeline.train.metrics_line import MetricsLine


@dataclass(frozen=True)
class SourceSummary:
    """Files that were trained on.

    Attributes:
        uri: address of the files.
        rows: number of rows.
        unlabelled: number of rows left out without a label.
        weight: weight of the source.
        missing: number of rows left out without a text.
    """

    uri: str
    rows: int
    unlabelled: int = 0
    weight: int = 1
    missing: int = 0

    @property
    def used(self) -> int:
        """Number of rows that were trained on."""
        return self.rows - self.unlabelled - self.missing


@dataclass(frozen=True)
class EncoderSummary:
    """The trained encoder.

    Attributes:
        space_id: id of its vector space.
        dim: dimension of its vectors.
        max_length: largest number of tokens of a text.
        pooling: kinds of pooling.
        normalized: vectors have length 1.
        head: a layer of the objective is kept.
        prompt: text that precedes every text.
        template: template around every text.
        elsewhere: sentence-transformers and embedding servers can load it.
        trusted: sentence-transformers can load it with the folder's own module file.
    """

    space_id: str
    dim: int
    max_length: int
    pooling: tuple[str, ...]
    normalized: bool
    head: bool = False
    prompt: str = ""
    template: str = ""
    elsewhere: bool = True
    trusted: bool = False

    @classmethod
    def of(cls, folder: EncoderFolder, *, head: bool) -> "EncoderSummary":
        """Describe a saved folder."""
        pooling = folder.pooling or tuple(
            dict.fromkeys(name for part in folder.parts for name in part.pooling)
        )
        named = all(POOLINGS[name].st_name for name in pooling) and all(
            isinstance(module, Dense | str) for module in folder.tail
        )
        elsewhere = named and not (
            folder.whole_words or folder.parts or folder.template or folder.ends_sentences
        )
        return cls(
            space_id=folder.space_id,
            dim=folder.dim,
            max_length=folder.max_length,
            pooling=pooling,
            normalized=folder.normalize,
            head=head or any(isinstance(module, Denoising) for module in folder.tail),
            prompt=folder.prompt,
            template=folder.template or "",
            elsewhere=elsewhere,
            trusted=pooling == MASKED and not folder.ends_sentences,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """Values of the page and the model card; empty ones are left out."""

    name: str
    uri: str
    """address of the training's folder"""
    settings: TrainSettings
    encoder: str
    """path or name of the encoder that the training started from"""
    start_space: str
    sources: tuple[SourceSummary, ...]
    steps: int
    """number of completed steps"""
    planned: int
    steps_per_epoch: int
    lines: tuple[MetricsLine, ...]
    """lines of metrics.jsonl"""
    product: EncoderSummary
    best_step: int | None = None
    """step with the best score on dev"""
    ended: str = ""
    """reason why it ended before the planned steps"""
    device: str = ""
    """hardware: "2 workers, CPU, 1 thread" """
    created: str | None = None
    objective_warnings: tuple[str, ...] = ()
    """warnings of the objective about its settings"""
    settings_text: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def objective(self) -> str:
        """Names of the objectives, with their weights if there are several."""
        return " + ".join(
            term.name if term.weight == 1 else f"{term.weight:g} x {term.name}"
            for term in self.settings.objective
        )

    @property
    def kept_step(self) -> int:
        """Step of the weights of the encoder."""
        return (
            self.best_step if self.settings.dev.keep == "best" and self.best_step is not None else self.steps
        )

    @property
    def train_length(self) -> int | None:
        """Largest number of tokens of a training text; None if the encoder reads no more."""
        length = self.settings.max_length
        return length if length is not None and length < self.product.max_length else None

    @property
    def rows(self) -> int:
        """Number of rows that were trained on."""
        return sum(source.used for source in self.sources)

    @property
    def seconds(self) -> float:
        """Duration of all steps, without evaluation and checkpoints."""
        return sum(line.seconds for line in self.lines)

    @property
    def resumed(self) -> tuple[tuple[int, int], ...]:
        """(step, times) at which the training was resumed."""
        return tuple((line.step, line.resumed) for line in self.lines if line.resumed)

    @property
    def measure(self) -> str:
        """Name of the metric on dev."""
        return {"spearman": "Spearman x100", "accuracy": "accuracy, %"}[self.settings.dev.measure]

    @property
    def dev(self) -> dict[str, MetricsLine]:
        """Lines with a score on dev: before the first step, the best and the last."""
        measured = [line for line in self.lines if line.dev is not None]
        if not measured:
            return {}
        best = max(measured, key=lambda line: (line.dev or 0.0, -line.step))
        before = {"before": measured[0]} if measured[0].step == 0 else {}
        return before | {"best": best, "last": measured[-1]}

    @property
    def same_rows(self) -> int:
        """Number of rows measured before the first step and after the last; 0 if none were."""
        return int(max((line.same_rows.get("rows", 0) for line in self.lines), default=0))

    @property
    def unseen(self) -> bool:
        """True if the training had not seen the measured rows by its end."""
        last = self.steps * self.settings.order.batch_rows + self.same_rows
        return len(self.sources) == 1 and last <= self.steps_per_epoch * self.settings.order.batch_rows

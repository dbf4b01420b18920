"""Types of the values that the page and the model card of a training show."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.models.folder.encoder_folder import MASKED, MODEL2VEC, EncoderFolder
from pipeline.models.folder.modules import Denoising, Dense, Normalization
from pipeline.models.spec.pooling import POOLINGS
from pipeline.report.formats import two_decimals
from pipeline.settings.training import Measure, TrainSettings
from pipeline.stats.geometry import Metric
from pipeline.train.metrics_line import MetricsLine

METRIC_NAMES: Mapping[Measure, str] = {
    "spearman": "Spearman x100",
    "pearson": "Pearson x100",
    "accuracy": "accuracy, %",
    "f1": "F1 x100",
    "matthews": "Matthews x100",
    "log_likelihood": "log p of masked words",
}


@dataclass(frozen=True)
class SourceSummary:
    """Files that were trained on."""

    uri: str
    """address of the files"""
    rows: int
    """number of rows"""
    unlabelled: int = 0
    """number of rows that were left out because they have no label"""
    weight: int = 1
    """how often the source is drawn, relative to the other sources"""
    missing: int = 0
    """number of rows that were left out because they have no text"""
    overlap: Mapping[str, Metric] = field(default_factory=dict)
    """mean lexical overlap of anchors with positives and negatives, by role"""

    @property
    def used(self) -> int:
        """Number of rows that were trained on."""
        return self.rows - self.unlabelled - self.missing


@dataclass(frozen=True)
class EncoderSummary:
    """The trained encoder."""

    space_id: str
    """id of its vector space"""
    dim: int
    """dimension of its vectors"""
    max_length: int
    """largest number of tokens of a text that the encoder reads"""
    pooling: tuple[str, ...]
    """names of the poolings, whose results are concatenated"""
    normalized: bool
    """True if vectors have length 1"""
    head: bool = False
    """True if the encoder keeps a layer of the objective after the pooling"""
    prompt: str = ""
    """text that is put before every text"""
    template: str = ""
    """template that every text is put into"""
    is_portable: bool = True
    """True if sentence-transformers and embedding servers load the encoder and compute the same vectors"""
    has_own_modules: bool = False
    """True if sentence-transformers can load it with Python code from its folder"""
    is_cross_encoder: bool = False
    """True if it reads two texts together and has no vectors of single texts"""

    @classmethod
    def of(cls, folder: EncoderFolder, *, head: bool, is_cross_encoder: bool = False) -> "EncoderSummary":
        """Describe the encoder in a saved folder."""
        pooling = folder.pooling or tuple(
            dict.fromkeys(name for part in folder.parts for name in part.pooling)
        )
        library_has_modules = all(POOLINGS[name].st_name for name in pooling) and all(
            isinstance(module, Dense | Normalization) for module in folder.tail
        )
        # sentence-transformers keeps unknown tokens in a table of model2vec
        reads_otherwise = folder.ends_sentences or folder.config.get("model_type") == MODEL2VEC
        is_portable = library_has_modules and not (
            folder.whole_words or folder.parts or folder.template or reads_otherwise
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
            is_portable=is_portable,
            has_own_modules=pooling == MASKED and not folder.ends_sentences,
            is_cross_encoder=is_cross_encoder,
        )


@dataclass(frozen=True)
class DevLines:
    """Lines of metrics.jsonl with a score on dev."""

    best: MetricsLine
    """the line with the highest score; the first one if several lines have it"""
    last: MetricsLine
    """the last line"""
    before: MetricsLine | None = None
    """the line before the first step; None if nothing was measured then"""

    def named(self) -> dict[str, MetricsLine]:
        """Return the lines by name, for a table: before (if there is one), best, last."""
        return ({"before": self.before} if self.before else {}) | {"best": self.best, "last": self.last}


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """Values of the page and of the model card, which omit the sections of empty values."""

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
    planned_steps: int
    steps_per_epoch: int
    lines: tuple[MetricsLine, ...]
    """lines of metrics.jsonl"""
    trained_encoder: EncoderSummary
    best_step: int | None = None
    """step with the best score on dev"""
    reason_for_early_end: str = ""
    """reason why the training ended before the planned steps; empty if it did not"""
    device: str = ""
    """hardware: "2 workers, CPU, 1 thread" """
    created: str | None = None
    objective_warnings: tuple[str, ...] = ()
    """warnings of the objective about its settings"""
    scores: Mapping[str, Mapping[Measure, float]] = field(default_factory=dict)
    """metrics of the trained model's predictions by file (dev, test); all files have the same metrics"""
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
        """Step after which the encoder's weights were saved."""
        if self.settings.dev.keep == "best" and self.best_step is not None:
            return self.best_step
        return self.steps

    @property
    def train_length(self) -> int | None:
        """Largest number of tokens of a text in the training; None if the encoder reads no longer texts."""
        length = self.settings.max_length
        return length if length is not None and length < self.trained_encoder.max_length else None

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
        """(step, number of times) of each step after which the training was resumed."""
        return tuple((line.step, line.resumed) for line in self.lines if line.resumed)

    @property
    def predicts(self) -> bool:
        """True if dev measures predictions of the first objective instead of vectors."""
        from pipeline.objectives import OBJECTIVES, PredictsRows  # imported here, because it loads torch

        return issubclass(OBJECTIVES[self.settings.objective[0].name], PredictsRows)

    @property
    def measure(self) -> str:
        """Name of the metric on dev."""
        return METRIC_NAMES[self.settings.dev.measure]

    def score_rows(self) -> list[tuple[str, ...]]:
        """Return the rows of a table of `scores`: name of the metric, and its value on each file."""
        files = list(self.scores.values())
        measures = files[0] if files else ()
        return [
            (METRIC_NAMES[measure], *(two_decimals(file[measure]) for file in files)) for measure in measures
        ]

    @property
    def dev_lines(self) -> DevLines | None:
        """Lines with a score on dev; None without dev."""
        scored = [line for line in self.lines if line.dev is not None]
        if not scored:
            return None
        best = max(scored, key=lambda line: (line.dev or 0.0, -line.step))
        return DevLines(best, last=scored[-1], before=scored[0] if scored[0].step == 0 else None)

    @property
    def same_rows(self) -> int:
        """Number of rows that were measured before the first step and after the last; 0 if none were."""
        return int(max((line.same_rows.get("rows", 0) for line in self.lines), default=0))

    @property
    def same_rows_are_unseen(self) -> bool:
        """True if the training ended before it came to the rows that `same_rows` counts."""
        batch_rows = self.settings.order.batch_rows
        rows_needed = self.steps * batch_rows + self.same_rows
        return len(self.sources) == 1 and rows_needed <= self.steps_per_epoch * batch_rows

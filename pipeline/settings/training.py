"""Settings of a training: data, objective, optimizer, checkpoints and measurements."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.config import Settings, ShortSettings
from pipeline.errors import did_you_mean
from pipeline.settings.weights import (
    ConvolutionalSettings,
    DanSettings,
    ExpandSettings,
    LoraSettings,
    NewEncoderSettings,
    ParagraphSettings,
    RecurrentSettings,
    TransformerSettings,
    WordTableSettings,
)

TextRole = Literal[
    "text",
    "sentence1",
    "sentence2",
    "premise",
    "hypothesis",
    "anchor",
    "positive",
    "negative",
    "previous",
    "next",
    "next3",
    "negative2",
    "translation",
]
NEGATIVES = ("negative", *(f"negative{number}" for number in range(2, 33)))
"""roles of the hard negatives of a row"""
TEXTS: tuple[str, ...] = tuple(dict.fromkeys((*get_args(TextRole), *NEGATIVES)))
ROLES = (*TEXTS, "score", "scores", "label", "document", "position", "group", "section")

Measure = Literal["spearman", "pearson", "accuracy", "f1", "matthews", "log_likelihood"]


class DevSettings(Settings):
    """Measurements during a training that show whether the encoder gets better."""

    uri: str | None = None
    """a Parquet file that is not trained on; null: no scores are measured, the trained encoder has the last
    weights, and the loss of the same rows is measured before the first step and after the last"""
    measure: Measure = "spearman"
    """spearman: 100 times Spearman's correlation of cosines with the scores of rated pairs (sentence1,
    sentence2, score). accuracy: percent of pairs (premise, hypothesis, label) that the classifier of the
    objective classification or r_drop labels correctly; labels have the meaning that the first source of
    `data` gives them. For the objectives sequence_classification (accuracy, f1, matthews) and
    sequence_regression (spearman, pearson): 100 times the metric of the predictions, on a file with the
    columns of `data`; at the end, the trained model is measured by all metrics of its objective.
    log_likelihood, for the objective masked_lm: mean natural logarithm of the probability of masked words on
    a file with the column of `data` (text); exp(-log_likelihood) is the perplexity"""
    columns: dict[str, str] = {}
    """role -> column, if the column's name is not the role"""
    steps: Annotated[int, Field(ge=1)] = 250
    """steps between two measurements; there is one before the first step and one after the last"""
    patience: Annotated[int, Field(ge=1)] | None = None
    """consecutive measurements without a better score after which the training ends; null: never"""
    keep: Literal["best", "last"] = "best"
    """weights of the trained encoder. best: those with the best score; last: those after the last step"""


class TestSetSettings(ShortSettings):
    """A file on which a trained model's predictions are measured once, after the last step."""

    uri: str | None = None
    """a Parquet file that is neither trained on nor used to choose weights, with columns like those of
    `data`; predictions of the objectives sequence_classification and sequence_regression are measured by all
    metrics of the objective; other objectives refuse such a file. null: no file"""
    columns: dict[str, str] = {}
    """role -> column, if the column's name is not the role"""


class WatchSettings(Settings):
    """Reports during a training."""

    steps: Annotated[int, Field(ge=1)] = 10
    """number of steps that one line of metrics summarizes"""
    trackers: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] | None = None
    """trackers that get the metrics besides metrics.jsonl; null: tensorboard if it is installed. mlflow and
    wandb read their own environment variables"""


class OptimizerSettings(Settings):
    """The optimizer: its learning rate, weight decay and limits."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    """adam adds the weight decay to the gradient, adamw subtracts it from the weights"""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-5
    """highest learning rate of the schedule"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """weight decay of matrices; biases and normalization layers have none"""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """coefficients of the running averages in adamw and adam"""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """number that adamw, adam and rmsprop add to the denominator"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """momentum of sgd and rmsprop"""
    clip: Annotated[float, Field(gt=0)] | None = 1.0
    """largest norm of the gradient; null: no limit"""


class ScheduleSettings(Settings):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "stairs", "plateau"] = "linear"
    """linear and cosine fall to `final` after the last step; stairs follows `stairs`; plateau multiplies the
    rate by `decay` after every epoch and by `drop` whenever the score on dev has fallen, and ends the
    training when the rate is below `least` (Conneau et al. 2017)"""
    warmup: Annotated[float, Field(ge=0)] = 0.0
    """steps in which the learning rate rises linearly; below 1: a proportion of all steps"""
    final: Annotated[float, Field(ge=0)] = 0.0
    """linear and cosine: the learning rate to which they fall"""
    stairs: dict[int, float] = {}
    """step -> learning rate from this step on"""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.99
    """plateau: factor of the learning rate after every epoch"""
    drop: Annotated[float, Field(gt=0, le=1)] = 0.2
    """plateau: factor of the learning rate whenever the score on dev has fallen"""
    least: Annotated[float, Field(ge=0)] = 1e-5
    """plateau: a learning rate below this ends the training"""


class MineSettings(Settings):
    """Mining of hard negatives for (anchor, positive) rows.

    Negatives are near neighbours of the anchor among all positives, by the encoder that training starts from.
    """

    enabled: bool = False
    """whether to mine negatives before the first step; they replace the negatives of the files"""
    neighbours: Annotated[int, Field(ge=1)] = 50
    """number of nearest neighbours of each anchor to consider, without its known positives"""
    skip: Annotated[int, Field(ge=0)] = 0
    """number of nearest neighbours to skip, because they are the most likely to be positives too"""
    margin: float | None = 0.05
    """smallest difference between the positive's cosine with the anchor and the negative's; null: no limit"""
    most: Annotated[float, Field(gt=-1, le=1)] | None = None
    """highest cosine of a negative with the anchor; null: no limit"""
    negatives: Annotated[int, Field(ge=1)] = 1
    """negatives of each pair; each makes a row of its own"""
    pick: Literal["first", "random"] = "first"
    """choice among the remaining neighbours. first: the nearest ones; random: random ones"""

    @model_validator(mode="after")
    def _some_neighbours_remain(self) -> Self:
        if self.skip >= self.neighbours:
            raise ValueError(
                f"skip to be below neighbours: skipping {self.skip} of {self.neighbours} leaves none"
            )
        return self


class Values(Settings):
    """The meaning of the labels and scores in a training file."""

    labels: tuple[str, ...] = ("entailment", "neutral", "contradiction")
    """names of the labels; an integer label is an index in this list"""
    no_label: tuple[str, ...] = ("-", "-1")
    """values of the label column, as text, of rows without a label (no majority of the annotators). These
    rows are left out and counted"""
    score_range: tuple[float, float] = (0.0, 5.0)
    """lowest and highest score; they are scaled to 0 and 1"""

    @model_validator(mode="after")
    def _score_range_rises(self) -> Self:
        if not self.score_range[0] < self.score_range[1]:
            raise ValueError(
                f"score_range in rising order, not {self.score_range[0]:g}, {self.score_range[1]:g}"
            )
        return self


class SourceSettings(ShortSettings):
    """Files with training rows, and the roles of their columns."""

    uri: str
    """a Parquet file, a glob, a directory, or a file:// or s3:// URI of one; or a manifest (.json) of
    `manta augment`; or a folder augmented/<name> of such manifests, where the training reads the one that is
    newest at its beginning"""
    name: str | None = None
    """name of this source, for the `source` of an objective; null: none"""
    columns: dict[str, str] = {}
    """role -> column, if the column's name is not the role. The hard negatives of a row have the roles
    negative, negative2, and so on up to negative32; they are found in columns negative_1, negative_2, and so
    on, or in a column negative or negatives of lists of texts. column[3] is the fourth element of each list
    in a column"""
    missing: Literal["blank", "drop"] = "blank"
    """for a row that lacks one of the texts. blank: replace the text by a single blank, but leave a missing
    hard negative out of the candidates, or the row if the objective needs one; drop: leave the row out. A
    blank hard negative is a missing one. Both are counted"""
    values: Values = Values()
    """the meaning of labels and scores"""
    weight: Annotated[int, Field(ge=1)] = 1
    """weight of this source. The steps, or with `mixing: blend` the rows of each batch, are divided among the
    sources in proportion to their weights"""

    def identity_settings(self, *, without: str) -> dict[str, Any]:
        """Return the settings that define a training's identity, as JSON values.

        `missing` and `name` are included only if they are not the defaults, so that trainings that began
        before these settings existed keep their identity.

        Args:
            without: name of a setting to leave out.
        """
        defaults = {key for key in ("missing", "name") if getattr(self, key) in ("blank", None)}
        return self.model_dump(mode="json", exclude={without, *defaults})

    @model_validator(mode="after")
    def _roles_are_known(self) -> Self:
        for role in self.columns:
            if role not in ROLES:
                known = (known for known in ROLES if known not in NEGATIVES[2:])
                hint = did_you_mean(role, ROLES, f"known: {', '.join(known)}, up to {NEGATIVES[-1]}")
                raise ValueError(f"a known role instead of {role!r}; {hint}")
        return self


class OrderSettings(Settings):
    """Shuffling, and the rows of each batch."""

    batch_rows: Annotated[int, Field(ge=1)] = 64
    """rows of a global batch, of all ranks together"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of the order"""
    window_rows: Annotated[int, Field(ge=1)] = 65_536
    """rows that are in memory and shuffled together; at least one batch"""
    bucket_batches: Annotated[int, Field(ge=1)] = 16
    """number of batches whose rows are sorted by length together, so that rows of similar length are in one
    batch; 1: rows are not sorted"""
    repeats: Literal["keep", "drop", "mask"] = "keep"
    """for a row that shares a text with another row of its batch. keep: leave it in the batch; drop: exchange
    it with a row of another batch; mask: do not use the two rows as negatives of each other"""


class ObjectiveSettings(ShortSettings):
    """One of the objectives whose losses are added. A plain string is the name of an objective."""

    name: str
    """name of the objective, registered in pipeline/objectives"""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """weight of its loss in the sum"""
    source: str | None = None
    """name of the source in `data` whose batches it trains on; null: the batches of all sources"""
    options: dict[str, JsonValue] = {}
    """options of the objective, such as temperature, described in its class"""


class CheckpointSettings(Settings):
    """Checkpoints, from which a killed training continues."""

    steps: Annotated[int, Field(ge=1)] | None = 500
    """steps between two checkpoints; null: checkpoints by time only"""
    minutes: Annotated[float, Field(gt=0)] | None = 15.0
    """most minutes between two checkpoints; null: checkpoints by steps only"""
    keep: Annotated[int, Field(ge=1)] = 2
    """number of latest checkpoints to keep"""
    keep_best: Annotated[int, Field(ge=1)] = 1
    """number of further checkpoints to keep: those with the best scores on dev"""


class TrainSettings(Settings):
    """The training of an encoder, which starts from the one in `encoder`."""

    root: str = "trainings"
    """a directory or URI below which every training has a folder; all machines of a cluster must see it"""
    name: str | None = None
    """name of the folder; null: made from the objective and a digest of the settings, so that a repeated
    command continues the same training"""
    data: tuple[SourceSettings, ...] = ()
    """files with training rows: plain URIs or {uri, name, columns, values, weight}"""
    mixing: Literal["alternate", "blend"] = "alternate"
    """alternate: each batch has rows of one source; blend: each batch has rows of all sources"""
    mine: MineSettings = MineSettings()
    objective: Annotated[tuple[ObjectiveSettings, ...], Field(min_length=1)] = (
        ObjectiveSettings(name="simcse"),
    )
    """a name, or {name, weight, source, options}, or a list of them, whose losses are added. Several tasks
    that read different rows share the encoder if each is bound to a `source`, with `mixing: alternate`"""
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """numbers of leading dimensions: the loss is the sum of the losses of the vectors truncated to each
    (Kusupati et al. 2022); none: vectors are not truncated"""
    recurrent: RecurrentSettings = RecurrentSettings()
    convolutional: ConvolutionalSettings = ConvolutionalSettings()
    dan: DanSettings = DanSettings()
    transformer: TransformerSettings = TransformerSettings()
    word_table: WordTableSettings = WordTableSettings()
    paragraph_vectors: ParagraphSettings = ParagraphSettings()
    expand: ExpandSettings = ExpandSettings()
    fresh: bool = False
    """start from random weights of the encoder's architecture instead of its trained weights"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """rate of all dropout layers; null: as in config.json"""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """largest number of tokens of a training text, special tokens included; null: the encoder's limit, which
    the trained encoder and all measurements use in any case"""
    epochs: Annotated[float, Field(gt=0)] = 1.0
    """passes over the rows; may be a fraction"""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """largest number of steps; null: as many as `epochs` has"""
    order: OrderSettings = OrderSettings()
    chunk_rows: Annotated[int, Field(ge=1)] | None = None
    """rows of a rank that are encoded at once, which saves memory without a change of the gradient
    (GradCache); null: all rows of the rank"""
    chunk_tokens: Annotated[int, Field(ge=1)] | None = None
    """tokens of a rank, of all texts of its rows, that are encoded at once; a row with more tokens is encoded
    alone. Unlike `chunk_rows` it bounds the memory of texts of unequal lengths; with both, both are limits;
    null: no limit"""
    across_ranks: bool = True
    """whether the rows of other ranks are negatives too"""
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """type of matrix products in the forward pass; weights, losses and normalization stay in float32, and
    with float16 the loss is scaled"""
    checkpoint_layers: bool = False
    """activation checkpointing: compute layers again in the backward pass, which takes about a third more
    time and a fraction of the memory"""
    compile: bool = False
    """torch.compile the layers; needs a C++ compiler on a CPU, Triton on a GPU"""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every rank has all weights; fsdp: weights, gradients and the optimizer's state are sharded over
    the ranks (FSDP2)"""
    lora: LoraSettings = LoraSettings()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of new weights, dropout and views; the order of the rows has its own, order.seed"""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = ()
    """train once with each of these as seed and order.seed, one training after the other, in folders named
    <name>-seed-<seed>, and summarize their scores by the median and the best; none: one training"""
    workers: Annotated[int, Field(ge=1)] = 1
    """number of ranks; each has cluster.cpus_per_worker and cluster.gpus_per_worker"""
    threads: Annotated[int, Field(ge=1)] = 1
    """threads of one worker on a CPU"""
    failures: Annotated[int, Field(ge=0)] = 3
    """number of times that dead workers or nodes are replaced before the command ends with exit code 75"""
    checkpoint: CheckpointSettings = CheckpointSettings()
    dev: DevSettings = DevSettings()
    test: TestSetSettings = TestSetSettings()
    watch: WatchSettings = WatchSettings()

    @property
    def new_encoder(self) -> NewEncoderSettings | None:
        """Settings of the encoder with new weights to start from; None to start from encoder.path."""
        return next(iter(self._new_encoders()), None)

    def _new_encoders(self) -> list[NewEncoderSettings]:
        """Return the settings that ask for a new encoder."""
        sections = (getattr(self, name) for name in type(self).model_fields)
        new = (each for each in sections if isinstance(each, NewEncoderSettings))
        return [each for each in new if getattr(each, each.wanted_by) is not None]

    @model_validator(mode="after")
    def _at_most_one_new_encoder(self) -> Self:
        if len(found := self._new_encoders()) > 1:
            listed = ", and ".join(
                f"{each.kind}.{each.wanted_by} is {getattr(each, each.wanted_by)}" for each in found
            )
            raise ValueError(f"at most one new encoder ({listed}); set all but one of them to null")
        return self

    @field_validator("seeds")
    @classmethod
    def _seeds_are_distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len({*value}) < len(value):
            raise ValueError(f"seeds that differ, not {', '.join(map(str, value))}")
        return value

    @property
    def bound_sources(self) -> set[str]:
        """Names of sources that objectives are bound to."""
        return {term.source for term in self.objective if term.source is not None}

    def of_source(self, source: SourceSettings) -> Self:
        """Return the settings with this source alone, and the objectives that its batches train."""
        objectives = tuple(term for term in self.objective if term.source in (None, source.name))
        return self.model_copy(update={"data": (source,), "objective": objectives})

    @model_validator(mode="after")
    def _objectives_have_sources(self) -> Self:
        """Check that each source that objectives are bound to exists, and that every source trains one."""
        if not self.bound_sources:
            return self
        names = [source.name for source in self.data if source.name is not None]
        if unknown := self.bound_sources - {*names}:
            raise ValueError(
                f"objectives bound to sources of train.data ({', '.join(names) or 'none has a name'}): "
                f"{min(unknown)} is none of them; correct objective.source, or the name of the source"
            )
        if len({*names}) < len(names):
            raise ValueError(f"one source of each name: {', '.join(names)}; rename all but one of them")
        idle = [source.uri for source in self.data if not self.of_source(source).objective]
        if idle:
            raise ValueError(f"an objective for every source: {idle[0]} has none; bind an objective to it")
        if self.mixing != "alternate" or self.mine.enabled:
            setting = "mixing: blend" if self.mixing != "alternate" else "mine.enabled: true"
            raise ValueError(
                f"batches with rows of one source, because objectives are bound to sources; remove {setting}"
            )
        return self

    @field_validator("data", "objective", mode="before")
    @classmethod
    def _single_value_becomes_a_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Mapping | Settings) else value

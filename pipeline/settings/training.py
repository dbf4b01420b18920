"""Settings of a training: data, objective, steps, and what is kept."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from pipeline.config import Settings, ShortSettings
from pipeline.settings.weights import LoraSettings, RecurrentSettings

TEXTS = ("text", "sentence1", "sentence2", "premise", "hypothesis", "anchor", "positive", "negative")
ROLES = (*TEXTS, "score", "label", "document", "position")


class Values(Settings):
    """The meaning of numbers and names in a file."""

    labels: tuple[str, ...] = ("entailment", "neutral", "contradiction")
    """names of the labels; a label that is a number is a place in this list"""
    no_label: tuple[str, ...] = ("-", "-1")
    """labels, by name or by number, of rows without one (no majority of the annotators): these rows are left
    out and counted"""
    score_range: tuple[float, float] = (0.0, 5.0)
    """least and highest score; training sees them as 0 and 1"""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if not self.score_range[0] < self.score_range[1]:
            raise ValueError(
                f"score_range to rise: {self.score_range[0]:g}, {self.score_range[1]:g} does not"
            )
        return self


class PairSettings(ShortSettings):
    """Files with training rows, and which column has which role."""

    uri: str
    """a Parquet file, a glob, a directory, or a file:// or s3:// URI of one; or what `manta augment` left: a
    manifest (.json), or the folder augmented/<name> of them, which stands for the newest one when the
    training begins"""
    columns: dict[str, str] = {}
    """role -> column, where the column is not called as its role"""
    missing: Literal["blank", "drop"] = "blank"
    """what a row does without one of the texts that are read: the text is one blank; or the row is left out
    and counted"""
    values: Values = Values()
    """what labels and scores mean"""
    weight: Annotated[int, Field(ge=1)] = 1
    """share of the steps, or of the rows of a batch, that come from here, beside those of the other sources
    """

    def defining(self, *without: str) -> dict[str, Any]:
        """Return the values as JSON, without some names.

        `missing` is included only if it is `drop`: trainings that began before the option existed keep their
        identity.
        """
        return self.model_dump(
            mode="json", exclude={*without, *(["missing"] if self.missing == "blank" else [])}
        )

    @model_validator(mode="after")
    def _known(self) -> Self:
        for role in self.columns:
            if role not in ROLES:
                near = difflib.get_close_matches(role, ROLES, n=1)
                raise ValueError(
                    f"a known role instead of {role!r}; "
                    + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ROLES)}")
                )
        return self


class OrderSettings(Settings):
    """Shuffling, and the rows of each batch."""

    batch_rows: Annotated[int, Field(ge=1)] = 64
    """rows of a global batch, all ranks together"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """of the order"""
    window_rows: Annotated[int, Field(ge=1)] = 65_536
    """rows that are held in memory and shuffled together; at least a batch"""
    bucket_batches: Annotated[int, Field(ge=1)] = 16
    """batches whose rows are sorted by length before they are cut, so that rows of one batch are about as
    long; 1: rows of a batch are drawn from the window alike"""
    repeats: Literal["keep", "drop", "mask"] = "keep"
    """what happens to a row that has a text with another of its batch in common: it stays; changes places
    with a row of another batch; or is no negative of the other"""


class ObjectiveSettings(ShortSettings):
    """One of the objectives that are added up. A plain name is one with its defaults."""

    name: str
    """as in pipeline/objectives"""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """of its loss in the sum"""
    options: dict[str, JsonValue] = {}
    """temperature and so on: see its class"""


class OptimizerSettings(Settings):
    """The optimizer: its step size, schedule and limits."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    """adam adds the weight decay to the gradient, adamw takes it off the weights"""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-5
    """the highest of the schedule"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """on matrices alone; biases and normalisations keep what the data say"""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """of adamw and adam"""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """of adamw, adam and rmsprop: keeps small gradients from large steps"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """of sgd and rmsprop"""
    clip: Annotated[float, Field(gt=0)] | None = 1.0
    """largest norm of the gradient; null: any"""


class ScheduleSettings(Settings):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "stairs", "plateau"] = "linear"
    """linear and cosine fall to 0 behind the last step; stairs takes `stairs`; plateau falls by `decay` with
    every epoch and by `drop` whenever the figure on dev is lower than the last one, and ends the training
    below `least` (Conneau et al. 2017)"""
    warmup: Annotated[float, Field(ge=0)] = 0.0
    """steps in which the rate rises to its height by equal parts; below 1: a share of all steps"""
    stairs: dict[int, float] = {}
    """step -> learning rate from there on"""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.99
    """of plateau: the rate is multiplied by it after each epoch"""
    drop: Annotated[float, Field(gt=0, le=1)] = 0.2
    """of plateau: and by this when dev got worse"""
    least: Annotated[float, Field(ge=0)] = 1e-5
    """of plateau: a rate below it ends the training"""


class CheckpointSettings(Settings):
    """Checkpoints, from which a killed training continues."""

    steps: Annotated[int, Field(ge=1)] | None = 500
    """steps between two checkpoints; null: by time alone"""
    minutes: Annotated[float, Field(gt=0)] | None = 15.0
    """minutes between two checkpoints at most; null: by steps alone"""
    keep: Annotated[int, Field(ge=1)] = 2
    """last checkpoints that stay"""
    keep_best: Annotated[int, Field(ge=1)] = 1
    """checkpoints with the best figures on dev that stay beside them"""


class DevSettings(Settings):
    """Measurements during a training that show whether the encoder gets better."""

    uri: str | None = None
    """a Parquet file that is not trained on; null: the last weights are the product, and the loss of the
    same rows is measured before the first step and after the last"""
    measure: Literal["spearman", "accuracy"] = "spearman"
    """spearman: x100, of the cosines of rated pairs (sentence1, sentence2, score); accuracy: percent of pairs
    (premise, hypothesis, label) that the objective's own classifier (classification, r_drop) puts where
    people do, with labels as in the first of `data`"""
    columns: dict[str, str] = {}
    """role -> column, where they differ"""
    steps: Annotated[int, Field(ge=1)] = 250
    """steps between two measurements; the first is before the first step, the last after the last one"""
    patience: Annotated[int, Field(ge=1)] | None = None
    """measurements without a better figure after which the training ends; null: never"""
    keep: Literal["best", "last"] = "best"
    """which weights become the product"""


class MineSettings(Settings):
    """Hard negatives for (anchor, positive) rows, found by the encoder that training starts from, through an
    index over all positives.
    """

    enabled: bool = False
    """mine before the first step; rows then have a negative, in place of one that they may have already"""
    neighbours: Annotated[int, Field(ge=1)] = 50
    """nearest positives looked at for each anchor, those known to be right not counted"""
    skip: Annotated[int, Field(ge=0)] = 0
    """nearest ones of these that are passed over: the likeliest to be positives too"""
    margin: float | None = 0.05
    """a negative's cosine with the anchor stays at least so far below the positive's; null: any"""
    most: Annotated[float, Field(gt=-1, le=1)] | None = None
    """highest cosine with the anchor; null: any"""
    negatives: Annotated[int, Field(ge=1)] = 1
    """rows made of one pair, each with another negative"""
    pick: Literal["first", "random"] = "first"
    """of those that are left: the nearest, or drawn by the seed"""

    @model_validator(mode="after")
    def _some_are_looked_at(self) -> Self:
        if self.skip >= self.neighbours:
            raise ValueError(
                f"skip to be below neighbours: {self.skip} of {self.neighbours} passed over leaves none"
            )
        return self


class WatchSettings(Settings):
    """Reports during a training."""

    steps: Annotated[int, Field(ge=1)] = 10
    """steps that one line of figures is about"""
    trackers: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] | None = None
    """where figures go beside metrics.jsonl; null: tensorboard where it is installed. mlflow and wandb read
    their own environment variables"""


class TrainSettings(Settings):
    """The training of an encoder: `encoder` is where it starts."""

    root: str = "trainings"
    """a directory or URI below which every training has a folder"""
    name: str | None = None
    """of the folder; null: made from the objective and from what defines the training, so that equal commands
    go on with one training"""
    data: tuple[PairSettings, ...] = ()
    """files with training rows: plain URIs or {uri, columns, values, weight}"""
    mixing: Literal["alternate", "blend"] = "alternate"
    """batches of one source each, in turn by weight; or each batch of rows of all sources"""
    mine: MineSettings = MineSettings()
    objective: Annotated[tuple[ObjectiveSettings, ...], Field(min_length=1)] = (
        ObjectiveSettings(name="simcse"),
    )
    """a name, or {name, weight, options}, or a list of them, whose losses are added"""
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """the loss is summed over the vectors' first so many dimensions (Kusupati et al. 2022); none: all
    dimensions alone"""
    recurrent: RecurrentSettings = RecurrentSettings()
    fresh: bool = False
    """begin with newly drawn weights of the encoder's architecture instead of its own"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """rate at every place of the family; null: as config.json says"""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """tokens of a training text that are read, special tokens included; null: as many as the encoder reads.
    The trained encoder, the measurements on dev and those of the same rows read as far as the encoder does
    """
    epochs: Annotated[float, Field(gt=0)] = 1.0
    """passes over the rows; a part of one is allowed"""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """an end before that"""
    order: OrderSettings = OrderSettings()
    chunk_rows: Annotated[int, Field(ge=1)] | None = None
    """rows of a rank that are encoded at once: the gradient stays that of the whole batch (GradCache); null:
    all"""
    across_ranks: bool = True
    """whether other ranks' rows are candidates too"""
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """of the forward pass's products; weights, losses and normalisations stay float32; float16 scales its
    loss"""
    checkpoint_layers: bool = False
    """layers compute their inner values anew in the backward pass: a third more work for a fraction of the
    memory"""
    compile: bool = False
    """torch.compile the layers; needs a C++ compiler on a CPU, Triton on a GPU"""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """every rank holds all weights; or weights, gradients and the optimizer's state are sharded over the
    ranks (FSDP2)"""
    lora: LoraSettings = LoraSettings()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """of new weights, dropout and views; order.seed is that of the rows"""
    workers: Annotated[int, Field(ge=1)] = 1
    """ranks: each has cluster.cpus_per_worker and cluster.gpus_per_worker"""
    threads: Annotated[int, Field(ge=1)] = 1
    """threads of one worker's arithmetic on a CPU"""
    failures: Annotated[int, Field(ge=0)] = 3
    """times that dead workers or nodes are replaced before the command ends with exit code 75"""
    checkpoint: CheckpointSettings = CheckpointSettings()
    dev: DevSettings = DevSettings()
    watch: WatchSettings = WatchSettings()

    @field_validator("data", "objective", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Mapping | Settings) else value

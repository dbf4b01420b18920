"""The plan of a training, checked before anything starts: its rows in their order, and its steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.settings.training import TrainSettings, Values
from pipeline.text.rows.batches import Order, RankSlice
from pipeline.text.rows.mixture import AlternatingOrder, BlendedOrder, reduce_weights, rows_per_source
from pipeline.text.rows.neighbours import NeighbourOrder
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.pairs import TrainingRows, open_training_rows

if TYPE_CHECKING:
    from pipeline.train.dev import DevSet


@dataclass(frozen=True)
class Plan:
    """The rows of a training in their order, and its steps. Can be pickled."""

    order: Order
    steps: int
    counts: tuple[Mapping[str, int], ...]
    """for each source: rows in the files, and unlabelled rows left out"""


def check_settings(settings: TrainSettings) -> None:
    """Check the settings without reading any row.

    Raises:
        ConfigError: adapters, trackers, dev set, objective or its options are invalid, or workers cannot
            share a batch.
    """
    from pipeline.models.trainable.lora import check_adapters
    from pipeline.objectives.build import data_requirements
    from pipeline.train.trackers import tracker_names

    check_adapters(settings)
    tracker_names(settings.watch)
    if not settings.data:
        raise ConfigError(
            "train.data", "files with training rows", "none", "name them, such as train.data=pairs.parquet"
        )
    _check_dev(settings)
    data_requirements(settings)
    _check_rows(settings)


def check_length(settings: TrainSettings, encoder: EncoderFolder) -> None:
    """Raise ConfigError if train.max_length is above that of the encoder, or leaves no room for a text."""
    if settings.max_length is None:
        return
    if settings.max_length > encoder.max_length:
        raise ConfigError(
            "train.max_length",
            f"at most the {encoder.max_length} tokens of a text that the encoder reads",
            f"{settings.max_length}",
            "lower it, or raise encoder.max_length, where the model has more positions",
        )
    around = encoder.max_length - encoder.tokenizer().room
    if settings.max_length <= around:
        raise ConfigError(
            "train.max_length",
            "room for at least one token of a text",
            f"{settings.max_length}, of which {around} are around every text",
            "raise it",
        )


def plan_of(settings: TrainSettings) -> Plan:
    """Plan the training. Columns, labels and scores are checked here.

    Raises:
        ConfigError: as in `check_settings`, and for invalid weights.
        DataError: rows that cannot be trained on.
    """
    from pipeline.objectives.build import data_requirements

    check_settings(settings)
    columns, optional, order = data_requirements(settings)
    sources = tuple(open_training_rows(source, columns, optional) for source in settings.data)
    rows = _order(settings, sources, contiguous=order == "contiguous")
    steps = max(1, round(settings.epochs * rows.steps_per_epoch))
    return Plan(rows, min(steps, settings.max_steps or steps), tuple(source.counts for source in sources))


def open_dev(settings: TrainSettings) -> "DevSet | None":
    """Open the dev set; None if there is none. Raises DataError for an unusable file."""
    from pipeline.train.dev import DevSet

    if settings.dev.uri is None:
        return None
    return DevSet.open(settings.dev, settings.data[0].values if settings.data else Values())


def _order(settings: TrainSettings, sources: Sequence[TrainingRows], *, contiguous: bool) -> Order:
    """Return one order of all rows; contiguous: a batch must be a piece of one document.

    Raises:
        ConfigError: contiguous sources would be blended, or weights do not divide a batch.
    """
    kind = NeighbourOrder if contiguous else ShuffledOrder
    weights = reduce_weights([source.settings.weight for source in sources])
    if len(sources) == 1:
        return kind(sources[0], settings.order)
    if settings.mixing == "alternate":
        orders = tuple(kind(source, settings.order) for source in sources)
        return AlternatingOrder(orders, weights, settings.order.seed)
    if contiguous:
        raise ConfigError(
            "train.mixing",
            "alternate, because the objective reads neighbouring texts: a batch is a piece of one document",
            "blend",
            "leave it out",
        )
    orders = tuple(
        kind(source, settings.order.model_copy(update={"batch_rows": rows}))
        for source, rows in zip(sources, rows_per_source(settings.order.batch_rows, weights), strict=True)
    )
    roles = tuple(role for role in sources[0].roles if all(role in source.roles for source in sources))
    rows = tuple(source.counts["rows"] for source in sources)
    return BlendedOrder(orders, roles, rows, settings.order.seed)


def _check_dev(settings: TrainSettings) -> None:
    """Raise ConfigError if a setting needs scores on dev that cannot be measured."""
    from pipeline.objectives import OBJECTIVES

    if settings.dev.measure == "accuracy" and not OBJECTIVES[settings.objective[0].name].classifies:
        known = ", ".join(name for name in OBJECTIVES.names() if OBJECTIVES[name].classifies)
        raise ConfigError(
            "train.dev.measure accuracy",
            f"a first objective that trains a classifier ({known})",
            settings.objective[0].name,
            "measure spearman",
        )
    if settings.dev.uri is not None:
        return
    if settings.dev.patience is not None:
        raise ConfigError(
            "train.dev.patience",
            "a file to measure on (train.dev.uri)",
            "none",
            "set it, or remove train.dev.patience",
        )
    if settings.schedule.name == "plateau":
        raise ConfigError(
            "train.schedule plateau",
            "a file to measure on (train.dev.uri), because the rate depends on the score",
            "none",
            "set it, or choose another schedule",
        )


def _check_rows(settings: TrainSettings) -> None:
    """Raise ConfigError if workers cannot share a batch, or if an objective has too few rows to compare."""
    from pipeline.objectives import OBJECTIVES

    rows = settings.order.batch_rows
    first, last = RankSlice(0, settings.workers).bounds(rows)
    seen = rows if settings.across_ranks else last - first
    for one in settings.objective:
        objective = OBJECTIVES[one.name]
        objective.check_batch(one.options, seen, everyone=seen == rows)
        if seen < objective.min_rows:
            raise ConfigError(
                "train.order.batch_rows" if seen == rows else "train.order.batch_rows over train.workers",
                f"{objective.min_rows} rows or more, since {one.name} compares them",
                f"{seen}",
                "make the batch larger" + ("" if seen == rows else ", or set train.across_ranks"),
            )

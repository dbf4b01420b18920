"""Plan a training before it starts: check its settings, and determine its rows, their order and its steps."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.log import announce
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.word_vectors import words_of
from pipeline.models.trainable.lora import check_adapters
from pipeline.objectives import OBJECTIVES, ClassifiesPairs, MasksWords, PredictsRows
from pipeline.objectives.build import adjacent_roles, data_requirements
from pipeline.settings.training import TEXTS, TrainSettings
from pipeline.stats.geometry import Metric
from pipeline.stats.lexical import lexical_overlap
from pipeline.stats.sample import SEED
from pipeline.text.rows.adjacent import with_adjacent
from pipeline.text.rows.batches import Order, RankSlice
from pipeline.text.rows.mixture import AlternatingOrder, BlendedOrder, reduce_weights, rows_per_source
from pipeline.text.rows.neighbours import NeighbourOrder
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.row_sample import sample_rows
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows
from pipeline.text.sources.listing import local_path
from pipeline.train.dev import DevFile, DevSet, MaskedTexts
from pipeline.train.predicted_rows import PredictedRows
from pipeline.train.schedule import Schedule
from pipeline.train.trackers import tracker_names

_MAX_ROWS = 10_000  # the mean has a standard error of about 0.003 for a standard deviation of 0.25
_BESIDE_ANCHOR = ("positive", "negative", "negative2")


def measure_overlap(training_rows: TrainingRows, max_rows: int = _MAX_ROWS) -> dict[str, Metric]:
    """Measure the mean lexical overlap of the anchors with their positives and with their negatives.

    Words are those of `words_of`: lowercased texts are split at white space, and then into words, numbers and
    signs. Texts in scripts without spaces have to be segmented first. Pairs in which a text has no word are
    left out.

    Args:
        training_rows: rows of one source.
        max_rows: largest number of rows in the random sample, which `sample_rows` draws.

    Returns:
        The mean of `lexical_overlap` by role, positive first. Empty if the rows have no anchors. A role is
        left out if it is read from the same column as the anchors, or has no pair to measure.

    Raises:
        DataError: as in `TrainingRows.read`.
    """
    roles = _roles_beside_anchor(training_rows)
    if not roles:
        return {}
    rows, overlaps = 0, {role: list[float]() for role in roles}
    for table in sample_rows(training_rows, ("anchor", *roles), max_rows, SEED):
        anchors = _words(table["anchor"])
        for role in roles:
            pairs = zip(anchors, _words(table[role]), strict=True)
            overlaps[role] += [lexical_overlap(left, right) for left, right in pairs if left and right]
        rows += len(table)
    seed = SEED if rows < len(training_rows) else None
    return {
        role: Metric(value=fmean(values), count=len(values), of="pairs", seed=seed)
        for role, values in overlaps.items()
        if values
    }


def _roles_beside_anchor(training_rows: TrainingRows) -> list[str]:
    """Return the roles whose texts are compared with the anchors, except roles of the anchors' own column."""
    columns = {role: training_rows.settings.columns.get(role, role) for role in training_rows.roles}
    anchor = columns.get("anchor")
    return [role for role in _BESIDE_ANCHOR if anchor and columns.get(role, anchor) != anchor]


def _words(texts: pa.ChunkedArray) -> list[list[str]]:
    return [list(words_of(text)) for text in texts.to_pylist()]


def describe_repeats(training_rows: TrainingRows, max_rows: int = _MAX_ROWS) -> Iterator[str]:
    """Yield a warning for each way in which most rows are alike, so that little can be learnt from them.

    Blank texts, one text in most rows, one text for two roles of a row, and a single label are counted in a
    random sample.

    Args:
        training_rows: rows of one source.
        max_rows: largest number of rows in the sample, which `sample_rows` draws.

    Raises:
        DataError: as in `TrainingRows.read`.
    """
    columns = {role: training_rows.settings.columns.get(role, role) for role in training_rows.roles}
    by_column = {column: role for role, column in columns.items() if role in TEXTS}
    roles = [*by_column.values(), *(role for role in columns if role == "label")]
    sample = pa.concat_tables(sample_rows(training_rows, roles, max_rows, SEED)) if roles else None
    if sample is None or len(sample) < 2:
        return
    for role in by_column.values():
        blank = pc.sum(pc.equal(pc.utf8_trim_whitespace(sample[role]), "")).as_py() or 0
        ((repeated, count),) = Counter(sample[role].to_pylist()).most_common(1)
        if 2 * blank > len(sample):
            yield f"{blank:,} of {len(sample):,} texts of the role {role} are blank"
        elif 2 * count > len(sample):
            yield f"{count:,} of {len(sample):,} texts of the role {role} are {repeated[:60]!r}"
    for one, other in combinations(by_column.values(), 2):
        if 2 * (equal := pc.sum(pc.equal(sample[one], sample[other])).as_py() or 0) > len(sample):
            yield f"{equal:,} of {len(sample):,} rows have the same text as {one} and as {other}"
    if "label" in roles and len(labels := sample["label"].unique()) == 1:
        yield f"all of {len(sample):,} rows have the label {labels[0]}"


@dataclass(frozen=True)
class Plan:
    """Rows of a training in their order, and its steps. Can be pickled."""

    order: Order
    """order of the rows, which yields the batches"""
    steps: int
    """number of steps of the training"""
    counts: tuple[Mapping[str, int], ...]
    """counts of each source: "rows" in the files, and rows that were left out, by reason"""
    overlaps: tuple[Mapping[str, Metric], ...]
    """mean lexical overlap of anchors with positives and negatives, by role, of each source"""
    sources: tuple[str, ...]
    """URIs of the rows; local paths are absolute, because workers have another working directory"""


def check_settings(settings: TrainSettings) -> None:
    """Check the settings without reading any row.

    Raises:
        ConfigError: invalid adapters, trackers, dev set, schedule, objectives or options; or a batch that
        workers cannot divide.
    """
    check_adapters(settings)
    Schedule(settings.schedule, settings.optimizer.learning_rate, steps=1, steps_per_epoch=1)
    tracker_names(settings.watch)
    if not settings.data:
        raise ConfigError(
            "train.data", "files with training rows", "none", "name them, such as train.data=pairs.parquet"
        )
    _check_dev(settings)
    for source in settings.data:
        data_requirements(settings.of_source(source))
    _check_rows(settings)


def check_encoder(settings: TrainSettings, encoder: EncoderFolder) -> None:
    """Check how the encoder reads texts.

    Raises:
        ConfigError: encoder.exclude is set, or train.max_length is above the encoder's limit, or leaves no
        room for a text.
    """
    if encoder.averaging.exclude:
        raise ConfigError(
            "encoder.exclude",
            "an empty list, because a training averages all tokens",
            ", ".join(encoder.averaging.exclude),
            "set it to [], and set it again to encode with the trained encoder",
        )
    if settings.max_length is None:
        return
    if settings.max_length > encoder.max_length:
        raise ConfigError(
            "train.max_length",
            f"at most the {encoder.max_length} tokens of a text that the encoder reads",
            f"{settings.max_length}",
            "lower it, or raise encoder.max_length if the model has more positions",
        )
    special = encoder.max_length - encoder.tokenizer().max_text_tokens
    if settings.max_length <= special:
        raise ConfigError(
            "train.max_length",
            "room for at least one token of a text",
            f"{settings.max_length}, of which {special} are around every text",
            "raise it",
        )


def plan_of(settings: TrainSettings) -> Plan:
    """Plan the training. Reads the files to check their columns, labels and scores, and a sample of pairs.

    Raises:
        ConfigError: as in `check_settings`, or weights of sources that cannot be met.
        DataError: rows that cannot be trained on.
    """
    check_settings(settings)
    sources, order_classes = zip(
        *(_open_source(settings.of_source(source)) for source in settings.data), strict=True
    )
    for source in sources:
        for sentence in describe_repeats(source):
            announce(f"{source.settings.uri}: {sentence}; little can be learnt from these")
    order = _order(settings, sources, order_classes)
    steps = max(1, round(settings.epochs * order.steps_per_epoch))
    return Plan(
        order,
        min(steps, settings.max_steps or steps),
        tuple(source.counts for source in sources),
        tuple(map(measure_overlap, sources)),
        tuple(local_path(source.settings.uri) or source.settings.uri for source in sources),
    )


def _open_source(settings: TrainSettings) -> tuple[TrainingRows, type[NeighbourOrder | ShuffledOrder]]:
    """Open the rows of the only source of the settings; return them with the class of their order.

    Raises:
        DataError: as in `plan_of`.
    """
    required = data_requirements(settings)
    rows = open_training_rows(settings.data[0], required.columns, required.optional)
    if required.order == "adjacent":
        rows = with_adjacent(rows, adjacent_roles(settings), settings.order.seed)
    return rows, (NeighbourOrder if required.order == "contiguous" else ShuffledOrder)


def open_dev(settings: TrainSettings) -> DevFile | None:
    """Open the dev set; None if the settings have none.

    Raises:
        ConfigError: the metric does not fit the classes.
        DataError: an unusable file.
    """
    if settings.dev.uri is None:
        return None
    if settings.dev.measure == "log_likelihood":
        return MaskedTexts.open(settings)
    if issubclass(OBJECTIVES[settings.objective[0].name], PredictsRows):
        return PredictedRows.open(settings, settings.dev)
    return DevSet.open(settings.dev, settings.data[0].values if settings.data else None)


def open_test(settings: TrainSettings) -> PredictedRows | None:
    """Open the test set; None if the settings have none.

    Raises:
        ConfigError: the first objective predicts neither labels nor scores.
        DataError: an unusable file.
    """
    if settings.test.uri is None:
        return None
    first = settings.objective[0].name
    if not issubclass(OBJECTIVES[first], PredictsRows):
        known = [name for name in OBJECTIVES.names() if issubclass(OBJECTIVES[name], PredictsRows)]
        raise ConfigError(
            "train.test.uri",
            f"a first objective that predicts labels or scores: {' or '.join(known)}",
            first,
            "remove train.test, and measure the trained encoder with manta evaluate",
        )
    return PredictedRows.open(settings, settings.test)


def _order(
    settings: TrainSettings,
    sources: Sequence[TrainingRows],
    order_classes: Sequence[type[NeighbourOrder | ShuffledOrder]],
) -> Order:
    """Combine the sources into one order of all rows.

    Args:
        settings: settings of the training.
        sources: rows of each source.
        order_classes: order of each source; NeighbourOrder has batches of consecutive sentences.

    Raises:
        ConfigError: contiguous sources would be blended, or weights do not divide a batch.
    """
    weights = reduce_weights([source.settings.weight for source in sources])
    if len(sources) == 1:
        return order_classes[0](sources[0], settings.order)
    if settings.mixing == "alternate":
        orders = tuple(
            order_class(source, settings.order)
            for order_class, source in zip(order_classes, sources, strict=True)
        )
        return AlternatingOrder(orders, weights, settings.order.seed)
    if NeighbourOrder in order_classes:
        raise ConfigError(
            "train.mixing",
            "alternate, because the objective reads neighbouring texts: a batch is a piece of documents",
            "blend",
            "leave it out",
        )
    orders = tuple(
        ShuffledOrder(source, settings.order.model_copy(update={"batch_rows": rows}))
        for source, rows in zip(sources, rows_per_source(settings.order.batch_rows, weights), strict=True)
    )
    roles = tuple(role for role in sources[0].roles if all(role in source.roles for source in sources))
    for role in dict.fromkeys(role for source in sources for role in source.roles if role not in roles):
        announce(f"train.mixing blend: not every source has a column with the role {role}, so it is not used")
    rows = tuple(source.counts["rows"] for source in sources)
    return BlendedOrder(orders, roles, rows, settings.order.seed)


def _check_dev(settings: TrainSettings) -> None:
    """Raise ConfigError if a setting depends on scores on dev that cannot be measured."""
    _check_measure(settings)
    if settings.dev.uri is not None:
        return
    if settings.dev.patience is not None:
        raise ConfigError(
            "train.dev.patience",
            "a file to measure on (train.dev.uri)",
            "none",
            "set train.dev.uri, or remove train.dev.patience",
        )
    if settings.schedule.name == "plateau":
        raise ConfigError(
            "train.schedule plateau",
            "a file to measure on (train.dev.uri), because the rate depends on the score",
            "none",
            "set train.dev.uri, or choose another schedule",
        )


def _check_measure(settings: TrainSettings) -> None:
    """Raise ConfigError if the first objective does not have the score train.dev.measure."""

    def measures(name: str) -> tuple[str, ...]:
        objective = OBJECTIVES[name]
        if issubclass(objective, PredictsRows):
            return objective.measures
        classifies, masks = issubclass(objective, ClassifiesPairs), issubclass(objective, MasksWords)
        return ("spearman", *("accuracy",) * classifies, *("log_likelihood",) * masks)

    measure, first = settings.dev.measure, settings.objective[0].name
    is_default = settings.dev.uri is None and "measure" not in settings.dev.model_fields_set
    if measure not in measures(first) and not is_default:
        known = [name for name in OBJECTIVES.names() if measure in measures(name)]
        raise ConfigError(
            f"train.dev.measure {measure}",
            f"a score that the first objective has: {first} has {' and '.join(measures(first))}",
            f"a score of {', '.join(known)}",
            f"measure {measures(first)[0]}, or train another first objective",
        )


def _check_rows(settings: TrainSettings) -> None:
    """Raise ConfigError if a batch cannot be divided among the workers, or has unsuitable rows."""
    rows = settings.order.batch_rows
    first, last = RankSlice(0, settings.workers).bounds(rows)
    compared = rows if settings.across_ranks else last - first  # rows that the loss compares with each other
    for term in settings.objective:
        objective = OBJECTIVES[term.name]
        if objective.numbers_rows and len(settings.data) > 1 and settings.mixing == "alternate":
            raise ConfigError(
                "train.mixing",
                f"blend, because {term.name} has weights for each row of all sources together",
                f"alternate, with {len(settings.data)} sources",
                "set train.mixing=blend, or write all rows into one source",
            )
        objective.check_batch(term.options, compared, all_ranks=compared == rows)
        if compared < objective.min_rows:
            raise ConfigError(
                "train.order.batch_rows"
                if compared == rows
                else "train.order.batch_rows / train.workers (rows per rank)",
                f"{objective.min_rows} rows or more, since {term.name} compares them",
                f"{compared}",
                "make the batch larger" + ("" if compared == rows else ", or set train.across_ranks"),
            )

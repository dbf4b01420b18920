"""Compare two releases, and format the result of `manta releases diff`."""

from typing import TYPE_CHECKING, Any

from jobs.boundary import refuse_few_addresses
from jobs.command import Answer
from jobs.layout import table, table_within
from pipeline.log import Stages, counted

if TYPE_CHECKING:
    from pipeline.flows.night.release_difference import Difference
    from pipeline.store.releases.release import Releases

# Clearer labels of some kinds of differences.
_KIND_LABELS = {"kept": "kept columns"}
_MAX_CHARACTERS = 60  # characters of a text or a setting that are shown


def compare(
    opened: "Releases",
    numbers: tuple[int | None, int | None],
    queries: tuple[str, ...],
    examples: int,
    width: int | None,
) -> Answer:
    """Compare the second release with the first.

    Args:
        numbers: numbers of the two releases; None for the current one.
        queries: texts to search in both releases, besides the fixed queries.
        examples: number of rows to show for each kind of difference.
        width: width of the output in terminal cells; None without a limit.
    """
    refuse_few_addresses()
    from pipeline.flows.night.release_difference import difference as compare_releases
    from pipeline.index.search.search import open_release

    stages = Stages()
    with stages("open both"):
        before, after = (open_release(opened, number) for number in numbers)
    with stages("compare"):
        diff = compare_releases(before, after, opened.store, queries, examples)
    return Answer(_facts(diff), "\n\n".join(_sections(diff, width)))


def _facts(diff: "Difference") -> dict[str, Any]:
    """Return the difference as a JSON object."""
    before, after = diff.before, diff.after
    return {
        "before": before.release,
        "after": after.release,
        "spaces": [before.space_id, after.space_id],
        "transforms": [before.transform_id, after.transform_id],
        "rows": diff.rows.counts | {"before": before.rows, "after": after.rows},
        "examples": {name: [each._asdict() for each in rows] for name, rows in diff.rows.examples.items()},
        "settings": {name: list(values) for name, values in diff.settings.items()},
        "gates": {name: list(values) for name, values in diff.gates.items()},
        "drift": vars(diff.drift) | {"distance": diff.drift.distance} if diff.drift else None,
        "queries": [each._asdict() | {"shared": each.shared} for each in diff.answers],
    }


def _sections(diff: "Difference", width: int | None) -> list[str]:
    """Format the difference as paragraphs and tables for people."""
    from pipeline.report.formats import gate_name

    before, after = diff.before, diff.after
    counts = ", ".join(
        f"{count:,} {_KIND_LABELS.get(kind, kind)}" for kind, count in diff.rows.counts.items()
    )
    examples = [
        (_KIND_LABELS.get(kind, kind), each.id, _shown(each.before), _shown(each.after))
        for kind, rows in diff.rows.examples.items()
        for each in rows
    ]
    settings = [(name, _shorten(old), _shorten(new)) for name, (old, new) in diff.settings.items()]
    gates = [
        (gate_name(name), _format_number(old), _format_number(new)) for name, (old, new) in diff.gates.items()
    ]
    return [
        f"release {after.release} ({counted(after.rows, 'row')}) against release {before.release} "
        f"({counted(before.rows, 'row')})\nrows: {counts}",
        *([table_within(examples, ("row", "id", "before", "after"), width)] if examples else []),
        f"space: {_compare_ids(before.space_id, after.space_id)}\n"
        f"transform: {_compare_ids(before.transform_id, after.transform_id)}\n{_drift(diff)}",
        table_within(settings, ("setting", "before", "after"), width) if settings else "settings: the same",
        *([table(gates, ("gate", "before", "after"))] if gates else []),
        _answers(diff, width),
    ]


def _shown(text: str | None) -> str:
    """Shorten the text of a row; "" if the row is not in the release."""
    return "" if text is None else _shorten(text) or "(not shown)"


def _answers(diff: "Difference", width: int | None) -> str:
    """Format the queries whose results differ between the releases, with the first result in each release."""
    if not diff.answers:
        return "queries: not compared: one of the releases has no vectors of the fixed queries"
    changed = [each for each in diff.answers if each.before != each.after]
    summary = f"queries: {len(changed)} of {len(diff.answers)} have other results"
    if not changed:
        return summary
    lines = [
        (
            _shorten(each.query),
            f"{each.shared} of {max(len(each.before), len(each.after))}",
            next(iter(each.before), ""),
            next(iter(each.after), ""),
        )
        for each in changed
    ]
    return summary + "\n" + table_within(lines, ("query", "in both", "first before", "first after"), width)


def _drift(diff: "Difference") -> str:
    drift = diff.drift
    if drift is None:
        return "drift: not measured: other space, no moments, or not more rows than dimensions"
    return (
        f"drift: {drift.distance:.4f} (shift {drift.shift:.4f}, spread {drift.spread:.4f}, outside "
        f"{drift.outside:.4f})"
    )


def _compare_ids(before: str | None, after: str | None) -> str:
    if before == after:
        return "the same" if before else "none"
    return f"{(before or 'none')[:16]} before, {(after or 'none')[:16]} now"


def _format_number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:g}"


def _shorten(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"

"""Output of `manta releases diff`."""

from typing import TYPE_CHECKING, Any

from jobs.command import Answer
from jobs.layout import fitted, table
from pipeline.log import Stages, counted

if TYPE_CHECKING:
    from pipeline.flows.night.difference import Difference
    from pipeline.store.release import Releases

_KINDS = {"kept": "kept columns"}  # kinds of rows whose name needs a noun
_CUT = 60  # characters of a text or a setting that are shown


def compare(
    opened: "Releases",
    numbers: tuple[int | None, int | None],
    queries: tuple[str, ...],
    examples: int,
    width: int | None,
) -> Answer:
    """Compare the second release with the first; None stands for the current one.

    Args:
        queries: asked of both releases, besides the fixed ones.
        examples: rows shown of each kind.
        width: cells in a line; None without a limit.
    """
    from pipeline.flows.night.difference import difference
    from pipeline.index.search import open_chosen

    stages = Stages()
    with stages("open both"):
        was, is_ = (open_chosen(opened, number) for number in numbers)
    with stages("compare"):
        found = difference(was, is_, opened.store, queries, examples)
    return Answer(_facts(found), "\n\n".join(_sections(found, width)))


def _facts(found: "Difference") -> dict[str, Any]:
    before, after = found.before, found.after
    return {
        "before": before.release,
        "after": after.release,
        "spaces": [before.space_id, after.space_id],
        "transforms": [before.transform_id, after.transform_id],
        "rows": found.rows.counts | {"before": before.rows, "after": after.rows},
        "examples": {name: [each._asdict() for each in rows] for name, rows in found.rows.examples.items()},
        "settings": {name: list(values) for name, values in found.settings.items()},
        "gates": {name: list(values) for name, values in found.gates.items()},
        "drift": vars(found.drift) | {"distance": found.drift.distance} if found.drift else None,
        "queries": [each._asdict() | {"shared": each.shared} for each in found.answers],
    }


def _sections(found: "Difference", width: int | None) -> list[str]:
    before, after = found.before, found.after
    counts = ", ".join(f"{count:,} {_KINDS.get(kind, kind)}" for kind, count in found.rows.counts.items())
    examples = [
        (_KINDS.get(kind, kind), each.id, _short(each.before or ""), _short(each.after or ""))
        for kind, rows in found.rows.examples.items()
        for each in rows
    ]
    settings = [(name, _short(old), _short(new)) for name, (old, new) in found.settings.items()]
    gates = [(name, _number(old), _number(new)) for name, (old, new) in found.gates.items()]
    return [
        f"release {after.release} ({counted(after.rows, 'row')}) against release {before.release} "
        f"({counted(before.rows, 'row')})\nrows: {counts}",
        *([fitted(examples, ("row", "id", "before", "after"), width)] if examples else []),
        f"space: {_same(before.space_id, after.space_id)}\n"
        f"transform: {_same(before.transform_id, after.transform_id)}\n{_drift(found)}",
        fitted(settings, ("setting", "before", "after"), width) if settings else "settings: the same",
        *([table(gates, ("gate", "before", "after"))] if gates else []),
        _answers(found, width),
    ]


def _answers(found: "Difference", width: int | None) -> str:
    if not found.answers:
        return "queries: not compared: a release keeps no vectors of the fixed queries"
    moved = [each for each in found.answers if each.before != each.after]
    head = f"queries: {len(moved)} of {len(found.answers)} are answered otherwise"
    if not moved:
        return head
    lines = [
        (
            _short(each.query),
            f"{each.shared} of {max(len(each.before), len(each.after))}",
            next(iter(each.before), ""),
            next(iter(each.after), ""),
        )
        for each in moved
    ]
    return head + "\n" + fitted(lines, ("query", "in both", "first before", "first after"), width)


def _drift(found: "Difference") -> str:
    moved = found.drift
    if moved is None:
        return "drift: not measured: vectors of two spaces, or no moments"
    return (
        f"drift: {moved.distance:.4f} (shift {moved.shift:.4f}, spread {moved.spread:.4f}, outside "
        f"{moved.outside:.4f})"
    )


def _same(before: str | None, after: str | None) -> str:
    if before == after:
        return "the same" if before else "none"
    return f"{(before or 'none')[:16]} before, {(after or 'none')[:16]} now"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:g}"


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _CUT else text[: _CUT - 1] + "…"

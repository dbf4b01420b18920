"""Output of `manta releases quarantine`."""

from typing import TYPE_CHECKING, Any

from jobs.command import Answer
from jobs.layout import fitted, table
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.store.release import Releases

_COLUMNS = ("file", "row", "id", "detail", "excerpt")


def set_aside(
    opened: "Releases", number: int | None, reason: str | None, limit: int, width: int | None
) -> Answer:
    """Counts by reason, and the first `limit` rows of each, in lines of at most `width` cells."""
    from pipeline.text.corpus.quarantine import list_quarantined

    manifest = opened.chosen(number)
    counts, rows, files = list_quarantined(opened.store, manifest, reason, limit)
    if reason is not None and reason not in counts:
        there = ", ".join(counts) or "none"
        raise ConfigError(
            "releases quarantine: --reason",
            f"a reason of release {manifest.release}",
            repr(reason),
            f"there are: {there}",
        )
    facts = {"release": manifest.release, "reasons": counts, "files": list(files), "rows": rows}
    if not counts:
        return Answer(facts, f"release {manifest.release}: no row was set aside")
    total = sum(counts.values())
    head = f"release {manifest.release}: {total:,} rows set aside, {manifest.rows:,} live"
    reasons = table([(name, f"{count:,}") for name, count in counts.items()], ("reason", "rows"))
    parts = [
        head,
        reasons,
        *(_of_reason(name, rows, width) for name in counts if any(row["reason"] == name for row in rows)),
    ]
    return Answer(
        facts, "\n\n".join([*parts, "all of them, as Parquet:\n" + "\n".join(f"  {file}" for file in files)])
    )


def _of_reason(name: str, rows: list[dict[str, Any]], width: int | None) -> str:
    lines = [
        tuple(_cell(column, row[column]) for column in _COLUMNS) for row in rows if row["reason"] == name
    ]
    return f"{name}\n{fitted(lines, _COLUMNS, width)}"


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    return "whole file" if column == "row" and value < 0 else " ".join(str(value).split())

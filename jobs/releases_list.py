"""Output of `manta releases list` and `show`."""

from typing import TYPE_CHECKING

from jobs.command import Answer
from jobs.layout import table
from pipeline.errors import DataError
from pipeline.log import printable, size

if TYPE_CHECKING:
    from pipeline.store.commits import Commit
    from pipeline.store.manifest import ReleaseManifest
    from pipeline.store.release import Releases


def every(opened: "Releases", root: str) -> Answer:
    """Commits in order, with what their releases hold."""
    current, there, history = opened.current(), set(opened.numbers()), opened.history()
    live = max((each.commit for each in history if current and each.release == current.release), default=0)
    lines, facts = [], []
    for commit in history:
        kept = commit.release in there
        manifest = _readable(opened, int(commit.release or 0)) if kept else None
        fact = {
            "commit": commit.commit, "kind": commit.kind, "release": commit.release,
            "committed_at": commit.committed_at, "reason": commit.reason,
            "current": commit.commit == live, "pruned": not kept,
            "rows": manifest.rows if manifest else None,
            "index": manifest.index.kind if manifest else None,
            "space_id": manifest.space_id if manifest else None,
        }  # fmt: skip
        facts.append(fact)
        about = (f"{manifest.rows:,}", manifest.index.kind, manifest.space_id[:12]) if manifest else None
        about = about or ("damaged" if kept else "pruned", "", "")
        lines.append(
            (f"{'*' if fact['current'] else ' '} {commit.release}", commit.kind, commit.committed_at, *about)
        )
    held, damage = _held(opened)
    text = table(lines, ("release", "commit", "at", "rows", "index", "space"))
    text = text if lines else f"{root}: no release yet; `manta nightly` makes the first"
    if held:
        why = f": {printable(held.reason)}" if held.reason else ""
        text += f"\n\nheld at release {held.release} since {held.committed_at}{why}"
    answer: dict[str, object] = {"root": root, "current": current.release if current else None}
    answer |= {"held": held.release if held else None, "commits": facts}
    if damage is None:
        return Answer(answer, text)
    return Answer(answer | {"damage": str(damage)}, f"{text}\n\n{damage}", damage.exit_code)


def _held(opened: "Releases") -> "tuple[Commit | None, DataError | None]":
    """The hold in force, and the damage that leaves open whether there is one."""
    try:
        return opened.commits.hold(), None
    except DataError as error:
        return None, error


def _readable(opened: "Releases", number: int) -> "ReleaseManifest | None":
    """The release's manifest; None where it was changed after it was published."""
    try:
        return opened.get(number)
    except DataError:
        return None


def one(opened: "Releases", number: int | None) -> Answer:
    """A release, without a number the current one."""
    manifest = opened.chosen(number)
    report = opened.store.uri_of(f"releases/{manifest.release:08d}/report.html")
    index = manifest.index
    lines = [
        ("release", str(manifest.release)),
        ("rows", f"{manifest.rows:,}"),
        ("units", str(len(manifest.units))),
        ("space", manifest.space_id),
        ("transform", manifest.transform_id or "none"),
        ("index", f"{index.kind} ({index.factory}), {size(sum(file.bytes for file in index.files))}"),
        ("report", report),
        *((choice.what, choice.sentence) for choice in manifest.choices),
    ]
    gates = [
        (
            name,
            "passed" if gate.passed else "REFUSED",
            "" if gate.value is None else f"{gate.value:g}",
            gate.sentence,
        )
        for name, gate in manifest.gates.items()
    ]
    text = (
        "\n".join(f"{name:<16} {value}" for name, value in lines)
        + "\n\n"
        + table(gates, ("gate", "", "value", ""))
    )
    return Answer(manifest.model_dump(mode="json") | {"report": report}, text)

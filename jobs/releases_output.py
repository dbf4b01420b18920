"""Format the results of `manta releases list`, `show`, `quarantine`, `verify` and `copy`."""

from typing import TYPE_CHECKING, Any, NamedTuple

from jobs.command import Answer
from jobs.layout import table, table_within
from pipeline.errors import ConfigError, DataError
from pipeline.log import Stages, counted, printable, size
from pipeline.store.releases.manifest import report_path
from pipeline.store.releases.unpublished import SHOWN, unpublished_nights
from pipeline.store.releases.waiting import ending_of, waiting_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.store.records.sealed_json import FileRef
    from pipeline.store.releases.commits import Commit
    from pipeline.store.releases.copy_root import Copied
    from pipeline.store.releases.manifest import ReleaseManifest
    from pipeline.store.releases.release import Releases
    from pipeline.store.releases.verify import Fault
    from pipeline.store.releases.waiting import WaitingState

_QUARANTINE_COLUMNS = ("file", "row", "id", "detail", "excerpt")
_MAX_FAULTS = 20


def commit_list(opened: "Releases", root: str, promote: str) -> Answer:
    """List the commits in order, with rows, index and space of their releases, and unpublished nights.

    Args:
        promote: shell command that publishes the candidate that waits, without its name.
    """
    current, with_manifest, history = opened.current(), set(opened.numbers()), opened.history()
    of_current = (each.commit for each in history if current and each.release == current.release)
    current_commit = max(of_current, default=0)
    missing = opened.missing_files(history)  # pruned releases are left out
    lines, facts = [], []
    for commit in history:
        has_manifest = commit.release in with_manifest
        is_pruned = not has_manifest and commit.release not in missing
        manifest = _manifest_or_none(opened, int(commit.release or 0)) if has_manifest else None
        facts.append({
            "commit": commit.commit, "kind": commit.kind, "release": commit.release,
            "committed_at": commit.committed_at, "reason": commit.reason,
            "approval": commit.approval and commit.approval.model_dump(),
            "current": commit.commit == current_commit, "pruned": is_pruned,
            "gone": [fault.path for fault in missing.get(commit.release or 0, ())],
            "rows": manifest and manifest.rows, "index": manifest and manifest.index.kind,
            "space_id": manifest and manifest.space_id,
        })  # fmt: skip
        details = ("pruned" if is_pruned else "damaged", "", "")
        if manifest:
            details = (f"{manifest.rows:,}", manifest.index.kind, manifest.space_id[:12])
        mark = "*" if commit.commit == current_commit else " "
        cells = (f"{mark} {commit.release}", commit.kind, commit.committed_at, *details)
        lines.append((*cells, _approval_cell(commit)))
    text = _commit_table(lines) or f"{root}: no release yet; `manta nightly` publishes the first"
    for release, faults in missing.items():
        text += "".join(f"\n\nrelease {release} is damaged: {fault}" for fault in faults)
    damage = opened.commits.sequence_error(opened.commits.numbers())
    try:
        held = opened.commits.hold()
    except DataError as error:
        held, damage = None, error
    text += _held_line(held) if held else ""
    number = current.release if current else None
    nights = _unpublished(opened, number, history, promote)
    text, damage = f"{text}{nights.text}", damage or nights.damage
    answer = {"root": root, "current": number, "held": held and held.release, "commits": facts} | nights.facts
    if damage is None:
        return Answer(answer, text)
    return Answer(answer | {"damage": str(damage)}, f"{text}\n\n{damage}", damage.exit_code)


def _held_line(held: "Commit") -> str:
    why = f": {printable(held.reason)}" if held.reason else ""
    return f"\n\nheld at release {held.release} since {held.committed_at}{why}"


def _approval_cell(commit: "Commit") -> str:
    if commit.approval is None:
        return ""
    return f"{commit.approval.by}: {commit.approval.note}" if commit.approval.note else commit.approval.by


def _commit_table(lines: "Sequence[tuple[str, ...]]") -> str:
    """Return the table of commits, without the column of approvals if none has one; "" without commits."""
    if not lines:
        return ""
    header = ("release", "commit", "at", "rows", "index", "space", "approved by")
    columns = len(header) - (not any(line[-1] for line in lines))
    return table([line[:columns] for line in lines], header[:columns])


class _Unpublished(NamedTuple):
    """The waiting candidate and the nights that published nothing, for the list of releases."""

    facts: dict[str, object]
    text: str
    damage: DataError | None


def _unpublished(
    opened: "Releases", current: int | None, history: "Sequence[Commit]", promote: str
) -> _Unpublished:
    """Describe the candidate that waits, and the nights that published nothing.

    Args:
        current: number of the current release.
        history: all commits.
        promote: see `commit_list`.
    """
    state, damage = None, None
    try:
        state = waiting_state(opened.store, opened.commits, current)
    except DataError as error:
        damage = error
    nights = [
        night.model_dump(mode="json") | {"report": night.report, "status": ending_of(night, state, history)}
        for night in unpublished_nights(opened.store)
    ]
    waiting = state and state.record.model_dump(mode="json") | {"overtaken_by": state.overtaken_by}
    text = f"{_waiting_lines(state, promote)}{_unpublished_lines(nights)}"
    return _Unpublished({"waiting": waiting, "unpublished": nights}, text, damage)


def _waiting_lines(state: "WaitingState | None", promote: str) -> str:
    """Describe the candidate that waits; "" if none does."""
    if state is None or state.overtaken_by:
        return ""
    record = state.record
    return (
        f"\n\ncandidate {record.candidate} with {counted(record.rows, 'row')} waits for its approval since "
        f"{record.at}: {printable(record.reason)}\n  report  {record.folder}/report.html\n"
        f"  approve {promote} {record.candidate} --by NAME"
    )


def _unpublished_lines(nights: "Sequence[dict[str, Any]]") -> str:
    """Describe the newest nights that published nothing, oldest first; "" without any."""
    if not nights:
        return ""
    more = f" (the newest {SHOWN} of {len(nights)})" if len(nights) > SHOWN else ""
    lines = [f"\n\nnights that published nothing{more}\n"]
    for night in reversed(nights[:SHOWN]):
        ending = f"{night['status']}, exit code {night['exit_code']}"
        lines.append(f"{night['at']}  {ending}: {printable(night['reason'])}")
        if night["report"]:
            lines.append(f"  report  {night['report']}")
    return "\n".join(lines)


def _manifest_or_none(opened: "Releases", number: int) -> "ReleaseManifest | None":
    """Return the manifest of a release; None if it was changed after it was published."""
    try:
        return opened.get(number)
    except DataError:
        return None


def release_details(opened: "Releases", number: int | None) -> Answer:
    """Show release `number`, or the current one for None."""
    manifest = opened.get_or_current(number)
    index, report = manifest.index, opened.store.uri_of(report_path(manifest.release))
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
    text = "\n".join(f"{name:<16} {value}" for name, value in lines)
    return Answer(
        manifest.model_dump(mode="json") | {"report": report},
        f"{text}\n\n{table(gates, ('gate', '', 'value', ''))}",
    )


def quarantined_rows(
    opened: "Releases", number: int | None, reason: str | None, limit: int, width: int | None
) -> Answer:
    """Count the quarantined rows of a release by reason, and show the first `limit` of each.

    Args:
        number: number of the release; None for the current one.
        reason: reason to which the rows are restricted; None for all.
        width: width of the output in terminal cells; None without a limit.

    Raises:
        ConfigError: no row of the release has this reason.
    """
    from pipeline.text.formats.quarantine import list_quarantined

    manifest = opened.get_or_current(number)
    counts, rows, files = list_quarantined(opened.store, manifest, reason, limit)
    if reason is not None and reason not in counts:
        raise ConfigError(
            "releases quarantine: --reason",
            f"a reason of release {manifest.release}",
            repr(reason),
            f"there are: {', '.join(counts) or 'none'}",
        )
    facts = {"release": manifest.release, "reasons": counts, "files": list(files), "rows": rows}
    if not counts:
        return Answer(facts, f"release {manifest.release}: no row was quarantined")
    quarantined = counted(sum(counts.values()), "row")
    parts = [
        f"release {manifest.release}: {quarantined} quarantined, {manifest.rows:,} live",
        table([(name, f"{count:,}") for name, count in counts.items()], ("reason", "rows")),
    ]
    for name in counts:
        lines = [_quarantine_cells(row) for row in rows if row["reason"] == name]
        parts += [f"{name}\n{table_within(lines, _QUARANTINE_COLUMNS, width)}"] if lines else []
    parts.append("\n".join(["all of them, as Parquet:", *(f"  {file}" for file in files)]))
    return Answer(facts, "\n\n".join(parts))


def _quarantine_cells(row: dict[str, Any]) -> tuple[str, ...]:
    shown = row | {"row": "whole file"} if row["row"] < 0 else row
    values = (shown[column] for column in _QUARANTINE_COLUMNS)
    return tuple("" if value is None else " ".join(str(value).split()) for value in values)


def verification(opened: "Releases", number: int | None, sizes: bool) -> Answer:
    """Compare every file of a release with its manifest, and look for a missing commit.

    Args:
        number: number of the release; None for the release of the newest commit.
        sizes: compare sizes only, without reading the files.
    """
    from pipeline.store.releases.verify import files_of

    history = opened.history()
    newest = next((commit.release for commit in reversed(history) if commit.release is not None), None)
    chosen = newest if number is None else number
    faults = opened.missing_files(history).get(chosen or 0, [])
    files: tuple[FileRef, ...] = ()
    if not any(fault.path in opened.manifest_paths([chosen or 0]).values() for fault in faults):
        manifest = opened.get_or_current(chosen)
        faults += _find_faults(opened, manifest, sizes)
        files = () if faults else files_of(opened.store, manifest)
    count, total = len(files), sum(file.bytes for file in files)
    how = "size" if sizes else "sha256"
    facts: dict[str, object] = {
        "release": chosen, "whole": not faults, "compared": how, "files": count, "bytes": total,
        "faults": [fault._asdict() for fault in faults],
    }  # fmt: skip
    compared = f"{counted(count, 'file')}, {size(total)}, compared by {how}"
    text = _describe_damage(chosen, faults) if faults else f"release {chosen} is complete: {compared}"
    damage = opened.commits.sequence_error(opened.commits.numbers())
    if damage is None:
        return Answer(facts, text, DataError.exit_code if faults else 0)
    return Answer(facts | {"damage": str(damage)}, f"{text}\n\n{damage}", damage.exit_code)


def _find_faults(opened: "Releases", manifest: "ReleaseManifest", sizes: bool) -> "list[Fault]":
    from pipeline.index.search.open_in_child import check_opens
    from pipeline.store.releases.verify import bytes_to_read, content_faults, size_faults

    if sizes:
        return size_faults(opened.store, manifest)
    with Stages()("verify", bytes_to_read(opened.store, manifest), "bytes") as bar:
        faults = content_faults(opened.store, manifest, bar.add)
    if not faults:  # a file that was damaged before it was published has the right sha256
        check_opens(opened, manifest)
    return faults


def _describe_damage(number: int | None, faults: "list[Fault]") -> str:
    lines = [(fault.path, fault.expected, fault.found or "gone") for fault in faults[:_MAX_FAULTS]]
    more = f"\n... and {len(faults) - _MAX_FAULTS:,} more" if len(faults) > _MAX_FAULTS else ""
    return (
        f"release {number} is damaged: {len(faults):,} of its files\n\n"
        f"{table(lines, ('file', 'expected', 'found'))}{more}\n\n"
        "Restore them; or delete the changed ones and run `manta nightly`, which writes missing files again, "
        "but not a manifest or a report; or roll back to a complete release."
    )


def describe_copy(copied: "Copied", new_root: str, stages: Stages) -> Answer:
    """Describe a copy of a root, also what it lacks."""
    freight = f"{counted(copied.files, 'file')}, {size(copied.bytes)} copied"
    text = (
        f"{new_root}: release {copied.current} is current, of {counted(len(copied.releases), 'release')}; "
        f"{freight}, {copied.compared:,} compared that were there; {counted(copied.commits, 'commit')} added"
    )
    if copied.left_out:
        folders = ", ".join(f"{folder} {count:,}" for folder, count in copied.left_out.items())
        text += f"\nnot copied, because no copied release needs them: {folders} (files by folder)"
    if copied.newer:
        text += f"\nthe root has {counted(copied.newer, 'newer commit')}: run the command again to add them"
    facts = {**copied._asdict(), "new_root": new_root, "seconds": stages.seconds()}
    return Answer(facts, text)

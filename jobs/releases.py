"""List, show, roll back and prune published releases.

    manta releases list releases
    python -m jobs.releases rollback 3 releases
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from jobs.command import Answer, Json, Verbose, application, guarded, tell
from jobs.layout import table
from pipeline.log import size

releases = application(help="List, show, roll back and prune published releases.", no_args_is_help=True)

Root = Annotated[str, typer.Argument(metavar="ROOT", help="Where releases are published: release.root of the job.")]
CommitsRoot = Annotated[str | None, typer.Option("--commits-root", metavar="URI", help="release.commits_root of the job, where it is set.")]


@releases.command("list")
def list_releases(root: Root, commits_root: CommitsRoot = None, as_json: Json = False, verbose: Verbose = False) -> None:
    """Every commit with its release; the current one is marked."""
    _answer(lambda: _list(root, commits_root), as_json, verbose)


@releases.command()
def show(
    root: Root, number: Annotated[int | None, typer.Argument(metavar="[N]", help="Without it the current release.")] = None,
    commits_root: CommitsRoot = None, as_json: Json = False, verbose: Verbose = False,
) -> None:
    """What a release holds: rows, space, transform, index, gates, counts, where its report is."""
    _answer(lambda: _show(root, commits_root, number), as_json, verbose)


@releases.command()
def rollback(
    number: Annotated[int, typer.Argument(metavar="N", help="The release that becomes current again.")],
    root: Root, commits_root: CommitsRoot = None, as_json: Json = False, verbose: Verbose = False,
) -> None:
    """Make an older release current again, by a new commit; nothing is removed."""
    _answer(lambda: _rollback(root, commits_root, number), as_json, verbose)


@releases.command()
def prune(
    root: Root,
    keep: Annotated[int, typer.Option("--keep", min=1, metavar="N", help="Releases kept: those that were current last.")],
    grace_hours: Annotated[float, typer.Option("--grace-hours", min=0, help="Files that no release names are kept while younger: a night may be running.")] = 24.0,
    ignore_leases: Annotated[bool, typer.Option("--ignore-leases", help="Prune although a night seems to be at work.")] = False,
    commits_root: CommitsRoot = None, as_json: Json = False, verbose: Verbose = False,
) -> None:
    """Remove older releases and every file that only they need, and refused candidates. What `manta evaluate` keeps below evaluations/ stays."""
    _answer(lambda: _prune(root, commits_root, keep, grace_hours, ignore_leases), as_json, verbose)


def _answer(work: Callable[[], Answer], as_json: bool, verbose: bool) -> None:
    guarded(lambda say: tell(work(), say, as_json), as_json=as_json, verbose=verbose)


def _open(root: str, commits_root: str | None) -> Any:
    from pipeline.store.release import Releases
    from pipeline.store.store import open_store

    return Releases(open_store(root), open_store(commits_root) if commits_root else None)


def _list(root: str, commits_root: str | None) -> Answer:
    opened = _open(root, commits_root)
    current, there = opened.current(), set(opened.numbers())
    lines, facts = [], []
    history = opened.history()
    for commit in history:
        manifest = _readable(opened, commit.release) if commit.release in there else None
        live = current is not None and commit.release == current.release and commit.commit == max(each.commit for each in history if each.release == current.release)
        fact = {
            "commit": commit.commit, "kind": commit.kind, "release": commit.release, "committed_at": commit.committed_at, "current": live,
            "pruned": commit.release not in there,
            "rows": manifest.rows if manifest else None, "index": manifest.index.kind if manifest else None, "space_id": manifest.space_id if manifest else None,
        }
        facts.append(fact)
        about = (f"{manifest.rows:,}", manifest.index.kind, manifest.space_id[:12]) if manifest else ("damaged" if commit.release in there else "pruned", "", "")
        lines.append((f"{'*' if live else ' '} {commit.release}", commit.kind, commit.committed_at, *about))
    text = table(lines, ("release", "commit", "at", "rows", "index", "space")) if lines else f"{root}: no release yet; `manta nightly` makes the first"
    return Answer({"root": root, "current": current.release if current else None, "commits": facts}, text)


def _readable(opened: Any, number: int) -> Any:
    """The release's manifest; None where it was changed after it was published."""
    from pipeline.errors import DataError

    try:
        return opened.get(number)
    except DataError:
        return None


def _show(root: str, commits_root: str | None, number: int | None) -> Answer:
    from pipeline.errors import DataError

    opened = _open(root, commits_root)
    manifest = opened.get(number) if number is not None else opened.current()
    if manifest is None:
        raise DataError(root, "a published release", "none", "run `manta nightly` first")
    facts = manifest.model_dump(mode="json") | {"report": opened.store.uri_of(f"releases/{manifest.release:08d}/report.html")}
    total = sum(ref.bytes for ref in manifest.index.files)
    lines = [
        ("release", str(manifest.release)), ("rows", f"{manifest.rows:,}"), ("units", str(len(manifest.units))), ("space", manifest.space_id),
        ("transform", manifest.transform_id or "none"), ("index", f"{manifest.index.kind} ({manifest.index.factory}), {size(total)}"), ("report", facts["report"]),
        *((choice.what, choice.sentence) for choice in manifest.choices),
    ]
    gates = [(name, "passed" if gate.passed else "REFUSED", "" if gate.value is None else f"{gate.value:g}", gate.sentence) for name, gate in manifest.gates.items()]
    return Answer(facts, "\n".join(f"{name:<16} {value}" for name, value in lines) + "\n\n" + table(gates, ("gate", "", "value", "")))


def _rollback(root: str, commits_root: str | None, number: int) -> Answer:
    commit = _open(root, commits_root).rollback(number)
    return Answer(commit.model_dump(mode="json"), f"release {number} is current again (commit {commit.commit})")


def _prune(root: str, commits_root: str | None, keep: int, grace_hours: float, ignore_leases: bool) -> Answer:
    from pipeline.store.prune import prune as remove

    pruned = remove(_open(root, commits_root), keep, grace_s=3600 * grace_hours, ignore_leases=ignore_leases)
    kept, removed = (", ".join(str(number) for number in numbers) or "none" for numbers in (pruned.kept, pruned.removed))
    return Answer(pruned.model_dump(mode="json"), f"kept releases: {kept}; removed: {removed}; {pruned.files:,} files, {size(pruned.bytes)} freed")


if __name__ == "__main__":
    releases()

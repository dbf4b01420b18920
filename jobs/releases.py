"""List, show, compare, verify, roll back, hold and prune published releases.

manta releases list releases
python -m jobs.releases rollback releases 3
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.command import Answer, Json, Verbose, application, guarded, tell
from jobs.layout import output_width, table
from pipeline.errors import ConfigError
from pipeline.log import say, size

if TYPE_CHECKING:
    from pipeline.store.release import Releases

releases = application(
    help="List, show, compare, verify, roll back, hold and prune published releases.", no_args_is_help=True
)

Root = Annotated[
    str, typer.Argument(metavar="ROOT", help="Where releases are published: release.root of the job.")
]
Current = Annotated[str | None, typer.Argument(metavar="[N]", help="Without it the current release.")]
CommitsRoot = Annotated[
    str | None,
    typer.Option("--commits-root", metavar="URI", help="release.commits_root of the job, where it is set."),
]


@releases.command("list")
def list_releases(
    root: Root, commits_root: CommitsRoot = None, as_json: Json = False, verbose: Verbose = False
) -> None:
    """Every commit with its release; the current one is marked."""
    from jobs.releases_list import every

    _answer(lambda: every(_open(root, commits_root), root), as_json, verbose)


@releases.command()
def show(
    root: Root,
    number: Current = None,
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show one release: rows, space, transform, index, gates, counts, and the path of its report."""
    from jobs.releases_list import one

    _answer(lambda: one(*_chosen("show", root, number, commits_root)), as_json, verbose)


@releases.command()
def diff(
    root: Root,
    before: Annotated[int, typer.Argument(metavar="A", help="The release that is compared with.")],
    after: Annotated[int | None, typer.Argument(metavar="[B]", help="Without it the current one.")] = None,
    query: Annotated[
        list[str] | None,
        typer.Option("--query", metavar="TEXT", help="Ask both releases this too; may be repeated."),
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Rows shown of each kind.")] = 3,
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare two releases: rows, settings, gates, recall, drift, and answers to fixed queries.

    Rows are compared by id, from the tables that releases keep; a row is changed if its text or a kept column
    is. The fixed queries are the texts that every night encodes to see whether its encoder has changed.
    """
    from jobs.releases_diff import compare

    queries, width = tuple(query or ()), output_width()
    numbers = (before, after)
    _answer(lambda: compare(_open(root, commits_root), numbers, queries, examples, width), as_json, verbose)


@releases.command()
def quarantine(
    root: Root,
    number: Current = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="NAME", help="Only rows set aside for this reason.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Rows shown of each reason.")] = 5,
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Rows that a release leaves out: how many for which reason, and where they are in the corpus."""
    from jobs.releases_quarantine import set_aside

    width = output_width()
    opened = lambda: _chosen("quarantine", root, number, commits_root)  # noqa: E731  inside the job boundary
    _answer(lambda: set_aside(*opened(), reason, limit, width), as_json, verbose)


@releases.command()
def verify(
    root: Root,
    number: Current = None,
    sizes: Annotated[
        bool,
        typer.Option(
            "--sizes", help="Compare sizes only, as every night does; without it every byte is read."
        ),
    ] = False,
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare every file of a release with its manifest. Ends with 3 where one is missing or changed."""
    from jobs.releases_verify import whole

    _answer(lambda: whole(*_chosen("verify", root, number, commits_root), sizes), as_json, verbose)


@releases.command()
def rollback(
    root: Root,
    number: Annotated[str, typer.Argument(metavar="N", help="The release that becomes current again.")],
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make an older release current again, by a new commit; nothing is removed.

    The next night goes on from the corpus and the settings as they then are, and publishes them again. To
    stay on the
    release: manta releases hold ROOT.
    """
    _answer(lambda: _rollback(*_root_first("rollback", root, number), commits_root), as_json, verbose)


@releases.command()
def hold(
    root: Root,
    number: Annotated[
        str | None, typer.Argument(metavar="[N]", help="A release that becomes current and is held.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, for whoever reads the list.")
    ] = "",
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Keep a release current until `manta releases release`. Without N: the current one.

    Nights go on: they make and judge their candidate, keep it below candidates/, and publish nothing. No
    rollback either.
    """
    _answer(lambda: _hold(*_root_first("hold", root, number), commits_root, reason), as_json, verbose)


@releases.command()
def release(
    root: Root, commits_root: CommitsRoot = None, as_json: Json = False, verbose: Verbose = False
) -> None:
    """End a hold: the next night publishes again."""
    _answer(lambda: _release(root, commits_root), as_json, verbose)


@releases.command()
def prune(
    root: Root,
    keep: Annotated[
        int, typer.Option("--keep", min=1, metavar="N", help="Releases kept: those that were current last.")
    ],
    grace_hours: Annotated[
        float,
        typer.Option(
            "--grace-hours",
            min=0,
            help="Files that no release names are kept while younger: a night may be running.",
        ),
    ] = 24.0,
    ignore_leases: Annotated[
        bool, typer.Option("--ignore-leases", help="Prune although a night seems to be at work.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove older releases and every file that only they need, and refused candidates.

    What `manta evaluate` keeps below evaluations/ stays.
    """
    _answer(lambda: _prune(root, commits_root, keep, grace_hours, ignore_leases, dry_run), as_json, verbose)


def _answer(work: Callable[[], Answer], as_json: bool, verbose: bool) -> None:
    guarded(lambda out: tell(work(), out, as_json), as_json=as_json, verbose=verbose)


def _open(root: str, commits_root: str | None) -> "Releases":
    from pipeline.store.release import Releases
    from pipeline.store.store import open_store

    return Releases(open_store(root), open_store(commits_root) if commits_root else None)


def _refresh(opened: "Releases") -> None:
    """index.html shows what is current and what is there."""
    from pipeline.flows.night.overview import refresh

    refresh(opened)


def _root_first(command: str, root: str, number: str | None) -> tuple[str, int | None]:
    """ROOT and N, given in this order or in the other."""
    if number is None:
        return root, None
    if not number.isdecimal() and root.isdecimal():
        say(f"note: the root comes first: manta releases {command} {number} {root}")
        root, number = number, root
    if not number.isdecimal():
        where = f"releases {command}: N"
        raise ConfigError(where, "the number of a release", repr(number), "give ROOT, then N")
    return root, int(number)


def _chosen(
    command: str, root: str, number: str | None, commits_root: str | None
) -> tuple["Releases", int | None]:
    """The releases below the root and the number of one, in whichever order both were given."""
    place, chosen = _root_first(command, root, number)
    return _open(place, commits_root), chosen


def _rollback(root: str, number: int | None, commits_root: str | None) -> Answer:
    assert number is not None, "an argument that has to be given"
    opened = _open(root, commits_root)
    commit = opened.rollback(number)
    _refresh(opened)
    then = (
        "The next night goes on from the corpus and the settings, and publishes what they then say.\n"
        f"To stay on release {number}: manta releases hold {root}"
    )
    text = f"release {number} is current again (commit {commit.commit})\n{then}"
    return Answer(commit.model_dump(mode="json"), text)


def _hold(root: str, number: int | None, commits_root: str | None, reason: str) -> Answer:
    opened = _open(root, commits_root)
    commit = opened.hold(number, reason)
    _refresh(opened)
    text = (
        f"release {commit.release} is held since {commit.committed_at} (commit {commit.commit})\n"
        f"Nights make their candidates and publish none until: manta releases release {root}"
    )
    return Answer(commit.model_dump(mode="json"), text)


def _release(root: str, commits_root: str | None) -> Answer:
    opened = _open(root, commits_root)
    commit = opened.unhold()
    if commit is None:
        return Answer({"released": False}, f"{root}: nothing is held")
    _refresh(opened)
    text = f"release {commit.release} is held no more (commit {commit.commit}); the next night publishes"
    return Answer({"released": True, **commit.model_dump(mode="json")}, text)


def _prune(
    root: str, commits_root: str | None, keep: int, grace_hours: float, ignore_leases: bool, dry_run: bool
) -> Answer:
    from pipeline.store.prune import prune as remove

    opened = _open(root, commits_root)
    grace_s = 3600 * grace_hours
    pruned = remove(opened, keep, grace_s=grace_s, ignore_leases=ignore_leases, dry_run=dry_run)
    kept, removed = (", ".join(map(str, numbers)) or "none" for numbers in (pruned.kept, pruned.removed))
    freed = f"{pruned.files:,} files, {size(pruned.bytes)}"
    if not dry_run:
        _refresh(opened)
        return Answer(
            pruned.model_dump(mode="json"), f"kept releases: {kept}; removed: {removed}; {freed} freed"
        )
    text = f"nothing was removed (--dry-run)\nwould keep releases: {kept}; would remove: {removed}; {freed}"
    if pruned.files:
        folders = [(f"{folder}/", size(count)) for folder, count in pruned.folders.items()]
        samples = [(path, size(count)) for path, count in pruned.samples.items()]
        text += f"\n\n{table(folders, ('folder', 'size'))}\n\n{table(samples, ('largest files', 'size'))}"
    return Answer(pruned.model_dump(mode="json"), text)


if __name__ == "__main__":
    releases()

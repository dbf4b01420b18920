"""List, show, compare, verify, promote, roll back, hold, prune and copy releases.

manta releases list releases
python -m jobs.releases rollback releases 3
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.boundary import guarded
from jobs.command import (
    Answer,
    Command,
    CommitsRoot,
    Json,
    Root,
    Verbose,
    application,
    config_file,
    print_answer,
    with_own_options,
)
from jobs.layout import output_width, table
from pipeline.config import load_settings
from pipeline.errors import ConfigError, PipelineError
from pipeline.log import announce, counted, size

if TYPE_CHECKING:
    from pipeline.flows.events import EventName
    from pipeline.settings import ReleaseSettings
    from pipeline.store.releases.commits import Commit
    from pipeline.store.releases.release import Releases

releases = application(
    help="List, show, compare, verify, promote, roll back, hold, prune and copy releases.",
    no_args_is_help=True,
)

Number = Annotated[str | None, typer.Argument(metavar="[N]", help="Default: the current release.")]
KeptReleases = Annotated[
    int,
    typer.Option("--keep", min=1, metavar="N", help="Keep the N releases that were current most recently."),
]
GraceHours = Annotated[
    float,
    typer.Option(
        "--grace-hours",
        min=0,
        help="Keep younger files that no release names: a running night may have written them.",
    ),
]


EventConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The job's YAML: its release.on_event is told of the change, and its release.metrics_file shows "
        "it. Default: neither.",
    ),
]


@dataclass(frozen=True)
class ReleasesRun:
    """The arguments that all `manta releases` commands share."""

    command: str
    root: str
    commits_root: str | None
    width: int | None
    """width of the output in terminal cells; None without a limit"""

    def other_command(self, name: str) -> str:
        """Return the shell command `manta releases NAME` for the same releases."""
        commits = ["--commits-root", self.commits_root] if self.commits_root else []
        return shlex.join(["manta", "releases", name, self.root, *commits])

    def open(self) -> "Releases":
        """Open the releases below the root.

        Raises DataError if the folder is not a root but contains roots.
        """
        from pipeline.store.releases.release import Releases, no_release, roots_below

        opened = Releases.open(self.root, self.commits_root)
        if roots_below(opened.store) and not opened.history():
            raise no_release(opened.store)
        return opened

    def open_and_parse(self, number: str | None) -> "tuple[Releases, int | None]":
        """Return the opened releases, and the parsed number of one of them."""
        run, (chosen,) = self.parse_numbers(number)
        return run.open(), chosen

    def parse_numbers(self, *arguments: str | None) -> "tuple[ReleasesRun, list[int | None]]":
        """Parse the numbers of releases among the arguments; the root may also come after a number.

        Returns:
            This run with its root, and the numbers, None for arguments that were not given.

        Raises:
            ConfigError: an argument besides the root is not a number.
        """
        words = [self.root, *arguments]
        roots = [word for word in arguments if word and not word.isdecimal()]
        if self.root.isdecimal() and len(roots) == 1:
            words = [*roots, *(word for word in words if word not in roots)]
            announce(
                f"note: the root comes first: manta releases {self.command} {' '.join(filter(None, words))}"
            )
        root, *numbers = words
        for number in numbers:
            if number is not None and not number.isdecimal():
                where, remedy = f"releases {self.command}: N", "give ROOT, then N"
                raise ConfigError(where, "the number of a release", repr(number), remedy)
        return replace(self, root=str(root)), [None if number is None else int(number) for number in numbers]


def _releases_command(work: Callable[..., Answer]) -> Command:
    """Register `work(run, ...)` as a command of `manta releases`, with the options that these share."""
    name = work.__name__.removesuffix("_releases")

    def command(
        root: Root,
        commits_root: CommitsRoot = None,
        as_json: Json = False,
        verbose: Verbose = False,
        **own_options: Any,
    ) -> None:
        run = ReleasesRun(name, root, commits_root, output_width())
        guarded(
            lambda out: print_answer(work(run, **own_options), out, as_json), as_json=as_json, verbose=verbose
        )

    return releases.command(name)(with_own_options(command, work, leading=1))


@_releases_command
def list_releases(run: ReleasesRun) -> Answer:
    """List every commit with its release, the current one marked, and nights that published nothing.

    Exit code 3 if a commit is missing, or if the newest is damaged and may be a hold.
    """
    from jobs.releases_output import commit_list

    return commit_list(run.open(), run.root, run.other_command("promote"))


@_releases_command
def show(run: ReleasesRun, number: Number = None) -> Answer:
    """Show one release: rows, space, transform, index, gates, counts, and the path of its report."""
    from jobs.releases_output import release_details

    return release_details(*run.open_and_parse(number))


@_releases_command
def diff(
    run: ReleasesRun,
    before: Annotated[str, typer.Argument(metavar="A", help="The older release.")],
    after: Annotated[
        str | None, typer.Argument(metavar="[B]", help="The newer release; default: the current one.")
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option("--query", metavar="TEXT", help="Also search both releases for this; may be repeated."),
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Rows shown of each kind.")] = 3,
) -> Answer:
    """Compare two releases: rows, settings, gates, recall, drift, and answers to fixed queries.

    Rows are compared by id, from the tables that releases keep. A row counts as changed if its text or a kept
    column differs. Every night encodes some texts to check whether the encoder has changed; the fixed queries
    are the longer ones of these.
    """
    from jobs.releases_diff import compare

    run, (first, second) = run.parse_numbers(before, after)
    return compare(run.open(), (first, second), tuple(query or ()), examples, run.width)


@_releases_command
def quarantine(
    run: ReleasesRun,
    number: Number = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="NAME", help="Only rows left out for this reason."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Rows shown of each reason.")] = 5,
) -> Answer:
    """Count the rows that a release leaves out, for each reason, and show where they are in the corpus."""
    from jobs.releases_output import quarantined_rows

    return quarantined_rows(*run.open_and_parse(number), reason, limit, run.width)


@_releases_command
def verify(
    run: ReleasesRun,
    number: Number = None,
    sizes: Annotated[
        bool,
        typer.Option("--sizes", help="Compare sizes only, as every night does. Default: every byte is read."),
    ] = False,
) -> Answer:
    """Compare every file of a release with its manifest. Exit code 3 if one is missing or changed.

    A missing commit of the root ends it with 3, too.
    """
    from jobs.releases_output import verification

    return verification(*run.open_and_parse(number), sizes)


@_releases_command
def rollback(
    run: ReleasesRun,
    number: Annotated[str, typer.Argument(metavar="N", help="The release that becomes current again.")],
    config: EventConfig = None,
) -> Answer:
    """Make an older release current again, by a new commit; nothing is removed.

    The next night publishes a new release from the corpus and the settings. To stay on the older release:
    manta releases hold ROOT.
    """
    run, (chosen,) = run.parse_numbers(number)
    assert chosen is not None, "typer requires the argument"
    settings, opened = _settings(config), run.open()
    commit = opened.rollback(chosen)
    _refresh(opened)
    _tell(settings, "rolled back", opened, commit)
    text = (
        f"release {chosen} is current again (commit {commit.commit})\n"
        "The next night publishes a new release from the corpus and the settings.\n"
        f"To stay on release {chosen}: {run.other_command('hold')}"
    )
    return Answer(commit.model_dump(mode="json"), text)


@_releases_command
def hold(
    run: ReleasesRun,
    number: Annotated[
        str | None,
        typer.Argument(metavar="[N]", help="The release to make current and hold; default: the current one."),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, which the list shows.")
    ] = "",
    config: EventConfig = None,
) -> Answer:
    """Keep a release current until `manta releases release`.

    Nights still build a candidate and check its gates, and publish nothing: the last candidate that passed
    waits for `manta releases promote`, after the hold. Rollbacks are refused.
    """
    run, (chosen,) = run.parse_numbers(number)
    settings, opened = _settings(config), run.open()
    before = opened.commits.numbers()
    commit = opened.hold(chosen, reason)
    _refresh(opened)
    if commit.commit not in before:  # otherwise it was held already
        _tell(settings, "held", opened, commit)
    text = (
        f"release {commit.release} has been held since {commit.committed_at} (commit {commit.commit})\n"
        f"Nights build candidates, but publish none until this command: {run.other_command('release')}\n"
        f"Then the one that waits can be published, too: {run.other_command('promote')} CANDIDATE --by NAME"
    )
    return Answer(commit.model_dump(mode="json"), text)


@_releases_command
def release(run: ReleasesRun, config: EventConfig = None) -> Answer:
    """End a hold: the next night publishes again."""
    from pipeline.store.releases.release import no_release

    settings, opened = _settings(config), run.open()
    commit = opened.unhold()
    if commit is None:
        if not opened.history():
            raise no_release(opened.store)
        return Answer({"released": False}, f"{run.root}: nothing is held")
    _refresh(opened)
    _tell(settings, "released", opened, commit)
    text = (
        f"release {commit.release} is no longer held (commit {commit.commit}); the next night publishes again"
    )
    return Answer({"released": True, **commit.model_dump(mode="json")}, text)


@_releases_command
def promote(
    run: ReleasesRun,
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="Its folder, or the first digits of its id.")
    ],
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who approves the candidate.")],
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; it is kept in the commit.")] = "",
    config: EventConfig = None,
) -> Answer:
    """Publish the candidate that waits for its approval, after checking its files and gates again.

    The new files are compared by sha256 and opened as a search opens them. The commit records NAME, the note,
    the user and the host. Exit code 5 if the candidate does not wait any more, or another release has
    overtaken it; 3 if a file of it is damaged; 2 while the root is held. A repeated command ends with 0 as
    long as the release is current.
    """
    from pipeline.flows.night.approval import promote as publish

    settings, opened = _settings(config), run.open()
    commit, is_new = publish(opened, candidate, by, note)
    _refresh(opened)
    if is_new:
        _tell(settings, "promoted", opened, commit)
    assert commit.approval is not None
    who = f"approved by {commit.approval.by} at {commit.committed_at}"
    first = (
        f"published release {commit.release}"
        if is_new
        else f"nothing changed: it is release {commit.release}"
    )
    facts = commit.model_dump(mode="json") | {"is_new": is_new}
    return Answer(facts, f"{first} (candidate {commit.approval.candidate}, {who})")


@_releases_command
def prune(
    run: ReleasesRun,
    keep: KeptReleases,
    grace_hours: GraceHours = 24.0,
    ignore_leases: Annotated[
        bool, typer.Option("--ignore-leases", help="Prune although another command seems to be running.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
) -> Answer:
    """Remove older releases and every file that only they need, and refused or superseded candidates.

    The candidate that waits for its approval stays.

    The files of `manta evaluate` below evaluations/ stay.
    """
    from pipeline.store.releases.prune import prune as remove

    opened = run.open()
    pruned = remove(opened, keep, grace_s=3600 * grace_hours, ignore_leases=ignore_leases, dry_run=dry_run)
    kept = ", ".join(map(str, pruned.kept)) or "none"
    removed = ", ".join(map(str, pruned.removed)) or "none"
    freed = f"{counted(pruned.files, 'file')}, {size(pruned.bytes)}"
    facts = pruned.model_dump(mode="json")
    if not dry_run:
        _refresh(opened)
        return Answer(facts, f"kept releases: {kept}; removed: {removed}; {freed} freed")
    text = f"nothing was removed (--dry-run)\nwould keep releases: {kept}; would remove: {removed}; {freed}"
    if pruned.files:
        folders = [(f"{folder}/", size(count)) for folder, count in pruned.folders.items()]
        samples = [(path, size(count)) for path, count in pruned.samples.items()]
        text += f"\n\n{table(folders, ('folder', 'size'))}\n\n{table(samples, ('largest files', 'size'))}"
    return Answer(facts, text)


@_releases_command
def copy(
    run: ReleasesRun,
    new_root: Annotated[
        str, typer.Argument(metavar="NEW_ROOT", help="Folder or URI of the copy: empty, or an earlier copy.")
    ],
    current: Annotated[
        bool, typer.Option("--current", help="Copy the files of the current release only, with all commits.")
    ] = False,
    new_commits_root: Annotated[
        str | None,
        typer.Option("--new-commits-root", metavar="URI", help="release.commits_root of jobs with the copy."),
    ] = None,
) -> Answer:
    """Copy all releases, or the current one, to another store: as a backup, or to move there.

    Every file is compared by sha256. Nobody sees the copy before it is complete; a copy that was stopped
    continues. Run again, it adds the releases since then.
    """
    from jobs.releases_output import describe_copy
    from pipeline.log import Stages
    from pipeline.store.releases.copy_root import copy_root
    from pipeline.store.releases.release import Releases

    new, stages = Releases.open(new_root, new_commits_root), Stages()
    copied = copy_root(run.open(), new, stages, only_current=current)
    _refresh(new)
    return describe_copy(copied, new.store.uri, stages)


def _settings(config: Path | None) -> "ReleaseSettings":
    """Return the release settings of a file; without a receiver of events and a file of metrics for None."""
    from pipeline.settings import Job, ReleaseSettings

    return load_settings(Job, config_file(config)).release if config else ReleaseSettings()


def _tell(settings: "ReleaseSettings", event: "EventName", opened: "Releases", commit: "Commit") -> None:
    """Tell the receiver of a commit, and show the current release in the file of metrics.

    The change is made already: if the file cannot be written, this is logged.
    """
    from pipeline.flows.events import tell

    if settings.metrics_file is not None:
        from pipeline.flows.night.publish import record_current
        from pipeline.flows.workers.metrics_file import metrics_replaced_in

        try:
            with metrics_replaced_in(settings.metrics_file):
                record_current(opened, opened.current())
        except (OSError, PipelineError) as error:
            announce(f"the metrics are not written: {error}")

    facts = {"release": commit.release, "commit": commit.commit, "reason": commit.reason or None}
    if commit.approval is not None:
        facts |= commit.approval.model_dump()
    tell(settings.on_event, event, opened.store.uri, **facts)


def _refresh(opened: "Releases") -> None:
    """Rewrite index.html, which shows the releases and which one is current."""
    from pipeline.flows.night.report.releases_page import refresh_page

    refresh_page(opened)


if __name__ == "__main__":
    releases()

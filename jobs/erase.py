"""Erase rows from a root: from all releases, and from every other file below it.

manta erase releases --ids persons.txt --reason "request 17"
manta erase releases --where "customer = 'C-17'" --expect 40
python -m jobs.erase releases --ids persons.parquet --dry-run --json
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.boundary import guarded, refuse_few_addresses
from jobs.command import Answer, CommitsRoot, Json, Root, Verbose, options_command, print_answer, standalone
from pipeline.errors import ConfigError, DataError
from pipeline.log import counted, size
from pipeline.store.releases.erasures import receipt_path

if TYPE_CHECKING:
    from pipeline.store.releases.erasures import ErasureReceipt
    from pipeline.store.releases.release import Releases


@dataclass(frozen=True)
class EraseOptions:
    """The command line of an erasure."""

    root: Root
    ids: Annotated[
        str | None,
        typer.Option(
            "--ids",
            metavar="FILE",
            help="Ids to erase: a text file with one on each line, or Parquet with a column id. With "
            "corpus.chunk they are ids of documents.",
        ),
    ] = None
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Instead of --ids: all ids of which a stored version passes a condition on id and kept "
            "columns, such as \"customer = 'C-17'\". Needs --expect.",
        ),
    ] = None
    expect: Annotated[
        int | None,
        typer.Option(
            "--expect", min=0, metavar="N", help="Number of ids that pass --where, which must be N."
        ),
    ] = None
    reason: Annotated[
        str,
        typer.Option(
            "--reason",
            metavar="TEXT",
            help="The reason, which commit and receipt keep: name no person in it.",
        ),
    ] = ""
    forever: Annotated[
        bool,
        typer.Option(
            "--forever",
            help="Also erase ids that the corpus still has: nights leave them out from now on.",
        ),
    ] = False
    protected: Annotated[
        str | None,
        typer.Option(
            "--protected",
            metavar="FILE",
            help="Ids that must not be erased, in the formats of --ids; default: the file that "
            "release.protected named when the current release was made.",
        ),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rows and files; change nothing.")] = (
        False
    )
    ignore_leases: Annotated[
        bool,
        typer.Option(
            "--ignore-leases", help="Erase although another command or a service seems to use the root."
        ),
    ] = False
    commits_root: CommitsRoot = None
    as_json: Json = False
    verbose: Verbose = False


@options_command
def erase(options: EraseOptions) -> None:
    """Erase rows from all files below a root, so that no release and no rollback has them any more.

    Erases every version of the rows, in all releases: texts, kept columns, ids and vectors in units, samples,
    statistics, tables and indexes, and what reports and summaries show of them. Nothing is encoded again, and
    other rows keep their vectors and addresses. Rows of others with an equal text stay, and are counted.
    Candidates that were refused or wait are removed: the next night makes them again.

    Ids that the corpus still has are refused: remove the rows there and run a night first, or pass --forever:
    then nights leave out rows with these ids, whenever they come back. A night, an export, a copy or a
    service that uses the root must end before. Readers see the releases as before or without the rows, never
    a part. A command that was stopped is run again.

    Not reached: the corpus itself; exports and copies of the root; versions of a bucket and backups; encoders
    and whitenings made with the rows; caches of other machines; queries of users. The receipt below erasures/
    names each with what to do; it has no id and no text.

    Exit code 2 if an id is still in the corpus, 3 if a file of a release is damaged, 75 if the root is used.
    """
    guarded(
        lambda say: print_answer(_erase(options), say, options.as_json),
        as_json=options.as_json,
        verbose=options.verbose,
    )


def _erase(options: EraseOptions) -> Answer:
    refuse_few_addresses()
    from pipeline.flows.erase.erase import EraseRequest
    from pipeline.flows.erase.erase import erase as erase_rows
    from pipeline.log import Stages
    from pipeline.store.releases.release import Releases
    from pipeline.text.formats.excluded_ids import read_ids

    releases, stages = Releases.open(options.root, options.commits_root), Stages()
    if (options.ids is None) == (options.where is None):
        raise ConfigError("erase", "either --ids or --where", "both or none", "name the rows in one way")
    if options.ids is not None and options.expect is not None:
        raise ConfigError("erase: --expect", "--where", "--ids", "leave --expect out")
    request = EraseRequest(
        ids=frozenset(read_ids(options.ids, "--ids")) if options.ids is not None else frozenset(),
        where=options.where or "",
        expect=options.expect,
        reason=options.reason,
        forever=options.forever,
        ignore_leases=options.ignore_leases,
        dry_run=options.dry_run,
        protected=_protected_ids(releases, options.protected),
    )
    if options.ids is not None and not request.ids:
        raise DataError(f"--ids {options.ids}", "at least one id", "none", "write the ids to the file")
    receipt = erase_rows(releases, request, stages, verbose=options.verbose)
    return _describe(options, receipt, releases.store.uri, stages.seconds())


def _protected_ids(releases: "Releases", file: str | None) -> frozenset[str]:
    """Read the ids that must not be erased, from a file or from the one of the current release's settings."""
    from pipeline.text.formats.excluded_ids import read_ids

    if file is not None:
        return frozenset(read_ids(file, "--protected"))
    current = releases.current()
    named = current.settings.get("release", {}).get("protected") if current else None
    return frozenset(read_ids(named, "release.protected")) if named else frozenset()


def _describe(
    options: EraseOptions, receipt: "ErasureReceipt | None", root: str, seconds: dict[str, float]
) -> Answer:
    """Describe what was erased, or would be."""
    facts: dict[str, object] = {"root": root, "dry_run": options.dry_run, "seconds": seconds}
    if receipt is None:
        text = f"{root}: no file has a row with any of these ids; nothing was changed"
        return Answer({"status": "nothing", **facts}, text)
    facts |= receipt.model_dump(mode="json")
    found = f"{counted(receipt.ids_found, 'id')} of {receipt.ids:,} found"
    found += f", {counted(receipt.rows, 'row')} in units"
    numbers = ", ".join(str(each.release) for each in receipt.releases) or "none"
    if options.dry_run:
        text = f"nothing was changed (--dry-run)\n{found}; releases with such rows: {numbers}"
        return Answer({"status": "planned", **facts}, text)
    lines = [
        f"erased: {found} (commit {receipt.commit})",
        f"rewritten releases: {numbers}",
        f"{counted(receipt.removed_files, 'file')} removed, {size(receipt.removed_bytes)}; "
        f"{counted(len(receipt.after), 'file')} written in their place",
    ]
    if receipt.candidates:
        lines.append(f"{counted(receipt.candidates, 'candidate')} removed: the next night makes them again")
    if receipt.shared_texts:
        lines.append(f"{counted(receipt.shared_texts, 'text')} stay, because other rows have them, too")
    lines.append(f"receipt  {root}/{receipt_path(receipt.commit or 0)}")
    lines += ["not reached:", *(f"  {each.what}\n    {each.remedy}" for each in receipt.not_reached)]
    return Answer({"status": "erased", **facts}, "\n".join(lines))


if __name__ == "__main__":
    standalone(erase)

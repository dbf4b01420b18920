"""Find groups of nearly equal texts in a published release.

manta duplicates releases
manta duplicates releases --drop drop.txt  # then: manta nightly corpus.exclude=drop.txt
python -m jobs.duplicates releases --threshold 0.98 --release 3 --json
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from jobs.boundary import guarded, refuse_few_addresses
from jobs.command import Answer, CommitsRoot, Json, Root, Verbose, options_command, print_answer, standalone


@dataclass(frozen=True)
class NearDuplicatesOptions:
    """The command line of a search for near-duplicates."""

    root: Root
    threshold: Annotated[
        float, typer.Option("--threshold", min=0.5, max=1, help="Least cosine of two near-duplicates.")
    ] = 0.95
    release: Annotated[
        int | None,
        typer.Option("--release", metavar="N", help="An older release; default: the current one."),
    ] = None
    drop: Annotated[
        str | None,
        typer.Option(
            "--drop",
            metavar="FILE",
            help="Add the ids of all rows of each group but the first to FILE, for corpus.exclude: a text "
            "file, or Parquet if its name ends with .parquet. Ids that FILE has already stay.",
        ),
    ] = None
    commits_root: CommitsRoot = None
    as_json: Json = False
    verbose: Verbose = False


@options_command
def duplicates(options: NearDuplicatesOptions) -> None:
    """Find groups of nearly equal texts in a published release.

    Searches the release's index for the nearest rows of every row, and compares them exactly by their
    vectors. Rows that are connected by pairs with at least the threshold as cosine are a group. Writes a
    Parquet file (group, id, first_id, cosine with the first row) and a page with examples, below duplicates/
    of ROOT. A command that was stopped continues where it was; a finished one is not repeated.
    """
    guarded(
        lambda say: print_answer(_find(options), say, options.as_json),
        as_json=options.as_json,
        verbose=options.verbose,
    )


def _find(options: NearDuplicatesOptions) -> Answer:
    refuse_few_addresses()
    from pipeline.flows.duplicates.compare import DuplicateSearch
    from pipeline.flows.duplicates.find import drop_repeated, find_duplicates
    from pipeline.log import Stages, counted
    from pipeline.store.releases.release import Releases

    releases, stages = Releases.open(options.root, options.commits_root), Stages()
    manifest = releases.get_or_current(options.release)
    search = DuplicateSearch(releases.store, manifest, options.threshold)
    was_done, found = find_duplicates(search, stages)
    dropped = None if options.drop is None else drop_repeated(search, found, options.drop)
    file, page = (releases.store.uri_of(each.path) for each in (found.file, found.page))
    facts = {
        "status": "unchanged" if was_done else "done",
        "root": releases.store.uri,
        **found.model_dump(exclude={"file", "page"}),
        "repeated": found.repeated,
        "file": file,
        "report": page,
        "seconds": stages.seconds(),
    }
    if dropped is not None:
        facts |= {"drop": options.drop, "dropped": dropped.added, "drop_ids": dropped.ids}
    lines = [
        *(["these were found before; nothing to do"] if was_done else []),
        f"release {found.release}: {counted(found.groups, 'group')} of near-duplicates with "
        f"{found.grouped:,} of {counted(found.rows, 'row')} (cosine {found.threshold:g} or more)",
        f"groups  {file}",
        f"report  {page}",
        *(
            [f"drop    {options.drop}: {counted(dropped.added, 'id')} added, {dropped.ids:,} in all"]
            if dropped
            else []
        ),
    ]
    return Answer(facts, "\n".join(lines))


if __name__ == "__main__":
    standalone(duplicates)

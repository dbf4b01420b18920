"""Copy a release to a vector database, or to Parquet files of changes.

manta export releases parquet changes --name docs
manta export releases pgvector postgresql://localhost/search --name docs
python -m jobs.export releases qdrant http://localhost:6333 --release 3 --json
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.boundary import guarded
from jobs.command import Answer, CommitsRoot, Json, Root, Verbose, options_command, print_answer, standalone

if TYPE_CHECKING:
    from pipeline.flows.export.export import Exported
    from pipeline.targets.target import Target


@dataclass(frozen=True)
class ExportOptions:
    """The command line of an export."""

    root: Root
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Kind of the target: parquet (files of changes), pgvector, qdrant, lancedb, milvus, "
            "opensearch or elasticsearch.",
        ),
    ]
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Address of its server, without user and password, or a folder.",
        ),
    ]
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Name of the table, collection or index; of files, their folder."
        ),
    ] = "manta"
    release: Annotated[
        int | None,
        typer.Option("--release", metavar="N", help="An older release; default: the current one."),
    ] = None
    replace: Annotated[
        bool,
        typer.Option("--replace", help="First delete all rows of the target, then write the whole release."),
    ] = False
    commits_root: CommitsRoot = None
    as_json: Json = False
    verbose: Verbose = False


@options_command
def export(options: ExportOptions) -> None:
    """Copy a release to a vector database, or to Parquet files of changes.

    Makes a table of id, raw vector and kept columns equal to the release. The first export writes all rows.
    Later exports insert, replace and delete only the rows that differ from the release that the target holds,
    also after a rollback. An export that was stopped continues where it was.
    """
    guarded(
        lambda say: print_answer(_export(options), say, options.as_json),
        as_json=options.as_json,
        verbose=options.verbose,
    )


def _export(options: ExportOptions) -> Answer:
    from pipeline.flows.export.export import export as export_release
    from pipeline.log import Stages
    from pipeline.store.releases.release import Releases
    from pipeline.targets.target import check_target, opened_target

    check_target(options.kind, options.target)
    releases, stages = Releases.open(options.root, options.commits_root), Stages()
    with opened_target(options.kind, options.target, options.name) as target:
        exported = export_release(releases, options.release, target, stages, replace=options.replace)
    facts = {
        **vars(exported),
        "kind": options.kind,
        "target": options.target,
        "name": options.name,
        "root": releases.store.uri,
        "seconds": stages.seconds(),
    }
    return Answer(facts, _sentence(exported, target))


def _sentence(exported: "Exported", target: "Target") -> str:
    from pipeline.log import counted

    if exported.status == "unchanged":
        return f"{target.where} holds release {exported.release} already; nothing to do"
    return (
        f"{target.where} holds release {exported.release} now: "
        f"{counted(exported.written, 'row')} written, {exported.deleted:,} deleted, {exported.rows:,} in all"
    )


if __name__ == "__main__":
    standalone(export)

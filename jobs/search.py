"""Ask a published release.

    manta search releases "join two paths" -k 5
    python -m jobs.search releases "join two paths" --release 3 --json
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.command import Json, Say, Verbose, guarded, standalone, table
from pipeline.log import escaped, printable

if TYPE_CHECKING:
    from pipeline.index.search import OpenRelease

Root = Annotated[str, typer.Argument(metavar="ROOT", help="Where releases are published: release.root of the job.")]
CommitsRoot = Annotated[str | None, typer.Option("--commits-root", metavar="URI", help="release.commits_root of the job, where it is set.")]
Query = Annotated[list[str], typer.Argument(metavar="QUERY...", help="One text or several, each in quotes.")]


def search(
    root: Root,
    query: Query,
    k: Annotated[int, typer.Option("-k", min=1, help="Answers per query.")] = 10,
    release: Annotated[int | None, typer.Option("--release", metavar="N", help="An older release; without it the current one.")] = None,
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find the texts nearest to a query in a published release.

    Encodes the query with the release's own encoder and prints rank, score (cosine), id and the kept columns. With --json: a JSON line per result.
    """
    guarded(lambda say: _search(say, _opened(root, release, commits_root), query, k, as_json), as_json=as_json, verbose=verbose)


def _opened(root: str, number: int | None, commits_root: str | None) -> "OpenRelease":
    from pipeline import open_release

    return open_release(root, number, commits=commits_root)


def _search(say: Say, release: "OpenRelease", queries: list[str], k: int, as_json: bool) -> None:
    found = release.search(queries, k).to_pylist()
    if as_json:
        for line in found:
            say(escaped(json.dumps({**line, "query": queries[line["query"]]}, default=str, ensure_ascii=False)))
        return
    for number, text in enumerate(queries):
        lines = [line for line in found if line["query"] == number]
        say(f"{printable(text)}\n{_lines(lines)}\n" if len(queries) > 1 else _lines(lines))


def _lines(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return "nothing found: the release is empty"
    kept = [name for name in lines[0] if name not in ("query", "rank", "score", "id")]
    rows = [(str(line["rank"]), f"{line['score']:.4f}", str(line["id"]), *(_short(line[name]) for name in kept)) for line in lines]
    return table(rows, ("rank", "score", "id", *kept))


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 100 else text[:97] + "..."


if __name__ == "__main__":
    standalone(search)

"""Ask a published release.

manta search releases "join two paths" -k 5
manta search releases --queries questions.txt --json > answers.jsonl
python -m jobs.search releases "join two paths" --release 3 --json
"""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.command import Say, Verbose, guarded, standalone
from jobs.layout import cells, cut, gaps, output_width, shared, table
from jobs.queries import Query, QueryTexts
from pipeline import log
from pipeline.log import escaped, printable

if TYPE_CHECKING:
    from pipeline.index.search import OpenRelease

_OWN = ("query", "rank", "score", "id")
_PIPED = 100  # characters of a text in a pipe or a file, where lines have no width to fit into
_LEAST = 24  # cells: a text in fewer says nothing; below that it gets lines of its own

Root = Annotated[
    str, typer.Argument(metavar="ROOT", help="Where releases are published: release.root of the job.")
]
Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUERY...",
        help="One text or several, each in quotes; - reads one from each line of standard input.",
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        "--queries",
        metavar="FILE",
        help="Queries from a file, a path or a URI: one on each line, or Parquet; - is standard input.",
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        "--column",
        metavar="NAME",
        help="Of a Parquet file of queries; without it the only column of strings, query, or text.",
    ),
]
K = Annotated[int, typer.Option("-k", min=1, help="Answers per query.")]
Number = Annotated[
    int | None, typer.Option("--release", metavar="N", help="An older release; without it the current one.")
]
ShowTexts = Annotated[
    bool | None,
    typer.Option(
        "--texts/--no-texts",
        help="Show the text of each answer, read from the release's corpus units. "
        "Without either: yes, but not with --json.",
    ),
]
CommitsRoot = Annotated[
    str | None,
    typer.Option("--commits-root", metavar="URI", help="release.commits_root of the job, where it is set."),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help=(
            "Print one JSON object for each answer, on a line of its own, on standard output and nothing "
            "else."
        ),
    ),
]


def search(
    root: Root,
    query: Texts = None,
    queries: File = None,
    column: Column = None,
    k: K = 10,
    release: Number = None,
    texts: ShowTexts = None,
    commits_root: CommitsRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find the texts nearest to a query in a published release.

    Encodes the query with the release's own encoder and prints rank, score (cosine), id, text and the kept
    columns: within the width of a terminal, or with texts cut to 100 characters in a pipe. Many queries are
    answered in batches, in their order.
    """
    width = output_width()

    def whole(say: Say) -> None:
        asked = QueryTexts.of(query or (), queries, column)
        if asked.of_words:
            log.say(_understood(root, asked))
        shown = (
            not as_json if texts is None else texts
        )  # programs often want ids alone, which need no corpus unit
        answers = _Answers(_opened(root, release, commits_root), k, shown)
        for batch in asked.batches():
            found = answers.of(batch)
            for each, lines in zip(batch, found, strict=True):
                if as_json:
                    _say_json(say, each, lines)
                else:
                    title = f"{printable(each.text)}\n" if asked.file or len(asked.texts) > 1 else ""
                    say(title + _shown(lines, width) + ("\n" if title else ""))
        if asked.blank:
            log.say(f"{asked.name}: blank queries left out: {asked.blank:,}")

    guarded(whole, as_json=as_json, verbose=verbose)


def _understood(root: str, asked: QueryTexts) -> str:
    named = ", ".join(json.dumps(text, ensure_ascii=False) for text in asked.texts)
    one = json.dumps(" ".join(asked.texts), ensure_ascii=False)
    return (
        f"{len(asked.texts)} queries of one word each: {named}. For one query of several words, put it in "
        f"quotes: manta search {root} {one}"
    )


def _opened(root: str, number: int | None, commits_root: str | None) -> "OpenRelease":
    from pipeline import open_release

    return open_release(root, number, commits=commits_root)


@dataclass
class _Answers:
    """Answers of the release, batch by batch; warnings about missing answers are printed once."""

    release: "OpenRelease"
    k: int
    texts: bool
    _short: bool = field(default=False, init=False)

    def of(self, batch: list[Query]) -> list[list[dict[str, Any]]]:
        """The answers to each query, best first."""
        found: list[list[dict[str, Any]]] = [[] for _ in batch]
        for line in self._found([query.text for query in batch]).to_pylist():
            found[line["query"]].append(line)
        self._explain(min(map(len, found)))
        return found

    def _found(self, texts: list[str]) -> Any:
        from pipeline.index.texts import MissingTexts

        try:
            return self.release.search(texts, self.k, texts=self.texts)
        except MissingTexts as missing:
            log.say(f"answers come without their texts: {missing}")
            self.texts = False
            return self.release.search(texts, self.k)

    def _explain(self, least: int) -> None:
        if self._short or least >= self.k:
            return
        self._short = True
        rows = len(self.release)
        if rows < self.k:
            log.say(f"{self.k:,} answers were asked for, and release {self.release.number} has {rows:,} rows")
        else:
            kind = self.release.manifest.index.kind
            log.say(
                f"a query has {least:,} of {self.k:,} answers: an index of kind {kind} leads to no "
                "more. Ask for fewer, or use index.kind=ivf_flat"
            )


def _say_json(say: Say, query: Query, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        say(
            escaped(
                json.dumps(
                    {"number": query.number, **line, "query": query.text}, default=str, ensure_ascii=False
                )
            )
        )


def _shown(lines: list[dict[str, Any]], width: int | None) -> str:
    """The answers as a table that fits into `width`; texts below their ids where these leave too little room."""
    if not lines:
        return "nothing found: the release is empty"
    kept = [name for name in lines[0] if name not in _OWN]
    header = ("rank", "score", "id", *kept)
    rows = [
        (
            str(line["rank"]),
            f"{line['score']:.4f}",
            str(line["id"]),
            *("" if line[name] is None else _one_line(line[name]) for name in kept),
        )
        for line in lines
    ]
    if width is None:
        return table(
            [
                (*row[:3], *(text if len(text) <= _PIPED else text[: _PIPED - 3] + "..." for text in row[3:]))
                for row in rows
            ],
            header,
        )
    wanted = [max(cells(printable(row[column])) for row in (header, *rows)) for column in range(len(header))]
    given = shared(wanted[3:], width - sum(wanted[:3]) - gaps(len(header)))
    if any(cells_given < min(wish, _LEAST) for cells_given, wish in zip(given, wanted[3:], strict=True)):
        return _stacked(rows, header, width)
    return table(rows, header, [*wanted[:3], *given])


def _stacked(rows: list[tuple[str, ...]], header: tuple[str, ...], width: int) -> str:
    """Rank, score and id on a line, each other column on one below it."""
    first = table([row[:3] for row in rows], header[:3]).split("\n")
    shown = first[:1]
    for line, row in zip(first[1:], rows, strict=True):
        named = (
            row[3:]
            if len(header) == 4
            else [f"{name}: {text}" for name, text in zip(header[3:], row[3:], strict=True)]
        )
        shown += [line, *(cut(f"    {printable(text)}", width) for text in named)]
    return "\n".join(shown)


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


if __name__ == "__main__":
    standalone(search)

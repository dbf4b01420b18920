"""Ask a published release.

manta search releases "join two paths" -k 5
manta search releases --queries questions.txt --json > answers.jsonl
python -m jobs.search releases "join two paths" --release 3 --json
"""

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.boundary import Say, guarded
from jobs.command import CommitsRoot, Root, Verbose, options_command, standalone
from jobs.layout import cut, gaps, output_width, shared, table, wanted_widths
from jobs.queries import Query, QueryTexts
from pipeline import log
from pipeline.log import escaped, printable

if TYPE_CHECKING:
    from pipeline.index.search import OpenRelease

_OWN = ("query", "rank", "score", "id")
_PIPED = 100  # characters of a text in a pipe or a file, where lines have no width to fit into
_LEAST = 24  # cells: a text in fewer cells is of no use and gets a line of its own


@dataclass(frozen=True)
class SearchOptions:
    """The command line of a search."""

    root: Root
    query: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUERY...",
            help="One text or several, each in quotes; - reads one from each line of standard input.",
        ),
    ] = None
    queries: Annotated[
        str | None,
        typer.Option(
            "--queries",
            metavar="FILE",
            help="Queries from a file, a path or a URI: one on each line, or Parquet; - is standard input.",
        ),
    ] = None
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            metavar="NAME",
            help="Of a Parquet file of queries; without it the only column of strings, query, or text.",
        ),
    ] = None
    k: Annotated[int, typer.Option("-k", min=1, help="Answers per query.")] = 10
    release: Annotated[
        int | None,
        typer.Option("--release", metavar="N", help="An older release; without it the current one."),
    ] = None
    texts: Annotated[
        bool | None,
        typer.Option(
            "--texts/--no-texts",
            help="Show the text of each answer, read from the release's corpus units. "
            "Without either: yes, but not with --json.",
        ),
    ] = None
    commits_root: CommitsRoot = None
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object for each answer, on a line of its own, on standard output and "
            "nothing else.",
        ),
    ] = False
    verbose: Verbose = False


@options_command
def search(asked: SearchOptions) -> None:
    """Find the texts nearest to a query in a published release.

    Encodes the query with the release's own encoder and prints rank, score (cosine), id, text and the kept
    columns: within the width of a terminal, or with texts cut to 100 characters in a pipe. Many queries are
    answered in batches, in their order.
    """
    work = partial(_search, asked, output_width())
    guarded(work, as_json=asked.as_json, verbose=asked.verbose)


def _search(asked: SearchOptions, width: int | None, say: Say) -> None:
    from pipeline import open_release

    queries = QueryTexts.of(asked.query or (), asked.queries, asked.column)
    if queries.of_words:
        log.say(_understood(asked.root, queries))
    # Programs often need the ids alone, for which no corpus unit is read.
    texts = not asked.as_json if asked.texts is None else asked.texts
    answers = _Answers(open_release(asked.root, asked.release, commits=asked.commits_root), asked.k, texts)
    for batch in queries.batches():
        for query, lines in zip(batch, answers.of(batch), strict=True):
            if asked.as_json:
                for line in lines:
                    facts = {"number": query.number, **line, "query": query.text}
                    say(escaped(json.dumps(facts, default=str, ensure_ascii=False)))
            elif queries.file or len(queries.texts) > 1:
                say(f"{printable(query.text)}\n{_shown(lines, width)}\n")
            else:
                say(_shown(lines, width))
    if queries.blank:
        log.say(f"{queries.name}: blank queries left out: {queries.blank:,}")


def _understood(root: str, asked: QueryTexts) -> str:
    *named, one = (json.dumps(text, ensure_ascii=False) for text in (*asked.texts, " ".join(asked.texts)))
    return (
        f"{len(named)} queries of one word each: {', '.join(named)}. For one query of several words, put it "
        f"in quotes: manta search {root} {one}"
    )


@dataclass
class _Answers:
    """Answers of the release, batch by batch; warnings about missing answers are printed once."""

    release: "OpenRelease"
    k: int
    texts: bool
    _short: bool = field(default=False, init=False)

    def of(self, batch: list[Query]) -> list[list[dict[str, Any]]]:
        """Return the answers to each query, best first."""
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
        if len(self.release) < self.k:
            rows = log.counted(len(self.release), "row")
            log.say(f"{self.k:,} answers were asked for, and release {self.release.number} has {rows}")
        else:
            log.say(
                f"a query has {least:,} of {self.k:,} answers: an index of kind "
                f"{self.release.manifest.index.kind} leads to no more. Ask for fewer, or use "
                "index.kind=ivf_flat"
            )


def _shown(lines: list[dict[str, Any]], width: int | None) -> str:
    """Return the answers as a table of at most `width` cells.

    Texts that would get too few cells follow their ids on lines of their own.
    """
    if not lines:
        return "nothing found: the release is empty"
    header = ("rank", "score", "id", *(name for name in lines[0] if name not in _OWN))
    rows = [tuple(_cell(name, line[name]) for name in header) for line in lines]
    if width is None:
        return table([(*row[:3], *map(_piped, row[3:])) for row in rows], header)
    wanted = wanted_widths(rows, header)
    given = shared(wanted[3:], width - sum(wanted[:3]) - gaps(len(header)))
    if any(found < min(wish, _LEAST) for found, wish in zip(given, wanted[3:], strict=True)):
        return _stacked(rows, header, width)
    return table(rows, header, [*wanted[:3], *given])


def _cell(name: str, value: Any) -> str:
    if name == "score":
        return f"{value:.4f}"
    if name == "id":
        return str(value)
    return "" if value is None else " ".join(str(value).split())


def _piped(text: str) -> str:
    return text if len(text) <= _PIPED else text[: _PIPED - 3] + "..."


def _stacked(rows: list[tuple[str, ...]], header: tuple[str, ...], width: int) -> str:
    """Return rank, score and id on a line, and each other column on a line below it."""
    title, *first = table([row[:3] for row in rows], header[:3]).split("\n")
    shown = [title]
    for line, row in zip(first, rows, strict=True):
        names = [""] if len(header) == 4 else [f"{name}: " for name in header[3:]]
        named = zip(names, row[3:], strict=True)
        shown += [line, *(cut(f"    {name}{printable(text)}", width) for name, text in named)]
    return "\n".join(shown)


if __name__ == "__main__":
    standalone(search)

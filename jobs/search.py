"""Search a published release.

manta search releases "join two paths" -k 5
manta search releases --queries questions.txt --json > answers.jsonl
manta search releases "join two paths" --where "stars >= 10 and lang in ('de', 'en')"
python -m jobs.search releases "join two paths" --release 3 --json
"""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.boundary import Say, guarded, refuse_few_addresses
from jobs.command import CommitsRoot, Root, Verbose, options_command, standalone
from jobs.layout import divide_width, gaps, output_width, table, truncate, wanted_widths
from jobs.queries import Query, QueryTexts
from pipeline import log
from pipeline.log import escaped, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.index.search.search import OpenRelease

_FIXED_COLUMNS = ("query", "rank", "score", "id")
_MAX_PIPED = 100  # characters of a text if standard output is a pipe or a file
_MIN_CELLS = 24  # if a column of longer texts would be narrower, texts are printed on lines of their own


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
            help="Path or URI of a file of queries: one on each line, or Parquet; - is standard input.",
        ),
    ] = None
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            metavar="NAME",
            help="Column of a Parquet file of queries. Default: the only one of strings, or query, or text.",
        ),
    ] = None
    k: Annotated[int, typer.Option("-k", min=1, help="Answers per query.")] = 10
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Search only rows that meet a condition on the id and the columns of corpus.keep, like "
            "\"price < 10 and lang in ('de', 'en')\".",
        ),
    ] = None
    release: Annotated[
        int | None,
        typer.Option("--release", metavar="N", help="An older release; default: the current one."),
    ] = None
    group: Annotated[
        bool,
        typer.Option(
            "--group",
            help="Answer with documents (corpus.chunk): of the chunks of each, only the best one.",
        ),
    ] = False
    texts: Annotated[
        bool | None,
        typer.Option(
            "--texts/--no-texts",
            help="Show the text of each answer, read from the release's corpus units. "
            "Default: yes, except with --json, or if corpus.keep names the column of the text.",
        ),
    ] = None
    commits_root: CommitsRoot = None
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object for each answer, on a line of its own, on standard output and "
            "nothing else. Its number is that of the query; a kept column of this name is kept.number.",
        ),
    ] = False
    verbose: Verbose = False


@options_command
def search(options: SearchOptions) -> None:
    """Find the texts nearest to a query in a published release.

    Encodes the query with the release's encoder, and prints rank, score (cosine), id, text and the columns
    that corpus.keep names. Lines are as wide as the terminal; in a pipe, texts are truncated to 100
    characters. Many queries are answered in batches, in order.
    """
    width = output_width()  # before `guarded` redirects standard output
    guarded(lambda say: _search(options, width, say), as_json=options.as_json, verbose=options.verbose)


def _search(options: SearchOptions, width: int | None, say: Say) -> None:
    refuse_few_addresses()
    from pipeline.index.search.search import open_release

    queries = QueryTexts.of(options.query or (), options.queries, options.column)
    if queries.all_single_words:
        log.announce(_single_words_note(options.root, queries))
    root = (options.root, options.commits_root) if options.commits_root else options.root
    release = open_release(root, options.release)
    corpus = release.manifest.settings.get("corpus", {})
    # Texts are read from the corpus, and programs often need the ids alone.
    by_default = not options.as_json and corpus.get("text") not in corpus.get("keep", ())
    texts = by_default if options.texts is None else options.texts
    searcher = _Searcher(release, options.k, texts, options.where, options.group)
    is_one_query = queries.file is None and len(queries.texts) == 1
    for batch in queries.batches():
        for query, answers in zip(batch, searcher.search(batch), strict=True):
            if options.as_json:
                for answer in answers:
                    if "number" in answer:  # a kept column of that name
                        answer["kept.number"] = answer.pop("number")
                    facts = {"number": query.number, **answer, "query": query.text}
                    say(escaped(json.dumps(facts, ensure_ascii=False)))
            elif is_one_query:
                say(_format_answers(answers, width, searcher.without_answers))
            else:
                table_of_answers = _format_answers(answers, width, searcher.without_answers)
                say(f"{printable(query.text)}\n{table_of_answers}\n")
    if queries.blank:
        log.announce(f"{queries.name}: blank queries left out: {queries.blank:,}")


def _single_words_note(root: str, queries: QueryTexts) -> str:
    """Return a hint that queries of one word each may be one query without its quotes."""
    words = [json.dumps(text, ensure_ascii=False) for text in queries.texts]
    joined = json.dumps(" ".join(queries.texts), ensure_ascii=False)
    return (
        f"{len(words)} queries of one word each: {', '.join(words)}. For one query of several words, put it "
        f"in quotes: manta search {root} {joined}"
    )


@dataclass
class _Searcher:
    """Search a release for batches of queries, and print each kind of warning once."""

    release: "OpenRelease"
    k: int
    texts: bool
    """whether answers come with their texts"""
    where: str | None = None
    group: bool = False
    """whether only the best chunk of a document is an answer"""
    _has_explained: bool = field(default=False, init=False)

    def search(self, batch: list[Query]) -> list[list[dict[str, Any]]]:
        """Return the answers to each query, best first."""
        from pipeline.targets.values import json_rows

        answers: list[list[dict[str, Any]]] = [[] for _ in batch]
        for answer in json_rows(self._search_texts([query.text for query in batch])):
            answers[answer["query"]].append(answer)
        self._explain_few(min(map(len, answers)))
        return answers

    def _search_texts(self, texts: list[str]) -> "pa.Table":
        """Search the release. If the texts of answers cannot be read, return answers without, from now on."""
        from pipeline.index.files.texts import MissingTexts

        try:
            return self.release.search(texts, self.k, texts=self.texts, where=self.where, group=self.group)
        except MissingTexts as missing:
            log.announce(f"answers come without their texts: {missing}")
            self.texts = False
            return self.release.search(texts, self.k, where=self.where, group=self.group)

    @property
    def without_answers(self) -> str:
        """A sentence for a query without answers."""
        return (
            f"nothing found: {'the release is empty' if self.where is None else 'no row passes the filter'}"
        )

    def _explain_few(self, fewest: int) -> None:
        """Print once why a query has only `fewest` answers, if that is fewer than k."""
        if self._has_explained or fewest >= self.k:
            return
        self._has_explained = True
        available = len(self.release) if self.where is None else self.release.count(self.where)
        noun, number = "row", self.release.number
        if self.group and self.where is None:
            available, noun = self.release.manifest.counts["documents"], "document"
        elif self.group:  # a filtered search finds every row
            available, noun = min(available, fewest), "document"
        if available < self.k:
            rows = log.counted(available, noun)
            found = f"release {number} has {rows}"
            if self.where is not None:
                found = f"the filter lets {rows} of release {number} pass"
            log.announce(f"{self.k:,} answers were asked for, and {found}")
        else:
            kind = self.release.manifest.index.kind
            # With inverted lists, `search_until_k` has visited every list. A graph is searched with
            # efSearch >= k, so that it finds fewer rows only if its links lead to no further row.
            effort = (
                "nprobe was raised to all lists" if "ivf" in kind.lower() else "a higher efSearch finds none"
            )
            log.announce(
                f"a query has {fewest:,} of {self.k:,} answers: an index of kind {kind} finds no more rows "
                f"({effort}). Ask for fewer, or use index.kind=flat"
            )


def _format_answers(answers: list[dict[str, Any]], width: int | None, otherwise: str = "") -> str:
    """Format the answers to one query as a table of at most `width` cells; None for no limit.

    Without answers, returns `otherwise`. If the terminal is too narrow for columns of text, texts are printed
    on lines below their ids.
    """
    if not answers:
        return otherwise
    header = ("rank", "score", "id", *(name for name in answers[0] if name not in _FIXED_COLUMNS))
    rows = [tuple(_cell(name, answer[name]) for name in header) for answer in answers]
    if width is None:
        return table([(*row[:3], *map(_truncate_piped, row[3:])) for row in rows], header)
    wanted = wanted_widths(rows, header)
    text_widths = divide_width(wanted[3:], width - sum(wanted[:3]) - gaps(len(header)))
    if any(given < min(wish, _MIN_CELLS) for given, wish in zip(text_widths, wanted[3:], strict=True)):
        return _stack_columns(rows, header, width)
    return table(rows, header, [*wanted[:3], *text_widths])


def _cell(name: str, value: Any) -> str:
    if name == "score":
        return f"{value:.4f}"
    if name == "id":
        return str(value)
    return "" if value is None else " ".join(str(value).split())


def _truncate_piped(text: str) -> str:
    return text if len(text) <= _MAX_PIPED else text[: _MAX_PIPED - 3] + "..."


def _stack_columns(rows: list[tuple[str, ...]], header: tuple[str, ...], width: int) -> str:
    """Format rank, score and id on one line, and each other column on a line below it."""
    title, *first_lines = table([row[:3] for row in rows], header[:3]).split("\n")
    prefixes = [""] if len(header) == 4 else [f"{name}: " for name in header[3:]]
    lines = [title]
    for first_line, row in zip(first_lines, rows, strict=True):
        lines.append(first_line)
        for prefix, text in zip(prefixes, row[3:], strict=True):
            lines.append(truncate(f"    {prefix}{printable(text)}", width))
    return "\n".join(lines)


if __name__ == "__main__":
    standalone(search)

"""Make a file for gates.queries of a service's logs of queries, or forget queries.

manta query-log queries.jsonl --out queries.parquet
manta query-log queries-1.jsonl queries-2.jsonl --out s3://bucket/queries.parquet --size 500
manta query-log queries.jsonl queries.parquet --forget texts.txt --root releases
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.boundary import guarded, refuse_few_addresses
from jobs.command import Answer, Json, Verbose, options_command, print_answer, standalone

if TYPE_CHECKING:
    from pipeline.text.query_log.forget import Forgotten
    from pipeline.text.query_log.lines import LoggedQuery

_REASONS = {
    "damaged": "lines that cannot be read, such as one that a kill cut off",
    "read_twice": "lines that were read before, in another log",
    "beyond_sample": "beyond the sample of their client and day",
    "other_encoder": "vectors of an encoder that does not answer any more, without a text",
    "repeated": "repeat another query",
    "over_share": "beyond the share of their client and day (--max-share)",
    "not_drawn": "more than --size",
}


@dataclass(frozen=True)
class QueryLogCommandOptions:
    """The command line for logs of queries."""

    files: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="Logs that `manta serve --log-queries` wrote. With --forget also files that --out wrote.",
        ),
    ]
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", help="Path or URI of the Parquet file for gates.queries."),
    ] = None
    size: Annotated[
        int, typer.Option("--size", min=1, help="Most queries in the file; a night reads the first 1,000.")
    ] = 1_000
    max_share: Annotated[
        float,
        typer.Option(
            "--max-share",
            min=0.001,
            max=1,
            help="Largest proportion of a day's queries that one client may give; twice an equal part if "
            "there are few clients.",
        ),
    ] = 0.1
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget",
            metavar="TEXTS",
            help="Remove the queries with these texts, one on each line of TEXTS, from all files instead.",
        ),
    ] = None
    root: Annotated[
        str | None,
        typer.Option(
            "--root",
            metavar="ROOT",
            help="With --forget: folder or URI of the releases, whose encoder finds the texts' vectors.",
        ),
    ] = None
    as_json: Json = False
    verbose: Verbose = False


@options_command
def query_log(options: QueryLogCommandOptions) -> None:
    """Make a file for gates.queries of logs of queries, or remove queries from logs and such files.

    Takes at most --size queries without repeats, spread evenly over days, filters, numbers of answers and
    best scores, and says how many lines it left out, and why. The file has the day of each query, and no
    client.
    """
    guarded(
        lambda say: print_answer(
            _forget(options) if options.forget else _make(options), say, options.as_json
        ),
        as_json=options.as_json,
        verbose=options.verbose,
    )


def _make(options: QueryLogCommandOptions) -> Answer:
    from pipeline.errors import ConfigError, DataError
    from pipeline.log import counted
    from pipeline.text.query_log.choose import choose_queries
    from pipeline.text.query_log.file import read_log
    from pipeline.text.query_log.queries_file import write_queries

    if options.out is None:
        raise ConfigError("query-log", "--out FILE or --forget TEXTS", "neither", "add one of them")
    lines: list[LoggedQuery] = []
    damaged = 0
    for file in options.files:
        try:
            found, of_file = read_log(Path(file))
        except OSError as error:
            raise ConfigError(file, "a log of queries", str(error), "check the path") from None
        lines, damaged = [*lines, *found], damaged + of_file
    chosen = choose_queries(lines, options.size, options.max_share)
    if not chosen.queries:
        found_lines = counted(damaged, "damaged line") if damaged else "no line"
        remedy = "wait until the service has answered queries; see manta_serve_logged_queries_total"
        raise DataError(", ".join(options.files), "logged queries", found_lines, remedy)
    write_queries(options.out, chosen.queries)
    days = [query.day for query in chosen.queries]
    left_out = {"damaged": damaged, **chosen.left_out}
    facts = {
        "status": "done",
        "file": options.out,
        "lines": len(lines) + damaged,
        "queries": len(chosen.queries),
        "texts": sum(query.text is not None for query in chosen.queries),
        "from": min(days),
        "until": max(days),
        "left_out": left_out,
        "largest_share": round(chosen.largest_share, 4),
    }
    return Answer(facts, _text(facts, left_out, options.max_share))


def _text(facts: dict[str, object], left_out: dict[str, int], max_share: float) -> str:
    """Return the answer for people: numbers that add up, and what to know about the clients."""
    share = facts["largest_share"]
    assert isinstance(share, float)
    lines = [
        f"{facts['lines']:,} lines of logs",
        f"{facts['queries']:>9,}  taken: {facts['file']}",
        *(f"{count:>9,}  left out: {_REASONS[reason]}" for reason, count in left_out.items() if count),
        f"days    {facts['from']} to {facts['until']}",
        f"texts   {facts['texts']:,} of {facts['queries']:,} queries have one, the others a vector",
        f"client  one gave {share:.0%} of the queries of a day, at most",
    ]
    if share > max_share:
        lines += [
            f"        more than --max-share {max_share:g}, because few clients asked that day. Behind a",
            "        proxy, all users are one client unless the service knows it",
            "        (FORWARDED_ALLOW_IPS)",
        ]
    return "\n".join(lines)


def _forget(options: QueryLogCommandOptions) -> Answer:
    refuse_few_addresses()
    from dataclasses import asdict

    from pipeline.errors import ConfigError
    from pipeline.text.query_log.forget import forget_queries

    if options.out is not None:
        raise ConfigError("query-log", "--out FILE or --forget TEXTS", "both", "remove one of them")
    forgotten = _forgotten(str(options.forget), options.root)
    counts = {file: asdict(forget_queries(file, forgotten)) for file in options.files}
    lines = [f"{len(forgotten.texts):,} texts to forget"]
    for file, of_file in counts.items():
        lines += [
            file,
            f"{of_file['forgotten']:>9,}  forgotten",
            f"{of_file['not_comparable']:>9,}  removed, too: vectors of another encoder, without a text",
            f"{of_file['damaged']:>9,}  removed, too: lines that cannot be read",
            f"{of_file['kept']:>9,}  stay",
        ]
    return Answer({"status": "done", "texts": len(forgotten.texts), "files": counts}, "\n".join(lines))


def _forgotten(file: str, root: str | None) -> "Forgotten":
    """Read the texts to forget, and encode them if a root is given."""
    from pipeline.errors import DataError
    from pipeline.index.search.search import open_release
    from pipeline.text.formats.queries import read_texts
    from pipeline.text.normalize import normalize
    from pipeline.text.query_log.forget import Forgotten

    texts = [text for text in normalize(list(read_texts(file))).to_pylist() if text]
    if not texts:
        raise DataError(f"--forget {file}", "a text on each line", "no text", "write the texts into the file")
    if root is None:
        return Forgotten(frozenset(texts))
    release = open_release(root)
    return Forgotten(frozenset(texts), release.encode(texts), release.space_id)


if __name__ == "__main__":
    standalone(query_log)

"""Choose queries of logs for gates.queries: without repeats, spread over time, filters, answers and scores.

Queries are sorted by day, by whether they had a filter, by their number of answers and by their best score,
and every n-th of them is taken, from a random start: systematic sampling, which stratifies by the order
(Cochran, "Sampling Techniques", 3rd edition 1977, chapter 8). Every query has the same probability to be
taken, so recall for the file is an unbiased estimate for the queries among which it was chosen, and a part of
the queries that is common in them is as common in the file.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.text.normalize import normalize
from pipeline.text.query_log.draws import sampled
from pipeline.text.query_log.lines import LoggedQuery

_DRAWS = 1 << 53  # number of random numbers


@dataclass(frozen=True)
class ChosenQueries:
    """Queries for gates.queries, in a random order, and what became of all others."""

    queries: tuple[LoggedQuery, ...]
    left_out: dict[str, int]
    """number of lines by the reason why they were left out; with the queries, they add up to all lines"""
    largest_share: float
    """proportion of the queries that one client asked on one day, of the queries of that day; the largest"""


def choose_queries(lines: Sequence[LoggedQuery], count: int, max_share: float) -> ChosenQueries:
    """Choose at most `count` queries.

    Args:
        lines: of all logs.
        max_share: largest proportion of a day's queries that a client may give. On a day with few clients,
            each may give twice an equal part.
    """
    left_out: Counter[str] = Counter()

    def step(reason: str, before: Sequence[LoggedQuery], after: list[LoggedQuery]) -> list[LoggedQuery]:
        left_out[reason] = len(before) - len(after)
        return after

    distinct = step("read_twice", lines, list({(line.client, line.draw): line for line in lines}.values()))
    samples = step("beyond_sample", distinct, sampled(distinct))
    comparable = step("other_encoder", samples, _of_newest_space(samples))
    unique = step("repeated", comparable, _without_repeats(comparable))
    shared = step("over_share", unique, _within_share(unique, max_share))
    taken = step("not_drawn", shared, _systematic(shared, count))
    return ChosenQueries(
        tuple(sorted(taken, key=lambda query: query.draw)), dict(left_out), _largest_share(taken)
    )


def _of_newest_space(queries: Sequence[LoggedQuery]) -> list[LoggedQuery]:
    """Return the queries that have a text, or a vector of the encoder that answered last."""
    newest = max(queries, key=lambda query: query.time).space_id if queries else ""
    return [query for query in queries if query.text is not None or query.space_id == newest]


def _without_repeats(queries: Sequence[LoggedQuery]) -> list[LoggedQuery]:
    """Return one of the queries of each text, and of each vector: the one with the lowest number."""
    seen: set[tuple[str, ...]] = set()
    kept = []
    for query in sorted(queries, key=lambda query: query.draw):
        keys: list[tuple[str, ...]] = [(query.space_id, query.vector)]
        if query.text is not None:
            keys.append((normalize([query.text])[0].as_py(),))
        if not seen.intersection(keys):
            kept.append(query)
        seen.update(keys)
    return kept


def _within_share(queries: Iterable[LoggedQuery], max_share: float) -> list[LoggedQuery]:
    """Return the queries without those that a client asked beyond its share of a day."""
    by_day: dict[str, dict[str, list[LoggedQuery]]] = defaultdict(lambda: defaultdict(list))
    for query in queries:
        by_day[query.day][query.client].append(query)
    kept = []
    for clients in by_day.values():
        most = most_per_client([len(of_client) for of_client in clients.values()], max_share)
        for of_client in clients.values():
            kept += sorted(of_client, key=lambda query: query.draw)[:most]
    return kept


def most_per_client(counts: Sequence[int], max_share: float) -> int:
    """Return the largest number that a client may give, so that nobody has more than the share of the rest.

    Args:
        counts: queries of each client.
        max_share: the share; twice an equal part if that is more.

    >>> most_per_client([50, *[1] * 90], 0.1)
    10
    >>> most_per_client([50, 1], 0.1)
    50
    """
    share = max(max_share, 2 / len(counts))
    for most in range(max(counts), 1, -1):
        if most <= share * sum(min(count, most) for count in counts):
            return most
    return 1


def _systematic(queries: Sequence[LoggedQuery], count: int) -> list[LoggedQuery]:
    """Take `count` of the queries at equal distances in their order."""
    if len(queries) <= count:
        return list(queries)
    ordered = sorted(queries, key=_stratum)
    start = (sum(query.draw for query in queries) % _DRAWS) / _DRAWS  # random, and the same for the same logs
    return [ordered[int((start + number) * len(ordered) / count)] for number in range(count)]


def _stratum(query: LoggedQuery) -> tuple[str, bool, int, float, int]:
    """Return the key by which queries are sorted: day, filter, none or few or all answers, best score."""
    answers = 0 if not query.answers else 1 if query.answers < query.k else 2
    return query.day, query.filtered, answers, query.score or 0.0, query.draw


def _largest_share(queries: Iterable[LoggedQuery]) -> float:
    by_day: dict[str, Counter[str]] = defaultdict(Counter)
    for query in queries:
        by_day[query.day][query.client] += 1
    return max((max(of_day.values()) / of_day.total() for of_day in by_day.values()), default=0.0)

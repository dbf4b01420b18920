"""The sample of each client and day is uniform, of bounded size, and the same however logs are divided."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.query_log import draws as module
from pipeline.text.query_log.draws import QueryDraws, client_of_address, sampled
from pipeline.text.query_log.lines import LoggedQuery
from tests.text.query_log.lines import logged


def log_of(draws: QueryDraws, identity: str, queries: int) -> list[tuple[int, LoggedQuery]]:
    """Return the positions and lines of the queries of a client that are drawn."""
    lines = []
    for position in range(queries):
        if drawn := draws.draw(identity):
            line = logged(draw=drawn.number, per_client=drawn.per_client)
            lines.append((position, line.model_copy(update={"client": drawn.client})))
    return lines


def test_every_query_of_a_client_is_in_the_sample_with_equal_probability():
    """200 clients of 20 queries, 5 of each: a position is chosen 50 times, with variance 200 * 1/4 * 3/4."""
    counts: Counter[int] = Counter()
    for _ in range(200):
        lines = log_of(QueryDraws(per_client=5), "x", 20)
        sample = {line.draw for line in sampled(line for _, line in lines)}
        assert len(sample) == 5
        counts.update(position for position, line in lines if line.draw in sample)
    chi_squared = sum((counts[position] - 50) ** 2 / 37.5 for position in range(20))
    assert chi_squared < 60  # 20 terms of mean 1; beyond 60 with a probability below 1e-5


def test_a_log_has_few_lines_beyond_the_sample():
    """About k (1 + ln(n / k)) of n queries are logged: 8 (1 + ln(1250)) = 65."""
    assert 8 <= len(log_of(QueryDraws(per_client=8), "x", 10_000)) < 130


def test_a_client_with_a_million_queries_has_no_greater_share_than_others():
    draws = QueryDraws(per_client=4)
    lines = [
        line for name, count in (("loud", 50_000), ("quiet", 4)) for _, line in log_of(draws, name, count)
    ]
    assert Counter(query.client for query in sampled(lines)).most_common() == [
        (client, 4) for client in dict.fromkeys(query.client for query in lines)
    ]


def test_of_many_clients_a_random_few_are_kept_and_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_CLIENTS", 16)
    draws = QueryDraws(per_client=2, max_clients=16)
    lines = [line for number in range(400) for _, line in log_of(draws, f"client {number}", 3)]
    kept = {query.client for query in sampled(lines)}
    every = {draws_client(draws, f"client {number}") for number in range(400)}
    assert kept == set(sorted(every)[:16])  # the lowest hashes of all, whenever they came
    assert len(draws._numbers) == 16


def draws_client(draws: QueryDraws, identity: str) -> str:
    """Return the hash of a client, as another process with the same key would."""
    other = QueryDraws(_key=draws._key, _name=draws._name)
    drawn = other.draw(identity)
    assert drawn
    return drawn.client


def test_keys_differ_between_days_and_processes_and_are_not_in_the_lines():
    one, other = QueryDraws().draw("192.0.2.1"), QueryDraws().draw("192.0.2.1")
    assert one
    assert other
    assert one.client != other.client
    assert "192" not in repr(QueryDraws())


def test_a_lowered_sample_holds_from_the_next_query_on():
    draws = QueryDraws(per_client=8)
    log_of(draws, "x", 100)
    draws.per_client = 2
    later = [line for _, line in log_of(draws, "x", 100)]
    assert all(line.per_client == 2 for line in later)
    assert all(len(numbers) == 2 for numbers in draws._numbers.values())


numbers = st.lists(st.integers(0, 50), unique=True, max_size=30)


@given(numbers, st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_sample_of_divided_logs_is_the_sample_of_the_whole(
    drawn: list[int], per_client: int, rng: random.Random
):
    lines = [logged(rng.choice("ab"), draw, per_client=per_client) for draw in drawn]
    cut = rng.randint(0, len(lines))
    parts = [*sampled(lines[:cut]), *sampled(lines[cut:])]
    rng.shuffle(parts)

    def values(queries: list[LoggedQuery]) -> set[tuple[str, int]]:
        return {(query.client, query.draw) for query in queries}

    assert values(sampled(parts)) == values(sampled(lines))
    for client in {line.client for line in lines}:
        of_client = sorted(line.draw for line in lines if line.client == client)
        assert sorted(q.draw for q in sampled(lines) if q.client == client) == of_client[:per_client]


def test_days_have_samples_of_their_own_and_the_smallest_size_of_a_day_counts():
    lines = [logged("a", 1, per_client=3), logged("b", 2, per_client=1), logged("a", 3, per_client=3)]
    other = [logged("a", draw, per_client=3, time="2026-11-30T00Z") for draw in (7, 8, 9)]
    assert [query.draw for query in sampled([*lines, *other])] == [1, 2, 7, 8, 9]


def test_addresses_of_one_network_are_one_client():
    assert client_of_address("2001:db8:0:1::5") == client_of_address("2001:db8:0:1:ffff::9")
    assert client_of_address("2001:db8:0:1::5") != client_of_address("2001:db8:0:2::5")
    assert client_of_address("::ffff:10.0.0.1") == client_of_address("10.0.0.1") == "10.0.0.1"
    assert client_of_address("a name") == "a name"

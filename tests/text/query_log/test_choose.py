"""Chosen queries do not repeat, are as the logs are, and no client has more than its share."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.query_log.choose import choose_queries, most_per_client
from pipeline.text.query_log.lines import LoggedQuery
from tests.text.query_log.lines import logged


def random_log(rng: random.Random, lines: int) -> list[LoggedQuery]:
    return [
        logged(
            f"c{rng.randint(0, 5)}",
            rng.randint(0, 60),
            time=f"2026-11-{rng.randint(27, 29)}T0{rng.randint(0, 9)}Z",
            vector=np.array([1, rng.randint(0, 15)], np.float32),
            text=rng.choice([None, "a", " b", "b ", "c"]),
            space_id=rng.choice(["old", "new"]),
            filtered=rng.random() < 0.2,
            per_client=rng.randint(2, 5),
        )
        for _ in range(lines)
    ]


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 30), st.sampled_from([0.05, 0.3, 1.0]), st.integers(0, 1 << 32))
def test_numbers_add_up_and_nothing_repeats(lines: int, size: int, share: float, seed: int):
    log = random_log(random.Random(seed), lines)
    chosen = choose_queries(log, size, share)
    assert len(chosen.queries) + sum(chosen.left_out.values()) == lines
    assert all(count >= 0 for count in chosen.left_out.values())
    assert len(chosen.queries) <= size
    texts = [query.text.strip() for query in chosen.queries if query.text]
    vectors = [(query.space_id, query.vector) for query in chosen.queries]
    assert len(set(texts)) == len(texts)
    assert len(set(vectors)) == len(vectors)
    assert [query.draw for query in chosen.queries] == sorted(query.draw for query in chosen.queries)
    assert len({query.space_id for query in chosen.queries if query.text is None}) <= 1
    random.Random(seed).shuffle(log)
    again = choose_queries([*log, *log], size, share)  # a log that is given twice changes nothing
    assert {query.vector for query in again.queries} == {query.vector for query in chosen.queries} or any(
        count > 1 for count in Counter((line.client, line.draw) for line in log).values()
    )


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.floats(0.01, 1))
def test_no_client_has_more_than_its_share_and_no_query_is_lost_for_nothing(counts: list[int], share: float):
    most = most_per_client(counts, share)
    limit = max(share, 2 / len(counts))

    def is_fair(each: int) -> bool:
        return each <= limit * sum(min(count, each) for count in counts)

    assert most == 1 or is_fair(most)
    assert most == max(counts) or not is_fair(most + 1)


def test_a_client_that_asks_most_steers_at_most_its_share():
    loud = [logged("loud", draw, per_client=128) for draw in range(128)]
    others = [logged(f"other {draw}", 1_000 + draw, per_client=128) for draw in range(60)]
    chosen = choose_queries([*loud, *others], 1_000, 0.1)
    assert chosen.left_out["over_share"] == 128 - 6
    assert chosen.largest_share == pytest.approx(6 / 66)


def test_the_file_has_the_proportions_of_the_logs():
    rng = random.Random(7)
    log = [
        logged(
            f"c{number}",
            rng.getrandbits(53),
            time=f"2026-11-{20 + number % 7}T10Z",
            vector=np.array([1, number], np.float32),
            filtered=number % 10 == 0,
            answers=(0, 4, 10, 10)[number // 7 % 4],
            score=number / 7_000,
        )
        for number in range(7_000)
    ]
    taken = choose_queries(log, 700, 1.0).queries
    assert len(taken) == 700
    assert set(Counter(query.day for query in taken).values()) == {100}
    for value in (0, 4, 10):
        of_all = sum(query.answers == value for query in log)
        assert sum(query.answers == value for query in taken) == pytest.approx(of_all / 10, abs=14)
    assert sum(query.filtered for query in taken) == pytest.approx(70, abs=7)
    assert np.mean([query.score or 0 for query in taken]) == pytest.approx(0.5, abs=0.025)


def test_every_query_is_taken_with_the_same_probability():
    counts: Counter[int] = Counter()
    rng = random.Random(3)
    for _ in range(2_000):
        log = [
            logged("c", rng.getrandbits(53), per_client=99, vector=np.array([1, n], np.float32), score=n / 20)
            for n in range(10)
        ]
        counts.update(int(query.array()[1]) for query in choose_queries(log, 4, 1.0).queries)
    assert all(abs(counts[number] - 800) < 5 * np.sqrt(2_000 * 0.4 * 0.6) for number in range(10))


def test_without_lines_nothing_is_chosen():
    assert choose_queries([], 10, 0.1).queries == ()

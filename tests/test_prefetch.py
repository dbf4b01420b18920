"""A thread works ahead of its taker: same values, same order, errors and early ends included."""

import threading
from collections.abc import Iterator

import pytest

from pipeline.errors import TransientError
from pipeline.prefetch import prefetch


def workers() -> int:
    return sum(thread.name == "manta-prefetch" for thread in threading.enumerate())


def test_values_come_in_order():
    assert list(prefetch(range(50))) == list(range(50))
    assert list(prefetch([])) == []


def test_at_most_depth_values_are_prefetched():
    taken, most = 0, 0

    def source() -> Iterator[int]:
        nonlocal most
        for value in range(100):
            most = max(most, value - taken)
            yield value

    for _ in prefetch(source(), depth=3):
        taken += 1
    assert most <= 3 + 1  # waiting, and one that was taken and not yet counted


def test_an_error_arrives_after_the_values_before_it():
    def broken():
        yield 1
        raise KeyError("gone")

    values = prefetch(broken())
    assert next(values) == 1
    with pytest.raises(KeyError, match="gone"):
        next(values)


def test_a_consumer_that_stops_early_leaves_no_thread_running():
    before = workers()
    values = prefetch(iter(range(10**9)))
    assert [next(values) for _ in range(3)] == [0, 1, 2]
    assert workers() == before + 1
    values.close()
    assert workers() == before


def test_a_failed_thread_start_is_a_transient_error():
    before = threading.stack_size(1 << 46)  # more than a process can address
    try:
        with pytest.raises(TransientError, match="ulimit -u"):
            next(prefetch(["a text"]))
    finally:
        threading.stack_size(before)

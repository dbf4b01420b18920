"""A thread makes values in advance: they keep their order, errors are raised, and an early stop ends it."""

import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.errors import TransientError
from pipeline.prefetch import prefetch


def workers() -> int:
    return sum(thread.name == "manta-prefetch" for thread in threading.enumerate())


def test_values_come_in_order():
    assert list(prefetch(range(50))) == list(range(50))
    assert list(prefetch([])) == []


def test_exactly_depth_values_wait_while_the_caller_is_busy():
    made = 0

    def source() -> Iterator[int]:
        nonlocal made
        for value in range(100):
            made += 1
            yield value

    values = prefetch(source(), depth=3)
    for taken in (1, 2, 3):
        assert next(values) == taken - 1
        expected = taken + 3 + 1  # 3 wait, and the thread holds one for which there is no room
        give_up = time.monotonic() + 60
        while made < expected and time.monotonic() < give_up:
            time.sleep(0.001)
        time.sleep(0.15)  # a thread without a bound would make all 100 in this time
        assert made == expected
    values.close()


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

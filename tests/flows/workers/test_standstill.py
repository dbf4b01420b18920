"""Detection of hanging items, with clocks that the tests drive: no process waits, and none is killed."""

from dataclasses import dataclass

import pytest

from pipeline.flows.workers.board import Board
from pipeline.flows.workers.standstill import Standstill, Worker, longest_s

WORKER = Worker("node", 17, 4)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def still_s(board: Board, clock: Clock, seconds: int) -> float:
    """Return the seconds without progress of the only item, after `seconds` looks, one per second."""
    for _ in range(seconds):
        clock.now += 1.0
        status = board.status("call")
    (at_work,) = status.at_work
    assert (at_work.item, at_work.worker) == (3, WORKER)
    return at_work.still_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> Board:
    """A board at which item 3 has just begun."""
    board = Board(clock)
    board.status("call")
    board.begin("call", 3, WORKER)
    return board


def test_rows_that_change_are_progress_and_signs_of_life_are_none(board: Board, clock: Clock):
    board.put("call", 3, 10)
    assert still_s(board, clock, 5) == 5
    board.sign("call", 3, WORKER, busy=True)
    board.put("call", 3, 10)
    assert still_s(board, clock, 5) == 10
    board.put("call", 3, 11)
    assert still_s(board, clock, 2) == 2


def test_before_the_first_row_and_after_the_last_one_a_worker_that_computes_gets_on(
    board: Board, clock: Clock
):
    still_s(board, clock, 50)
    board.sign("call", 3, WORKER, busy=True)
    assert still_s(board, clock, 7) == 7, "a model is loaded"
    board.sign("call", 3, WORKER, busy=False)
    assert still_s(board, clock, 7) == 14, "or waited for"
    board.put("call", 3, 10)
    board.put("call", 3, 10, counted=False)
    still_s(board, clock, 5)
    board.sign("call", 3, WORKER, busy=True)
    assert still_s(board, clock, 2) == 2, "a file is written"


def test_a_transfer_under_way_is_progress_whether_rows_are_counted_or_not(board: Board, clock: Clock):
    for counted in (False, True):
        board.put("call", 3, 10, counted=counted)
        still_s(board, clock, 50)
        board.sign("call", 3, WORKER, busy=False, moving=True)
        assert still_s(board, clock, 7) == 7


def test_a_worker_without_signs_of_life_is_known_whatever_the_slowest_item_took(board: Board, clock: Clock):
    board.end("call", 3)
    board.begin("call", 4, WORKER)
    looks = [board.status("call").at_work for clock.now in (1.0, 2.0, 3.0)]
    assert [each.silent_s for (each,) in looks] == [1.0, 2.0, 3.0]
    board.sign("call", 4, WORKER, busy=False)
    clock.now = 4.0
    (at_work,) = board.status("call").at_work
    assert (at_work.still_s, at_work.silent_s) == (4.0, 1.0)


def test_an_item_that_begins_again_counts_from_then(board: Board, clock: Clock):
    still_s(board, clock, 30)
    board.begin("call", 3, WORKER)
    assert still_s(board, clock, 1) == 1


def test_a_board_that_was_restarted_hears_of_items_at_work_by_their_signs(clock: Clock):
    board = Board(clock)
    board.status("call")
    board.sign("call", 3, WORKER, busy=False)
    assert still_s(board, clock, 4) == 4


def test_the_slowest_item_that_is_done_sets_the_limit(board: Board, clock: Clock):
    clock.now += 40.0
    board.end("call", 3)
    status = board.status("call")
    assert (status.at_work, status.slowest_s) == ((), 40.0)
    assert longest_s(status.slowest_s, patience_s=100.0) == 400.0
    assert longest_s(1.0, patience_s=100.0) == 100.0


def test_time_in_which_nobody_looks_hardly_counts():
    standstill = Standstill()
    assert standstill.look(8 * 3600.0) == 10.0, "the machine was suspended"

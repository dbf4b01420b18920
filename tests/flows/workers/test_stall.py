"""Detection of hanging items, with clocks that the tests drive: no process waits, and none is killed."""

from dataclasses import dataclass

import pytest

from pipeline.flows.workers.board import Board, SlowItem
from pipeline.flows.workers.processes import WorkerProcess
from pipeline.flows.workers.stall import StallTimer, stall_limit_s

WORKER = WorkerProcess("node", 17, 4)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def stalled_s(board: Board, clock: Clock, seconds: int) -> float:
    """Return the seconds without progress of the only item, after `seconds` looks, one per second."""
    for _ in range(seconds):
        clock.now += 1.0
        status = board.status("call")
    (running_item,) = status.running_items
    assert (running_item.item, running_item.worker) == (3, WORKER)
    return running_item.stalled_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> Board:
    """A board at which item 3 has just begun."""
    board = Board(clock)
    board.status("call")
    board.record_start("call", 3, WORKER)
    return board


def test_row_counts_are_progress_and_heartbeats_are_not(board: Board, clock: Clock):
    board.record_rows("call", 3, 10)
    assert stalled_s(board, clock, 5) == 5
    board.record_heartbeat("call", 3, WORKER, busy=True)
    board.record_rows("call", 3, 10)
    assert stalled_s(board, clock, 5) == 10
    board.record_rows("call", 3, 11)
    assert stalled_s(board, clock, 2) == 2


def test_before_the_first_and_after_the_last_row_cpu_time_is_progress(board: Board, clock: Clock):
    stalled_s(board, clock, 50)
    board.record_heartbeat("call", 3, WORKER, busy=True)
    assert stalled_s(board, clock, 7) == 7, "a model is loaded"
    board.record_heartbeat("call", 3, WORKER, busy=False)
    assert stalled_s(board, clock, 7) == 14, "or waited for"
    board.record_rows("call", 3, 10)
    board.record_rows("call", 3, 10, more=False)
    stalled_s(board, clock, 5)
    board.record_heartbeat("call", 3, WORKER, busy=True)
    assert stalled_s(board, clock, 2) == 2, "a file is written"


def test_transferred_bytes_are_progress_with_and_without_row_counts(board: Board, clock: Clock):
    for more in (False, True):
        board.record_rows("call", 3, 10, more=more)
        stalled_s(board, clock, 50)
        board.record_heartbeat("call", 3, WORKER, busy=False, transferred=True)
        assert stalled_s(board, clock, 7) == 7


def test_a_worker_without_heartbeats_is_detected(board: Board, clock: Clock):
    board.record_end("call", 3)
    board.record_start("call", 4, WORKER)
    looks = [board.status("call").running_items for clock.now in (1.0, 2.0, 3.0)]
    assert [each.silent_s for (each,) in looks] == [1.0, 2.0, 3.0]
    board.record_heartbeat("call", 4, WORKER, busy=False)
    clock.now = 4.0
    (running_item,) = board.status("call").running_items
    assert (running_item.stalled_s, running_item.silent_s) == (4.0, 1.0)


def test_a_repeated_item_is_timed_from_its_restart(board: Board, clock: Clock):
    stalled_s(board, clock, 30)
    board.record_start("call", 3, WORKER)
    assert stalled_s(board, clock, 1) == 1


def test_a_restarted_board_learns_of_running_item_from_heartbeats(clock: Clock):
    board = Board(clock)
    board.status("call")
    board.record_heartbeat("call", 3, WORKER, busy=False)
    assert stalled_s(board, clock, 4) == 4


def test_the_slowest_finished_item_sets_the_limit(board: Board, clock: Clock):
    clock.now += 40.0
    board.record_end("call", 3)
    status = board.status("call")
    assert (status.running_items, status.slowest_s) == ((), 40.0)
    assert stall_limit_s(status.slowest_s, patience_s=100.0) == 400.0
    assert stall_limit_s(1.0, patience_s=100.0) == 100.0


def test_an_item_is_slow_at_twice_the_median_of_its_peers_and_is_attempted_again_once(clock: Clock):
    board, items = Board(clock), 4
    for item in range(items - 1):
        board.record_start("call", item, WORKER)
    assert board.claim_slow_item("call", items) == SlowItem(None, all_begun=False), "one is not begun"
    board.record_start("call", 3, WORKER)
    clock.now = 30.0
    board.record_end("call", 0)
    assert board.claim_slow_item("call", items).item is None, "too few peers to compare with"
    board.record_end("call", 1)
    clock.now = 60.0
    assert board.claim_slow_item("call", items).item is None, "not more than twice 30 s"
    clock.now = 61.0
    claims = [board.claim_slow_item("call", items) for _ in range(3)]
    assert [claim.item for claim in claims] == [2, 3, None]
    assert not claims[-1].all_done
    board.record_end("call", 2)
    board.record_end("call", 3)
    assert board.claim_slow_item("call", items) == SlowItem(None, all_done=True)


def test_either_of_two_attempts_that_hang_is_killed(board: Board, clock: Clock):
    other = WorkerProcess("node", 18, 4)
    board.record_start("call", 3, other)
    board.record_heartbeat("call", 3, WORKER, busy=False)
    clock.now += 5.0
    assert board.status("call").running_items[0].worker == WORKER
    board.record_heartbeat("call", 3, other, busy=False)
    (running_item,) = board.status("call").running_items
    assert (running_item.worker, running_item.stalled_s) == (other, 5.0)


def test_time_between_late_checks_is_capped():
    timer = StallTimer()
    assert timer.advance(8 * 3600.0) == 10.0, "the machine was suspended"

"""Counts, rates and times left of a stage are right, on a clock that the tests set."""

import re
import time
from dataclasses import dataclass
from itertools import pairwise

import pytest

from pipeline.log import RunningStage, Stage


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def seconds_left(line: str) -> float:
    found = re.search(r"about (?:(\d+) h )?(?:(\d+) min ?)?(?:([\d.]+) s)? left", line)
    assert found, line
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


@pytest.mark.parametrize("starting_s", [0, 20, 600])
@pytest.mark.parametrize("rate", [3, 50])
def test_after_a_tenth_the_time_left_is_right_within_a_factor_of_two(
    starting_s: int, rate: int, capfd: pytest.CaptureFixture[str]
):
    clock, total = Clock(), 12_000
    bar = RunningStage(Stage("encode"), total, terminal=False, clock=clock)
    clock.now += starting_s
    done = 0
    while done < total / 10:
        clock.now += 1.0
        done += rate
        bar.reach(done)
    clock.now += 10.0
    bar.reach(done := done + 10 * rate)
    last = capfd.readouterr().err.splitlines()[-1]
    truth = (total - done) / rate
    assert truth / 2 <= seconds_left(last) <= 2 * truth
    bar.close()


def test_no_time_left_is_shown_before_the_rate_is_known_or_at_the_end(capfd: pytest.CaptureFixture[str]):
    clock = Clock()
    bar = RunningStage(Stage("encode"), 460, terminal=False, clock=clock)
    clock.now += 60.0
    bar.reach(66)
    assert capfd.readouterr().err.endswith("encode: 66 of 460 rows (14%)\n")
    clock.now += 11.0
    bar.reach(88)
    assert capfd.readouterr().err == "encode: 88 of 460 rows (19%), about 3 min 6 s left, 2.0 rows/s\n"
    clock.now += 11.0
    bar.reach(460)
    assert capfd.readouterr().err == "encode: 460 of 460 rows (100%), 18 rows/s\n"
    bar.close()


def test_a_stage_of_hours_prints_ever_fewer_lines(capfd: pytest.CaptureFixture[str]):
    clock, total, printed = Clock(), 8 * 3600, list[float]()
    bar = RunningStage(Stage("encode"), total, terminal=False, clock=clock)
    capfd.readouterr()
    for done in range(1, total):
        clock.now += 1.0
        bar.reach(done)
        if capfd.readouterr().err:
            printed.append(done)
    bar.close()
    intervals = [later - earlier for earlier, later in pairwise(printed)]
    assert intervals[:3] == [10.0, 10.0, 10.0], "a short stage shows its progress at once"
    assert intervals == sorted(intervals)
    assert max(intervals) == 300.0
    assert len(printed) < 250


def on_a_terminal(
    total: int | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *reached: int
) -> str:
    """Return what a bar shows at the end of a stage whose workers need 59 s to start and which then reaches
    the next count every second.
    """
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    clock = Clock()
    bar = RunningStage(Stage("train"), total, terminal=True, clock=clock)
    clock.now += 59.0
    for done in reached:
        clock.now += 1.0
        bar.reach(done)
    capfd.readouterr()
    bar.close()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capfd.readouterr().err)


def test_the_rate_of_the_bar_excludes_the_start_of_the_workers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    shown = on_a_terminal(460, monkeypatch, capfd, 70, 140)
    assert "140/460 rows 70 rows/s" in shown
    assert seconds_left(shown) == pytest.approx((460 - 140) / 70, abs=0.1)
    assert "rows/s" not in on_a_terminal(460, monkeypatch, capfd, 70).splitlines()[0]
    assert "0/460 rows workers are starting" in on_a_terminal(460, monkeypatch, capfd)
    assert "starting" not in on_a_terminal(460, monkeypatch, capfd, 70)


def test_a_stage_without_a_count_shows_none_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    assert "rows" not in on_a_terminal(None, monkeypatch, capfd).splitlines()[0]
    assert " 40 rows" in on_a_terminal(None, monkeypatch, capfd, 40)


def test_a_stage_without_progress_is_reported_as_running(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("pipeline.log._QUIET_S", 0.05)
    bar = RunningStage(Stage("index"), None, terminal=False)
    said, give_up = "", time.monotonic() + 60
    while said.count("index: running for") < 3 and time.monotonic() < give_up:
        time.sleep(0.01)
        said += capfd.readouterr().err
    bar.close()
    assert said.count("index: running for") >= 3
    capfd.readouterr()
    time.sleep(0.2)
    assert not capfd.readouterr().err, "nothing is reported after the end"


def test_starting_workers_are_reported(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    clock = Clock()
    bar = RunningStage(Stage("encode"), 500, terminal=False, clock=clock)
    clock.now += 12.0
    bar.reach(0)
    assert capfd.readouterr().err.endswith("encode: workers are starting, 500 rows to do, 12.0 s so far\n")
    bar.close()

"""One night under fire: the job runs as a program and is started again and again, while shots (single faults)
are fired at it, until a run ends with 0.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.chaos.harm import Plan
from tests.chaos.points import POINTS, TORN, Shot
from tests.chaos.processes import TOKEN, end_all, processes
from tests.flows.conftest import ROOT

HOOKS = Path(__file__).parent / "hooks"
_STUCK_S = 240.0  # a run of a small night that takes longer hangs
_OUTLIVE_S = 20.0  # Ray's processes notice within seconds that their driver is gone
# Weights of the kinds of processes to kill, 1 for the others: without them the driver, which at first runs
# alone, would be killed most often.
_WEIGHTS = {"child": 3, "worker": 3}
_HEADS = ("raylet", "gcs", "agent")  # Ray ends if one of them does
# Signs of a traceback through this project, which no run may print.
_OURS = (f'File "{ROOT}/pipeline', f'File "{ROOT}/jobs')


@dataclass
class Tally:
    """Faults of all nights, and the ends of their runs."""

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    outlived: Counter[str] = field(default_factory=Counter)
    """processes that still ran 20 s after their driver had ended, by kind"""
    wrong: list[str] = field(default_factory=list)
    """descriptions of runs that ended in a way that no fault explains"""
    lasts: dict[bool, float] = field(default_factory=lambda: {False: 6.0, True: 20.0})
    """seconds of a run whose drivers end by themselves, without Ray (False) and with it; moving averages"""


@dataclass(frozen=True)
class Fire:
    """Faults of the disturbed nights.

    Attributes:
        kills: kills of processes from outside, per run on average.
        points: kills at points, per night.
        cuts: truncated files, per night.
        full: full disks, per night.
        chances: probabilities of faults of a local store.
        twice: proportion of runs with a second driver at the same time.
        links: whether the file system has hard links.
        local: whether the store is a local folder.
        heads: whether raylets and GCS servers are killed from outside, too.
    """

    kills: float = 0.7
    points: int = 4
    cuts: int = 1
    full: int = 1
    chances: tuple[tuple[str, float], ...] = ()
    twice: float = 0.15
    links: bool = True
    local: bool = True
    heads: bool = True

    def plan(self, location: Path, rng: random.Random, only: Sequence[Shot] = ()) -> Plan:
        """Draw the shots of one night, or take those of `only`."""
        shots = list(only) or [
            *(
                Shot(
                    rng.choice(list(POINTS)),
                    rng.choice(["before", "after"]),
                    "kill",
                    rng.choice([0, 0, 0, 1, 3]),
                )
                for _ in range(self.points)
            ),
            *(
                Shot(
                    rng.choice(_torn(self.links)), "after", rng.choice(["cut", "torn"]), rng.choice([0, 0, 1])
                )
                for _ in range(self.cuts if self.local else 0)
            ),
            *(
                Shot(rng.choice(list(POINTS)), "before", rng.choice(["full", "ill", "stale"]))
                for _ in range(self.full if self.local else 0)
            ),
        ]
        return Plan(
            location, shots, dict(self.chances) if self.local else {}, rng.randrange(2**31), self.links
        )


def _torn(links: bool) -> list[str]:
    """Return the kinds of files that a crash may leave truncated.

    With hard links, manifests and commits get their names only when they are complete.
    """
    return [point for point in TORN if not links or point not in ("manifest", "commit")]


@dataclass
class Driver:
    """A job that runs as a program of its own; its output goes to files."""

    number: int
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    errors: IO[bytes]

    def said(self) -> tuple[dict[str, Any], str]:
        """Return the answer and the standard error of the driver."""
        texts = []
        for stream in (self.out, self.errors):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
            stream.close()
        lines = texts[0].strip().splitlines()
        try:
            return (json.loads(lines[-1]) if lines else {}), texts[1]
        except ValueError:
            return {"status": f"no JSON: {lines[-1][:100]}"}, texts[1]


@dataclass
class NightUnderFire:
    """Runs of one night over a root, until one of them finishes it.

    Attributes:
        arguments: arguments of the job.
        environment: variables that the job gets besides those of this process.
        folder: folder of the night's plan.
        fire: faults to inject.
        rng: source of all random choices.
        tally: counts to which those of this night are added.
        log: file in which every shot and every end of a run is recorded.
        most_runs: number of runs after which the night is given up as never done.
    """

    arguments: Sequence[str]
    environment: dict[str, str]
    folder: Path
    fire: Fire
    rng: random.Random
    tally: Tally
    log: IO[str]
    most_runs: int = 60

    def __post_init__(self) -> None:
        self.token = uuid.uuid4().hex

    def run(self, ray: bool, deadline: float, only: Sequence[Shot] = (), finish: bool = True) -> str:
        """Run the night.

        Args:
            ray: start Ray instead of a child process.
            deadline: time of time.monotonic after which no shot is fired.
            only: shots to fire; without any, they are drawn.
            finish: run until a run ends with 0; else stop after two runs, as if the next corpus had come
                before the night was done.

        Returns:
            The status of the run that ended with 0 (published, unchanged or overtaken); "abandoned" if it was
            not to be finished, "never" if no run ended with 0.
        """
        plan = self.fire.plan(self.folder / "plan", self.rng, only)
        plan.store()
        try:
            for number in range(self.most_runs):
                calm = time.monotonic() > deadline or number >= self.most_runs - 3
                statuses = self._once(number, ray, calm)
                if done := [
                    status for status in statuses if status in ("published", "unchanged", "overtaken")
                ]:
                    return done[0]
                if not finish and number:
                    return "abandoned"
            self.tally.wrong.append(f"{self.folder.name}: not done after {self.most_runs} runs")
            return "never"
        finally:
            end_all(self.token, 0.0)
            self._count(plan)

    def _once(self, number: int, ray: bool, calm: bool) -> list[str]:
        self.headless = False
        drivers = [
            self._start(number, ray, calm)
            for _ in range(2 if not calm and self.rng.random() < self.fire.twice else 1)
        ]
        began = time.monotonic()
        pauses = [] if calm else self._moments(self.tally.lasts[ray])
        while any(driver.process.poll() is None for driver in drivers):
            spent = time.monotonic() - began
            if pauses and spent > pauses[0] and self._shoot():
                pauses.pop(0)
            if spent > _STUCK_S:
                self.tally.wrong.append(
                    f"{self.folder.name} run {number}: still running after {_STUCK_S:g} s"
                )
                end_all(self.token, 0.0)
            time.sleep(0.03)
        if all(driver.process.returncode in (0, 75) for driver in drivers):
            self.tally.lasts[ray] = 0.7 * self.tally.lasts[ray] + 0.3 * (time.monotonic() - began)
        for left in end_all(self.token, _OUTLIVE_S):
            self.tally.outlived[left.kind] += 1
            self._say(f"{left.kind} {left.pid} outlived its driver by {_OUTLIVE_S:g} s")
        return [self._ended(driver, number) for driver in drivers]

    def _start(self, number: int, ray: bool, calm: bool) -> Driver:
        own = {TOKEN: self.token, "MANTA_CHAOS_RUN": str(number)} | (
            {} if calm else {"MANTA_CHAOS": str(self.folder / "plan")}
        )
        out, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed once they are read
        command = [
            sys.executable,
            "-m",
            "jobs.nightly",
            "--json",
            *self.arguments,
            f"cluster.small_rows={0 if ray else 100_000}",
        ]
        self.tally.runs += 1
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=out,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.environment, **own},
        )
        return Driver(number, process, out, errors)

    def _moments(self, lasts: float) -> list[float]:
        """Draw the times of kills from outside, in seconds from the start."""
        count = int(self.fire.kills) + (self.rng.random() < self.fire.kills % 1)
        return sorted(self.rng.uniform(0.3, lasts) for _ in range(count))

    def _shoot(self) -> bool:
        """Kill one process of a drawn kind. Returns whether there was one."""
        spared = ("other",) if self.fire.heads else ("other", *_HEADS)
        found = [process for process in processes(self.token) if process.kind not in spared]
        if not found:
            return False
        kinds = sorted({process.kind for process in found})
        (kind,) = self.rng.choices(kinds, [_WEIGHTS.get(kind, 1) for kind in kinds])
        victim = self.rng.choice([process for process in found if process.kind == kind])
        if victim.kill():
            self.headless = self.headless or kind in _HEADS
            self.tally.kills[f"{kind} at random"] += 1
            self._say(f"kill -9 {kind} {victim.pid}")
        return True

    def _ended(self, driver: Driver, number: int) -> str:
        code = driver.process.returncode
        answer, errors = driver.said()
        status = str(answer.get("status", ""))
        self.tally.codes["killed" if code == -9 else str(code)] += 1
        self.tally.statuses[status or "killed"] += 1
        self._say(f"run {number} ended with {code} {status} {str(answer.get('message', ''))[:300]}")
        damaged = any(shot["act"] in ("cut", "torn") for shot in self._fired())
        # While Ray starts, Ray itself may end a driver whose raylet or GCS server was killed: with exit code
        # 1 and without a message of ours.
        starting = self.headless and "cluster: starts" in errors and "cluster: done" not in errors
        allowed = {0, -9, 75} | ({3} if damaged else set()) | ({1} if starting else set())
        if code not in allowed or (code != -9 and any(sign in errors for sign in _OURS)):
            self.tally.wrong.append(
                f"{self.folder.name} run {number}: exit code {code}, {answer.get('message', '')} "
                f"{errors[-1500:]}"
            )
        return status

    def _fired(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted((self.folder / "plan").glob("fired-*.json"))]

    def _count(self, plan: Plan) -> None:
        for fired in sorted(plan.fired(), key=lambda each: each["time"]):
            at = time.strftime("%H:%M:%S", time.localtime(fired["time"]))
            self._say(
                f"at {at}, run {fired['run']}: {fired['act']} {fired['when']} {fired['point']} "
                f"{fired['path']}"
            )
            if fired["act"] in ("kill", "torn"):
                self.tally.kills[f"{fired['when']} {fired['point']}"] += 1
            if fired["act"] != "kill":
                self.tally.faults[fired["act"]] += 1

    def _say(self, sentence: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.folder.name} {sentence}", file=self.log, flush=True)

"""Faults in the processes of a night: kills before or after a file is written, truncated files, and disks
that are full, slow or fail.

A plan is a JSON file. Each of its shots is fired once, by the first process that reaches its point, and is
recorded in a file beside the plan. Other faults are drawn by seed, run, path and number of the write, so they
do not depend on the order of threads.
"""

import errno
import json
import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.chaos.points import Shot, point_of

_ERRORS = {"full": errno.ENOSPC, "ill": errno.EIO, "stale": errno.ESTALE}
_armed = threading.local()


@dataclass
class Plan:
    """The faults of a night.

    Attributes:
        folder: folder of plan.json, and of the records of fired shots and faults.
        shots: faults at given points.
        chances: probability of each kind of other faults.
        seed: seed of the other faults.
        links: whether the file system has hard links.
        run: number of the run.
    """

    folder: Path
    shots: list[Shot]
    chances: dict[str, float]
    seed: int
    links: bool = True
    run: int = 0
    _passed: Counter[str] = field(default_factory=Counter)
    _times: Counter[str] = field(default_factory=Counter)

    @classmethod
    def load(cls, folder: Path) -> "Plan":
        given = json.loads((folder / "plan.json").read_text())
        return cls(
            folder,
            [Shot(**shot) for shot in given["shots"]],
            given["chances"],
            given["seed"],
            given["links"],
            int(os.environ.get("MANTA_CHAOS_RUN", "0")),
        )

    def store(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "shots": [shot.facts() for shot in self.shots],
            "chances": self.chances,
            "seed": self.seed,
            "links": self.links,
        }
        (self.folder / "plan.json").write_text(json.dumps(facts))

    def fired(self) -> list[dict[str, Any]]:
        """Return the records of all shots and faults so far, in no order."""
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("fired-*.json"))]

    def due(self, point: str, when: str) -> tuple[int, Shot] | None:
        """Claim the next shot at the point for this process.

        Returns one shot at a time, so that equal shots hit one attempt after another; None if none is due.
        """
        for number, shot in enumerate(self.shots):
            if (
                (shot.point, shot.when) == (point, when)
                and self._passed[point] > shot.skip
                and self._claim(f"shot-{number}")
            ):
                return number, shot
        return None

    def passed(self, point: str) -> None:
        """Count a file of the kind that this process is about to write."""
        self._passed[point] += 1

    def chance(self, path: str) -> str | None:
        """Draw the kind of fault of this write of `path`; None for no fault."""
        self._times[path] += 1
        drawn = random.Random(f"{self.seed} {self.run} {path} {self._times[path]}").random()
        for kind, probability in self.chances.items():
            if drawn < probability:
                return kind
            drawn -= probability
        return None

    def record(self, name: str, facts: dict[str, Any]) -> None:
        """Record a fault before it happens, in a file that is complete as soon as it is visible."""
        temporary = self.folder / f"writing-{os.getpid()}-{threading.get_ident()}"
        temporary.write_text(json.dumps({**facts, "run": self.run, "pid": os.getpid(), "time": time.time()}))
        os.replace(temporary, self.folder / f"fired-{name}.json")

    def _claim(self, name: str) -> bool:
        try:
            os.close(os.open(self.folder / f"claimed-{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


_STORES = ("LocalStore", "S3Store", "CloudStore")


def install(module: ModuleType, folder: str) -> None:
    """Inject the faults of the plan into the store class of the module."""
    plan, store = (
        Plan.load(Path(folder)),
        next(kind for name in _STORES if (kind := getattr(module, name, None))),
    )
    for verb in ("write", "create", "put"):
        setattr(store, verb, _around(plan, getattr(store, verb)))
    os.fsync = _failing(os.fsync)  # type: ignore[assignment]
    if not plan.links and store.__name__ == "LocalStore":
        os.link = _unlinked  # type: ignore[assignment]


def _around(plan: Plan, call: Callable[..., Any]) -> Callable[..., Any]:
    def harmed(self: Any, *given: Any) -> Any:
        path = given[1] if isinstance(given[0], Path) else given[0]
        point = point_of(path)
        if point is None:
            return call(self, *given)
        plan.passed(point)
        due = plan.due(point, "before")
        _fire(plan, due, path, None)
        kind = due[1].act if due else plan.chance(path)
        if kind and not due:
            plan.record(
                f"fault-{uuid.uuid4().hex}", {"act": kind, "when": "at", "point": point, "path": path}
            )
        answer = _met(kind, lambda: call(self, *given))
        _fire(plan, plan.due(point, "after"), path, Path(self.uri, path))
        return answer

    return harmed


def _met(kind: str | None, call: Callable[[], Any]) -> Any:
    """Make the call with a fault of this kind, if any."""
    if kind == "slow":
        time.sleep(0.3)
    _armed.error = _ERRORS.get(kind or "")
    try:
        return call()
    finally:
        _armed.error = None


def _fire(plan: Plan, due: tuple[int, Shot] | None, path: str, file: Path | None) -> None:
    if due is None:
        return
    number, shot = due
    plan.record(f"shot-{number}", {**shot.facts(), "path": path})
    if shot.act in ("cut", "torn") and file is not None and file.is_file():
        os.truncate(file, file.stat().st_size // 2)
    if shot.act == "gone" and file is not None:
        file.unlink(missing_ok=True)
    if shot.act in ("kill", "torn"):
        os.kill(os.getpid(), signal.SIGKILL)


def _failing(fsync: Callable[[int], None]) -> Callable[[int], None]:
    """Return an fsync that raises the armed error, as a disk does that cannot keep the bytes it accepted."""

    def failing(handle: int) -> None:
        if number := getattr(_armed, "error", None):
            raise OSError(number, os.strerror(number))
        fsync(handle)

    return failing


def _unlinked(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))

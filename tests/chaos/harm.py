"""What a process under fire does to itself: it dies before or after a file is written, cuts it short, or
meets a disk that is full, ill or slow.

A plan is a JSON file. Each shot of it is fired once, by whichever process comes first, and leaves a file
beside the plan that says so. Faults with a chance are drawn by seed, run, path and how often the process
wrote there, so they do not depend on the order in which threads come.
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
    """place: directory of plan.json, where fired shots and faults leave their files. chances: by kind of
    fault; links: whether the file system has hard links.
    """

    place: Path
    shots: list[Shot]
    chances: dict[str, float]
    seed: int
    links: bool = True
    run: int = 0
    _passed: Counter[str] = field(default_factory=Counter)
    _times: Counter[str] = field(default_factory=Counter)

    @classmethod
    def load(cls, place: Path) -> "Plan":
        given = json.loads((place / "plan.json").read_text())
        return cls(
            place,
            [Shot(**shot) for shot in given["shots"]],
            given["chances"],
            given["seed"],
            given["links"],
            int(os.environ.get("MANTA_CHAOS_RUN", "0")),
        )

    def store(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        facts = {
            "shots": [shot.facts() for shot in self.shots],
            "chances": self.chances,
            "seed": self.seed,
            "links": self.links,
        }
        (self.place / "plan.json").write_text(json.dumps(facts))

    def fired(self) -> list[dict[str, Any]]:
        """What has been fired so far, in no order."""
        return [json.loads(file.read_text()) for file in sorted(self.place.glob("fired-*.json"))]

    def due(self, point: str, when: str) -> tuple[int, Shot] | None:
        """The shot at the point whose turn it is and that is now this process's to fire: one at a time, so
        that equal ones meet one attempt after another.
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
        """One more file of the kind is about to be written by this process."""
        self._passed[point] += 1

    def chance(self, path: str) -> str | None:
        """The fault that this writing of `path` meets."""
        self._times[path] += 1
        drawn = random.Random(f"{self.seed} {self.run} {path} {self._times[path]}").random()
        for kind, share in self.chances.items():
            if drawn < share:
                return kind
            drawn -= share
        return None

    def tell(self, name: str, facts: dict[str, Any]) -> None:
        """Leave word of what is about to happen, whole and in time."""
        word = self.place / f"writing-{os.getpid()}-{threading.get_ident()}"
        word.write_text(json.dumps({**facts, "run": self.run, "pid": os.getpid(), "time": time.time()}))
        os.replace(word, self.place / f"fired-{name}.json")

    def _claim(self, name: str) -> bool:
        try:
            os.close(os.open(self.place / f"claimed-{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def install(module: ModuleType, place: str) -> None:
    """From now on the store class of the module does what the plan says."""
    plan, store = Plan.load(Path(place)), getattr(module, "LocalStore", None) or module.S3Store
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
            plan.tell(f"fault-{uuid.uuid4().hex}", {"act": kind, "when": "at", "point": point, "path": path})
        answer = _met(kind, lambda: call(self, *given))
        _fire(plan, plan.due(point, "after"), path, Path(self.uri, path))
        return answer

    return harmed


def _met(kind: str | None, call: Callable[[], Any]) -> Any:
    """The call on a disk in that state."""
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
    plan.tell(f"shot-{number}", {**shot.facts(), "path": path})
    if shot.act in ("cut", "torn") and file is not None and file.is_file():
        os.truncate(file, file.stat().st_size // 2)
    if shot.act in ("kill", "torn"):
        os.kill(os.getpid(), signal.SIGKILL)


def _failing(fsync: Callable[[int], None]) -> Callable[[int], None]:
    """What a disk says that has taken the bytes and cannot keep them."""

    def failing(handle: int) -> None:
        if number := getattr(_armed, "error", None):
            raise OSError(number, os.strerror(number))
        fsync(handle)

    return failing


def _unlinked(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))

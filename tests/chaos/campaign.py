"""A campaign: the same nights over a root in peace and a root under fire, and a report of the differences."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.chaos.compare import Differences, compare
from tests.chaos.corpus import ChangingCorpus
from tests.chaos.nights import HOOKS, Fire, NightUnderFire, Tally
from tests.chaos.points import Shot
from tests.faults import Faults, FaultyProxy
from tests.flows.conftest import ANY_CORPUS, ROOT, part_size
from tests.models.folders import save_folder
from tests.server import SERVERS, environment, moto_server

_S3_FAULTS = Faults(
    throttled=0.02, internal=0.01, limited=0.01, reset=0.01, delayed=0.004, cut=0.01, lost=0.02, delay_s=6.0
)
# Drivers of other clouds repeat failed calls after 15 seconds and more: there only processes are killed.
_S3 = ("s3", "seaweed")
STORES = {"s3": moto_server, **SERVERS}
_PATIENCE_S = 600.0
_ANSWER_S = "5"  # less than the delay of _S3_FAULTS: a delayed answer counts as missing
_CHANCES = (("slow", 0.03), ("full", 0.002), ("ill", 0.002), ("stale", 0.002))


@dataclass(frozen=True)
class Plans:
    """Settings of a campaign; see the options of the program."""

    nights: int = 10
    seed: int = 0
    store: str = "local"
    minutes: float = 20.0
    ray: float = 0.2
    rows: int = 160
    index: str = "flat"
    part_rows: int = 0
    kills: float = 0.7
    points: int = 6
    cuts: int = 1
    full: int = 1
    twice: float = 0.15
    abandoned: float = 0.2
    poison: bool = False
    no_links: bool = False
    no_heads: bool = False

    def fire(self) -> Fire:
        local = self.store == "local"
        return Fire(
            self.kills,
            self.points,
            self.cuts,
            self.full,
            _CHANCES if self.full else (),
            self.twice,
            not self.no_links,
            local,
            not self.no_heads,
        )


@dataclass
class Report:
    """The nights that were played, with their faults and the differences that they left."""

    seed: int
    tally: Tally = field(default_factory=Tally)
    nights: int = 0
    abandoned: int = 0
    with_ray: int = 0
    shifted: int = 0
    rows: int = 0
    files: int = 0
    lost: int = 0
    doubled: int = 0
    differing: int = 0
    messages: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        return not (self.lost or self.doubled or self.differing or self.tally.wrong)

    @property
    def kills(self) -> int:
        return self.tally.kills.total()

    def add(self, night: int, found: Differences) -> None:
        self.rows += found.rows
        self.files += found.files
        self.shifted += found.shifted
        self.lost += found.lost
        self.doubled += found.doubled
        self.differing += found.differing
        self.messages += [f"night {night}: {each}" for each in found.messages]

    def table(self) -> str:
        tally = self.tally
        lines = {
            "seed": self.seed,
            "nights": self.nights,
            "nights with Ray": self.with_ray,
            "nights given up before they were done": self.abandoned,
            "runs": tally.runs,
            "seconds": round(self.seconds),
            "kills": _by_name(tally.kills),
            "faults injected": _by_name(tally.faults),
            "exit codes": _by_name(tally.codes),
            "statuses": _by_name(tally.statuses),
            "processes that outlived their driver": _by_name(tally.outlived),
            "nights with skipped ordinals": self.shifted,
            "rows compared": self.rows,
            "files compared": self.files,
            "rows lost": self.lost,
            "rows doubled": self.doubled,
            "other differences": self.differing,
            "runs that ended in an unexplained way": len(tally.wrong),
        }
        width = max(map(len, lines))
        return "\n".join(
            [
                *(f"{name.ljust(width)}  {value}" for name, value in lines.items()),
                *self.messages,
                *tally.wrong,
            ]
        )


def _by_name(counts: Counter[str]) -> str:
    """Return the total with the count of each name: 3 (commit 1, manifest 2)."""
    each = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f"{counts.total()} ({each})" if counts else "0"


@dataclass
class Campaign:
    """Nights over two roots.

    Attributes:
        work: an empty directory for corpus, encoder, roots and logs.
        plans: the settings.
    """

    work: Path
    plans: Plans

    def play(self, schedule: Sequence[tuple[bool, Sequence[Shot]]] = ()) -> Report:
        """Play all nights.

        Args:
            schedule: for each night, whether it starts Ray, and its shots; a night without shots draws them.
                Without a schedule everything is drawn.
        """
        self.report, began = Report(self.plans.seed), time.monotonic()
        self.deadline = began + 60 * self.plans.minutes
        self.rng, self.edits = random.Random(self.plans.seed), random.Random(f"{self.plans.seed} edits")
        self.work.mkdir(parents=True, exist_ok=True)
        with open(self.work / "log", "a") as self.log, self._surroundings():
            corpus = ChangingCorpus(self.work / "corpus", np.random.default_rng(self.plans.seed))
            for night in range(1, (len(schedule) or self.plans.nights) + 1):
                if time.monotonic() > self.deadline:
                    break
                ray, shots = schedule[night - 1] if schedule else (self.rng.random() < self.plans.ray, ())
                self._say(
                    f"night {night}{' with Ray' if ray else ''}: "
                    f"{', '.join(self._edited(corpus, night) + (corpus.grow() if schedule else []))}"
                )
                self._night(
                    night, ray, shots, given_up=not schedule and self.rng.random() < self.plans.abandoned
                )
        self.report.seconds = time.monotonic() - began
        return self.report

    def _edited(self, corpus: ChangingCorpus, night: int) -> list[str]:
        if night > 1:
            return corpus.change(self.edits.randint(1, 4))
        corpus.write_first_files(self.plans.rows, 4)
        if self.plans.poison:
            corpus.poison()
        return ["the first"]

    def _night(self, night: int, ray: bool, shots: Sequence[Shot], given_up: bool) -> None:
        folder, report = self.work / f"night-{night:03d}", self.report
        folder.mkdir()
        before = self._releases()
        peace = contextlib.nullcontext() if given_up else self._in_peace(folder)
        fire = NightUnderFire(
            self._arguments(self.disturbed),
            self.environment,
            folder,
            self.plans.fire(),
            self.rng,
            report.tally,
            self.log,
        )
        with peace:
            status = fire.run(ray, self.deadline, shots, finish=not given_up)
        report.nights, report.with_ray = report.nights + 1, report.with_ray + ray
        if given_up and self._releases() == before:
            report.abandoned += 1
            return
        if given_up:
            with self._in_peace(folder):
                pass
        found = compare(self.disturbed, self.undisturbed)
        self._say(f"night {night} is {status}: {found}")
        report.add(night, found)

    def _releases(self) -> int:
        return len(Releases(open_store(self.disturbed)).history())

    @contextlib.contextmanager
    def _in_peace(self, folder: Path) -> Iterator[None]:
        """Run the undisturbed night beside the block, and wait for it at the end of the block.

        Raises:
            RuntimeError: the undisturbed night failed.
        """
        command = [
            sys.executable,
            "-m",
            "jobs.nightly",
            "--json",
            *self._arguments(self.undisturbed),
            "cluster.small_rows=100000",
        ]
        with open(folder / "peace.out", "wb") as out, open(folder / "peace.err", "wb") as errors:
            night = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=out,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.common},
            )
        try:
            yield
            if night.wait(timeout=_PATIENCE_S):
                raise RuntimeError(
                    f"the undisturbed night failed: {(folder / 'peace.err').read_text()[-2000:]}"
                )
        finally:
            night.kill()
            night.wait()

    def _arguments(self, root: str) -> list[str]:
        return [
            f"corpus.uri={self.work / 'corpus'}",
            "corpus.keep=[text]",
            "corpus.max_quarantined=0.9",
            *ANY_CORPUS,
            f"encoder.path={self.work / 'encoder'}",
            "encode.unit_rows=32",
            f"index.kind={self.plans.index}",
            "index.queries=40",
            "index.shards=2",
            *([part_size(self.plans.part_rows)] if self.plans.part_rows else []),
            "whiten.dev_texts=40",
            "gates.recall_at_10=0.1",
            f"release.root={root}",
            "cluster.workers=2",
        ]

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Set up roots, the encoder and the environment of all nights; if the disturbed root is on S3, also
        a server with a faulty proxy in front of it.
        """
        save_folder(self.work / "encoder", "bert")
        self.undisturbed = str(self.work / "peace")
        path = os.pathsep.join(map(str, (HOOKS, ROOT)))
        sockets = tempfile.mkdtemp(prefix="mc-", dir="/tmp")  # paths of Ray's sockets must be short
        self.common = {
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": sockets,
            "MANTA_CACHE": str(self.work / "cache"),
        }
        if self.plans.poison:
            self.common["MANTA_CHAOS_POISON"] = "1"
        try:
            if self.plans.store == "local":
                self.disturbed, self.environment = str(self.work / "fire"), self.common
                yield
            else:
                faults = _S3_FAULTS if self.plans.store in _S3 else Faults()
                start = STORES[self.plans.store]
                with start("chaos") as server, FaultyProxy(server.endpoint, faults) as proxy:
                    self.disturbed = f"{server.uri}/{self.work.name}/fire"
                    self.environment = {
                        **self.common,
                        **server.through(proxy.url),
                        "MANTA_STORE_TIMEOUT_S": _ANSWER_S,
                    }
                    with environment(server.variables):  # where the comparison finds the server
                        yield
                    self.report.tally.faults.update(proxy.met)
        finally:
            shutil.rmtree(sockets, ignore_errors=True)

    def _say(self, sentence: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {sentence}", file=self.log, flush=True)

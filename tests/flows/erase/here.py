"""Workers in this process, and a store that a test can kill at any of its changes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import Node
from pipeline.flows.workers.tasks import Item, Pool, Result, Task
from pipeline.log import RunningStage
from pipeline.settings import ClusterSettings, EncodeSettings
from pipeline.store.files.local import LocalStore


class Here(Workers):
    """Runs tasks in this process, one after the other."""

    nodes = (Node(cpus=1.0),)
    grows = False
    shares_disk = True

    def map_units(
        self, task: Task[Item, Result], items: Sequence[Item], pool: Pool, bar: RunningStage | None = None
    ) -> Iterator[tuple[int, Result]]:
        work = task.start()
        for number, item in enumerate(items):
            yield number, work(item)

    def pool(self, settings: ClusterSettings, work: int) -> Pool:
        return Pool(1)

    def machine_pool(self, settings: ClusterSettings) -> Pool:
        return Pool(1)

    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        return 1

    def encode_settings(self, encode: EncodeSettings, pool: Pool | None = None) -> EncodeSettings:
        return encode

    def warm(self, task: Any) -> None:
        """Do nothing: tasks load what they need."""

    def close(self) -> None:
        """Do nothing."""


class Killed(BaseException):
    """The process was killed."""


class MortalStore(LocalStore):
    """A store on disk that raises Killed before or after one of its changes, and then at all later ones."""

    alive: int | None = None
    """number of calls until the end: one before and one after each change; None: it does not end"""

    def _change(self, change: Callable[[], Any]) -> Any:
        self._count()
        result = change()
        self._count()
        return result

    def _count(self) -> None:
        if self.alive is None:
            return
        if self.alive <= 0:
            raise Killed
        self.alive -= 1

    def write(self, path: str, data: bytes) -> None:
        self._change(lambda: super(MortalStore, self).write(path, data))

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._change(lambda: super(MortalStore, self).create(path, data)))

    def put(self, local: Path, path: str) -> None:
        self._change(lambda: super(MortalStore, self).put(local, path))

    def delete(self, path: str) -> None:
        self._change(lambda: super(MortalStore, self).delete(path))

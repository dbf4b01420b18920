"""Functions that apply the tasks of an ingestion to items, as workers of a cluster do."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.text.task_map import IngestTask


def map_in_other_processes(task: IngestTask, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Pickle the task, items and results, start the task for each item, and begin with the last item."""
    pickled = [pickle.dumps((task, item)) for item in items]
    for number in reversed(range(len(items))):
        received, item = pickle.loads(pickled[number])
        yield number, pickle.loads(pickle.dumps(received.start()(item)))

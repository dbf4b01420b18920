"""A driver on its own Ray, which kills workers when they use a proportion of the memory that is free now; its
one task uses more and more memory.

Prints the error as JSON. The argument is the proportion; at 0 every worker is killed before it begins.
"""

import json
import os
import sys
import time

import psutil

from pipeline.errors import TransientError
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from tests.flows.tasks import Swell

PATIENCE_S = 30.0


def main() -> None:
    memory, part = psutil.virtual_memory(), float(sys.argv[1])
    room = int(part * memory.available)  # Ray's own processes, and whatever else runs here, take some of it
    threshold = (memory.total - memory.available + room) / memory.total if part else 0.01
    os.environ.update(
        {"RAY_memory_usage_threshold": f"{threshold:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    )
    with connect(ClusterSettings(patience_s=PATIENCE_S), Stages()) as cluster:
        start = time.monotonic()
        try:
            list(cluster.map_units(Swell(room * 3 // 2), [0], Pool(1, max_deaths=2)))
        except TransientError as error:
            print(
                json.dumps(
                    {"said": str(error), "exit code": error.exit_code, "seconds": time.monotonic() - start}
                )
            )


if __name__ == "__main__":
    main()

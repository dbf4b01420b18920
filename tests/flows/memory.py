"""A driver on a Ray of its own that ends workers as soon as this machine has 2.5 GB less than now; its one task takes more and more. Prints how that ends as JSON."""

import json
import os
import time

import psutil

from pipeline.errors import TransientError
from pipeline.flows.cluster import connect
from pipeline.flows.units import Pool, map_units
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from tests.flows.tasks import Swell

ROOM = 2_500 << 20      # bytes: Ray's own processes take a part of it


def main() -> None:
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + ROOM) / memory.total
    os.environ.update({"RAY_memory_usage_threshold": f"{threshold:.3f}", "RAY_memory_monitor_refresh_ms": "100"})
    with connect(ClusterSettings(), Stages()):
        start = time.monotonic()
        try:
            list(map_units(Swell(4 * ROOM), [0], Pool(1, deaths=2)))
        except TransientError as error:
            print(json.dumps({"said": str(error), "exit code": error.exit_code, "seconds": time.monotonic() - start}))


if __name__ == "__main__":
    main()

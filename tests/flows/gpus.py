"""A driver on its own Ray with two logical GPUs, which prints as JSON where workers were placed and whether
they ended with their stage.
"""

import json
import time
from collections import Counter

import psutil

from pipeline.errors import ConfigError
from pipeline.flows.workers.cluster import connect, silence_ray
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Stages
from pipeline.settings import ClusterSettings
from tests.flows.tasks import Device, Where

_PATIENCE_S = 20.0


def main() -> None:
    silence_ray(False)
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
    )
    with connect(ClusterSettings(), Stages()) as cluster:
        print(json.dumps(_found(cluster)))


def _found(cluster: Workers) -> dict[str, object]:
    halves = ClusterSettings.model_validate({"cpus_per_worker": 0.5, "gpus_per_worker": 0.5})
    pool = cluster.pool(halves, 12)
    visits = list(dict(cluster.map_units(Where(1.5), list(range(12)), pool)).values())
    free, left = _afterwards({process for process, *_ in visits})
    whole = cluster.pool(ClusterSettings(gpus_per_worker=1), 8)
    following = dict(cluster.map_units(Where(0.5), list(range(8)), whole))
    return {
        "most": pool.size,
        "workers by gpu": Counter(
            gpus[0] for _, gpus in {(process, gpus) for process, _, gpus, *_ in visits}
        ),
        "at once": _at_once(visits),
        "device": cluster.run(Device(), 0, Pool(1, gpus=0.5)),
        "device without": cluster.run(Device(), 0, Pool(1)),
        "free between the stages": free,
        "left over": left,
        "next stage": len({process for process, *_ in following.values()}),
        "refused": _refused(cluster),
    }


def _afterwards(processes: set[int]) -> tuple[float, int]:
    """Wait for the end of a stage's workers. Returns the free GPUs and the number of workers still alive."""
    import ray

    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        free, left = ray.available_resources().get("GPU", 0.0), sum(map(psutil.pid_exists, processes))
        if free == 2 and not left:
            break
        time.sleep(0.1)
    return free, left


def _at_once(visits: list[tuple[int, str, tuple[str, ...], float, float]]) -> int:
    return max(sum(start <= moment < end for *_, start, end in visits) for *_, moment, _ in visits)


def _refused(cluster: Workers) -> str:
    try:
        cluster.pool(ClusterSettings(gpus_per_worker=3), 1)
    except ConfigError as error:
        return str(error).partition(";")[0]
    return ""


if __name__ == "__main__":
    main()

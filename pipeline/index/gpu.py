"""Compare every query with every vector, on the CPU or on GPUs.

faiss-gpu compares on GPUs; all other indexes, and all files, are the same as with faiss-cpu. A GPU adds up
products in another order, so scores differ in their last bits: centroids differ in their bytes, and two
neighbours with almost the same score may change places. Answers are the same apart from such ties.
"""

from typing import Any

from pipeline.errors import ConfigError
from pipeline.index.library import faiss


def sees_gpus() -> bool:
    """Return whether faiss can use a GPU in this process."""
    return int(faiss.get_num_gpus()) > 0


def check_gpus() -> None:
    """Raise ConfigError if faiss sees no GPU in this process."""
    if not sees_gpus():
        raise ConfigError(
            "cluster.index_gpus",
            "a GPU that faiss sees on every worker that fills the index",
            "none",
            'install faiss-gpu on the nodes (pip install -e ".[gpu]"), or set cluster.index_gpus=0',
        )


def flat_index(dim: int, *, on_gpu: bool, metric: int | None = None) -> Any:
    """Return an empty index that compares every query with every vector.

    Args:
        on_gpu: use all GPUs that faiss sees; each holds all vectors.
        metric: a metric of faiss; None: the inner product.
    """
    flat = faiss.IndexFlat(dim, faiss.METRIC_INNER_PRODUCT if metric is None else metric)
    return faiss.index_cpu_to_all_gpus(flat) if on_gpu else flat

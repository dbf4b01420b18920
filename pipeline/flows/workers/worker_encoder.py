"""The encoder of a worker process, loaded once and shared by its tasks."""

import functools
import sys
from typing import TYPE_CHECKING

from pipeline.device import resolve
from pipeline.flows.workers.ray_internals import is_worker
from pipeline.settings import EncoderSettings, EncodeSettings

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder


def worker_encoder(encoder: EncoderSettings, encode: EncodeSettings) -> "Encoder":
    """Load the encoder on the device that this worker was assigned, or return it if it is loaded.

    Raises:
        ModelError: the folder cannot be loaded, or the encoder gives no usable vector of a plain sentence.
    """
    return _load_encoder(encoder, encode, gpu_assigned())


@functools.lru_cache(maxsize=1)
def _load_encoder(encoder: EncoderSettings, encode: EncodeSettings, gpu: bool) -> "Encoder":
    from pipeline.models.folder.folder import open_folder
    from pipeline.models.inference.encoder import Encoder

    # not load_encoder, because the driver announces the warnings
    loaded = Encoder(open_folder(encoder), encode, resolve(encode.device, float(gpu)), encoder.path)
    loaded.check()
    return loaded


def gpu_assigned() -> bool:
    """Return whether Ray assigned a GPU to this worker. Torch cannot say: it sees all GPUs of the node."""
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized() and ray.get_gpu_ids())


def assigned_cpus() -> int:
    """Return the number of CPUs, rounded down, that Ray reserved for this worker; at least 1."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not is_worker():
        return 1
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))

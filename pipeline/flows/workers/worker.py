"""The encoder of a worker process: loaded once, whichever task asks first."""

import functools
import sys
from typing import TYPE_CHECKING

from pipeline.device import resolve
from pipeline.settings import EncoderSettings, EncodeSettings

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder


def loaded(encoder: EncoderSettings, encode: EncodeSettings) -> "Encoder":
    """The encoder on the device that this worker was given."""
    return _loaded(encoder, encode, gpu_assigned())


@functools.lru_cache(maxsize=1)
def _loaded(encoder: EncoderSettings, encode: EncodeSettings, gpu: bool) -> "Encoder":
    from pipeline.models.inference.encoder import load_encoder

    return load_encoder(encoder, encode, resolve(encode.device, float(gpu)))


def gpu_assigned() -> bool:
    """Whether Ray gave this worker a GPU: torch sees a node's GPUs even where the worker asked for none."""
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized() and ray.get_gpu_ids())


def assigned_cpus() -> int:
    """Whole CPUs that Ray set aside for this worker, at least one; a process that is no worker of Ray's has one."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return 1
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))

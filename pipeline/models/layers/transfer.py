"""Copies between host and device that let a GPU go on computing."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device; to a GPU through pinned memory."""
    host = torch.from_numpy(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def to_host(values: Tensor) -> Callable[[], np.ndarray]:
    """Start a copy to the host and return a function that waits for it.

    From a GPU, the copy goes through pinned memory while the next buffer is computed.
    """
    if values.device.type == "cpu":
        return values.numpy
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(values.device))  # the default is the current device's stream

    def wait() -> np.ndarray:
        done.synchronize()
        return host.numpy()

    return wait

"""Seeds and states of torch's random number generators."""

import numpy as np
import torch
from torch import Tensor, nn


class RandomGenerators:
    """torch's random number generators of the CPU and of the devices of a module."""

    def __init__(self, module: nn.Module) -> None:
        devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
        self._devices = sorted((device for device in devices if device.type not in ("cpu", "meta")), key=str)

    def state(self) -> list[Tensor]:
        """Return the states of all generators, the CPU's first."""
        return [
            torch.get_rng_state(),
            *(torch.get_device_module(device).get_rng_state(device) for device in self._devices),
        ]

    def restore(self, state: list[Tensor]) -> None:
        """Restore the states returned by `state`."""
        torch.set_rng_state(state[0])
        for device, device_state in zip(self._devices, state[1:], strict=True):
            torch.get_device_module(device).set_rng_state(device_state, device)

    def fits(self, state: list[Tensor]) -> bool:
        """Return True if the state has as many devices as these generators."""
        return len(state) == 1 + len(self._devices)


def seed_all(seed: int, step: int, rank: int) -> None:
    """Seed torch's generators, on every device, from seed, step and rank."""
    mixed = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(mixed) >> 1)  # torch expects a signed number

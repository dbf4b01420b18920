"""The device of the forward pass, and the properties of a device that can change the bits of a vector.

torch is imported at first use.
"""

import ctypes
import functools
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Device:
    """A CPU, or one GPU of this process."""

    kind: Literal["cpu", "cuda"]
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"cuda:{self.index}"

    def torch(self) -> "torch.device":
        """Return the torch device. Raises ConfigError if this process has no such GPU."""
        import torch

        if self.kind == "cuda" and (not torch.cuda.is_available() or self.index >= torch.cuda.device_count()):
            raise ConfigError(
                "encode.device",
                f"a CUDA device number {self.index} visible to this process",
                f"{torch.cuda.device_count()} devices" if torch.cuda.is_available() else "none",
                "set encode.device=cpu, or give the worker a GPU (cluster.gpus_per_worker=1, a CUDA build "
                "of torch)",
            )
        return torch.device(str(self))

    def instruction_set(self) -> str:
        """Return the hardware that decides which kernels run, and so the bits of vectors.

        Returns:
            The processor and the widest instructions that torch uses on it, or the GPU and its compute
            capability.
        """
        import torch

        if self.kind == "cpu":
            return f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
        device = self.torch()
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)} sm_{major}{minor}"

    def capability(self) -> tuple[int, int] | None:
        """Return the compute capability of a GPU, None for a CPU."""
        import torch

        return None if self.kind == "cpu" else torch.cuda.get_device_capability(self.torch())

    def libraries(self) -> dict[str, str]:
        """Return the versions of CUDA and cuBLAS, whose kernels decide the bits on a GPU; {} for a CPU.

        The value of NVIDIA_TF32_OVERRIDE is included, because these libraries read it.
        """
        import torch

        if self.kind == "cpu":
            return {}
        cuda = torch.version.cuda or ""
        forced = os.environ.get("NVIDIA_TF32_OVERRIDE", "")
        return {"cuda": cuda, "cublas": _cublas_version(cuda.partition(".")[0]), "tf32": forced}

    def can_compile(self) -> bool:
        """Return whether torch can compile kernels for a GPU.

        This takes Triton, a C compiler for Triton, and a GPU of the generation Volta or later.
        """
        compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
        capability = self.capability()
        return bool(
            capability
            and capability >= (7, 0)
            and compiler
            and importlib.util.find_spec("triton") is not None
        )


def resolve(name: str | Device, gpus: float = 0.0) -> Device:
    """Return the device that a setting names. Whether it exists is checked at first use.

    Args:
        name: auto, cpu, cuda or cuda:1. auto is the GPU if the worker has one, else the CPU.
        gpus: number of GPUs that the worker was given.

    Raises:
        ConfigError: the name is not one of these.
    """
    if isinstance(name, Device):
        return name
    if name == "auto":
        return Device("cuda" if gpus > 0 else "cpu")
    kind, _, index = name.partition(":")
    if kind == "cpu" and not index:
        return Device("cpu")
    if kind == "cuda" and (not index or index.isdecimal()):
        return Device("cuda", int(index or 0))
    raise ConfigError("encode.device", "auto, cpu or cuda", repr(name), "choose one of them")


@functools.cache
def _cublas_version(cuda: str) -> str:
    """Return the version of the cuBLAS that torch has loaded; "" if this system does not find it.

    Args:
        cuda: major version of CUDA.
    """
    try:
        library = ctypes.CDLL(f"libcublas.so.{cuda}")
        parts = [ctypes.c_int() for _ in range(3)]  # major, minor, patch
        for number, part in enumerate(parts):
            library.cublasGetProperty(number, ctypes.byref(part))
    except (OSError, AttributeError):
        return ""
    return ".".join(str(part.value) for part in parts)


@functools.cache
def processor() -> str:
    """Return vendor, family and model of the CPU.

    Matrix libraries select kernels by the vendor, and block sizes by the cache.
    """
    try:
        first, *_ = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")
    except OSError:
        return platform.processor() or platform.machine()
    fields = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())
    }
    names = ("vendor_id", "cpu family", "model")
    return " ".join(fields[name] for name in names if name in fields) or platform.machine()

"""Numerical settings of the forward pass, which can change a vector's bits, and the hash over them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from pipeline.config import digest_of
from pipeline.cores import usable_cores
from pipeline.device import Device
from pipeline.errors import ConfigError
from pipeline.log import announce
from pipeline.models.layers.linear import is_onednn
from pipeline.models.layers.quantized import check_int8
from pipeline.settings import Dtype, EncodeSettings

# raise it whenever a change of the models' code changes bits
_VERSION = "packed-1"
# bfloat16 on a CPU: residual sums are float32 since packed-2, attention of padded texts since packed-3
_VERSION_OF_WIDE_SUMS = "packed-3"
_VERSION_ON_GPU = "packed-2"  # since then, no kernel on a GPU depends on the other texts
_MAX_TOKENS = {"cpu": 1_024, "cuda": 32_768}  # CPU: 512 to 2,048 are equally fast, more is slower


@dataclass(frozen=True)
class Arithmetic:
    """Numerical settings of the forward pass. With equal settings, a folder gives bit-identical vectors.

    Neither the number of threads nor the order of texts changes a bit. One exception is known: with
    attention heads of 8 values, which only toy models have, the kernel for one thread rounds differently.
    """

    device: Device
    dtype: Dtype
    max_tokens: int
    """size of a forward pass; smaller passes are padded, because the size of a product can change bits"""
    fused: bool
    """compiled kernels (GPU) rotate heads, and normalize together with the residual sum"""

    @property
    def torch_device(self) -> torch.device:
        """Device of the tensors."""
        return self.device.torch()

    @property
    def torch_dtype(self) -> torch.dtype:
        """Type of weights and activations; with int8, linear layers compute in another type."""
        return torch.float32 if self.is_quantized else cast(torch.dtype, getattr(torch, self.dtype))

    @property
    def sum_dtype(self) -> torch.dtype:
        """Type of embeddings, residual sums and normalization of Transformers.

        With bfloat16 on a CPU it is float32: sums in bfloat16 have three times the error (mean of
        1 - cosine), and save no time.
        """
        wide = self.device.kind == "cpu" and self.dtype == "bfloat16"
        return torch.float32 if wide else self.torch_dtype

    @property
    def is_quantized(self) -> bool:
        """Return whether linear layers of Transformers compute in 8-bit integers."""
        return self.dtype == "int8"

    def numerics_id(self, model: str) -> str:
        """Hash everything that can change a vector's bits.

        Args:
            model: class name of the model that computes the forward pass.

        Returns:
            sha256 (hex).
        """
        return digest_of(
            {
                "version": self._version(),
                "model": model,
                "dtype": self.dtype,
                "max_tokens": self.max_tokens,
                "fused": self.fused,
                "torch": torch.__version__,
                "device": self.device.kind,
                "instructions": self.device.instruction_set(),
                "onednn": is_onednn(self.torch_device, self.torch_dtype),
                **self.device.libraries(),
            }
        )

    def _version(self) -> str:
        if self.device.kind == "cuda":
            return _VERSION_ON_GPU
        return _VERSION if self.sum_dtype == self.torch_dtype else _VERSION_OF_WIDE_SUMS


def arithmetic_of(encode: EncodeSettings, device: Device, max_length: int) -> Arithmetic:
    """Resolve the settings for a device, and log settings that the device or the machine does not support.

    Raises:
        ConfigError: encode.max_tokens is below `max_length`, the longest text in tokens; or the device has no
            instructions for int8.
    """
    if encode.dtype == "int8":
        check_int8(device)
    max_tokens = _buffer_tokens(encode.max_tokens, max_length, device)
    can_fuse = device.can_compile()
    arithmetic = Arithmetic(device, encode.dtype, max_tokens, fused=encode.compile and can_fuse)
    if encode.compile and device.kind != "cpu" and not can_fuse:
        announce(
            "encode.compile: this needs Triton, a C compiler (gcc, or named in CC) and a GPU of compute "
            "capability 7.0, so normalization runs unfused (slower); install them or set encode.compile=false"
        )
    if device.libraries().get("tf32", "0") not in ("", "0"):
        announce(
            "NVIDIA_TF32_OVERRIDE is set: the GPU rounds float32 to TF32, which changes vectors by about "
            "1e-3; unset it"
        )
    if (
        device.kind == "cpu"
        and encode.dtype in ("bfloat16", "float16")
        and not is_onednn(arithmetic.torch_device, arithmetic.torch_dtype)
    ):
        announce(
            f"encode.dtype: this processor has no instructions for {encode.dtype}, "
            "which makes it slower than float32"
        )
    return arithmetic


def usual_threads() -> int:
    """Return torch's number of threads, but at most the number of cores that this process may use.

    torch does not count the CPU quota of a container.
    """
    return min(torch.get_num_threads(), usable_cores())


@contextmanager
def use_threads(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads for the duration of the block; None leaves it unchanged."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def whole_float32(device: Device) -> Iterator[None]:
    """Disable TF32, whose inputs have ten bits, for the duration of the block.

    Images and programs may have set torch to TF32.
    """
    if device.kind == "cpu":
        yield
        return
    products: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    before = {each: each.fp32_precision for each in (products, cudnn.conv, cudnn.rnn)}
    # torch has two interfaces for this, and refuses to read the older one if they contradict each other.
    products.allow_tf32 = cudnn.allow_tf32 = False
    for each in before:
        each.fp32_precision = "ieee"
    try:
        yield
    finally:
        products.allow_tf32 = before[products] == "tf32"
        cudnn.allow_tf32 = before[cudnn.conv] == "tf32"
        for each, precision in before.items():
            each.fp32_precision = precision


def _buffer_tokens(wanted: int | None, max_length: int, device: Device) -> int:
    if wanted is None:
        return max(_MAX_TOKENS[device.kind], -(-max_length // 64) * 64)
    if wanted < max_length:
        raise ConfigError(
            "encode.max_tokens",
            f"at least the encoder's max_length of {max_length} tokens",
            str(wanted),
            "raise it, or lower encoder.max_length",
        )
    return wanted

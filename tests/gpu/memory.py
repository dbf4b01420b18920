"""If the memory of the device does not suffice, buffers and batches are halved until it does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.errors import ModelError
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.gpu.scale import PartTable, Scale, bert, peak_gib, texts_of

DTYPES = ("float32", "bfloat16")
MOST_DIFFERENCE = {"float32": 1e-5, "bfloat16": 2e-2}
LONGEST = 64  # tokens of a text
SCARCE = 1 / 3  # proportion of the memory of a full buffer that is left


def memory(scale: Scale) -> PartTable:
    """Encode with all memory, with a third of what a full buffer took, and with almost none."""
    texts, rows, problems = texts_of(scale.choose(60, 6_000), 4, 40), [], []
    full = scale.choose(1_024, 131_072)
    settings = EncoderSettings(path=str(bert(scale)), pooling="mean", max_length=LONGEST)
    for dtype in DTYPES:
        encode = EncodeSettings.model_validate({"dtype": dtype, "max_tokens": full})
        encoder = load_encoder(settings, encode, scale.device)
        peak_gib(scale)
        exact = encoder.encode(texts)
        limit = _limit(scale, 4 * full * int(encoder.folder.config["intermediate_size"]))
        peak = peak_gib(scale)
        with limit(SCARCE):
            found = encoder.encode(texts)
        difference, halved = float(np.abs(found - exact).max()), encoder.max_tokens
        with limit(0):
            refusal = _refusal(partial(encoder.encode, texts))
        rows.append([dtype, f"{full:,}", peak, f"{halved:,}", f"{difference:.1e}", refusal])
        if not difference <= MOST_DIFFERENCE[dtype]:
            problems.append(f"{dtype}: vectors differ by {difference:.1e} after halving")
        if not LONGEST <= halved < full:
            problems.append(f"{dtype}: buffers of {halved:,} tokens, fewer than {full:,} expected")
        if not refusal and not scale.on_gpu:  # the allocator of a GPU has kept some memory
            problems.append(f"{dtype}: texts are encoded without memory")
    header = ("type", "buffer", "peak GiB", "halved to", "largest difference", "without memory")
    return PartTable("Buffers, in tokens, with a third of the memory of a full one", header, rows, problems)


def _refusal(encode: Callable[[], object]) -> str:
    """Return what was found, of the error that the call raises; "" if it raises none."""
    try:
        encode()
    except ModelError as error:
        return error.found
    return ""


def _limit(scale: Scale, widest: int) -> Callable[[float], AbstractContextManager[object]]:
    """Return a function that limits memory to a proportion of that of the last pass.

    Args:
        widest: bytes of the widest values of a buffer.
    """
    if not scale.on_gpu:
        return partial(_ScarceMemory, widest)
    return partial(_limited_gpu, torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())


@contextmanager
def _limited_gpu(taken: int, proportion: float) -> Iterator[None]:
    """Leave a proportion of the bytes that a pass has taken, besides those in use."""
    torch.cuda.empty_cache()
    total, used = torch.cuda.mem_get_info()[1], torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (used + proportion * taken) / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


class _ScarceMemory(TorchDispatchMode):
    """On a CPU, whose memory has no such limit: no operation may return a tensor above a size."""

    def __init__(self, size: int, proportion: float) -> None:
        super().__init__()
        self._most = proportion * size

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        found = operation(*args, **(kwargs or {}))
        if any(isinstance(each, torch.Tensor) and each.nbytes > self._most for each in tree_leaves(found)):
            raise torch.OutOfMemoryError(f"more than {self._most:.0f} bytes in a tensor")
        return found

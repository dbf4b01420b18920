"""Float32 products of a GPU are computed as float32, however an image or a program has set torch."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pipeline.device import Device
from pipeline.models.layers.numerics import whole_float32

PRODUCTS, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
SETTINGS: dict[str, Callable[[], object]] = {
    "as torch is": lambda: None,
    "older interface": lambda: setattr(PRODUCTS, "allow_tf32", True),
    "newer interface": lambda: setattr(PRODUCTS, "fp32_precision", "tf32"),
    "for all devices": lambda: torch.set_float32_matmul_precision("high"),
    "no convolutions": lambda: setattr(CUDNN.conv, "fp32_precision", "ieee"),
    "everything": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
}


def readings() -> list[Any]:
    """Return torch's settings; None where its two interfaces contradict each other."""

    def of(holder: Any, name: str) -> Any:
        try:
            return getattr(holder, name)
        except RuntimeError:
            return None

    names = [(PRODUCTS, "allow_tf32"), (CUDNN, "allow_tf32")]
    return [
        of(*each)
        for each in (*names, *((each, "fp32_precision") for each in (PRODUCTS, CUDNN.conv, CUDNN.rnn)))
    ]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    PRODUCTS.allow_tf32, CUDNN.allow_tf32 = False, True
    PRODUCTS.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.parametrize("setting", SETTINGS)
def test_tf32_is_off_within_the_block_and_as_it_was_after_it(setting: str):
    SETTINGS[setting]()
    before = readings()
    with whole_float32(Device("cuda")):
        assert readings() == [False, False, "ieee", "ieee", "ieee"]
    after = readings()
    assert [one for one, old in zip(after, before, strict=True) if old is not None] == [
        old for old in before if old is not None
    ]
    with whole_float32(Device("cpu")):
        assert readings() == after


def test_only_a_gpu_has_libraries_whose_versions_decide_its_bits():
    assert Device("cpu").libraries() == {}
    assert Device("cuda").libraries().keys() == {"cuda", "cublas", "tf32"}

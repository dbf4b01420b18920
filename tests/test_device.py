"""Names become devices; what is not there is refused with a way out."""

import pytest
import torch

from pipeline.device import Device, processor, resolve
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "gpus", "device"),
    [
        ("auto", 0, Device("cpu")),
        ("auto", 1, Device("cuda")),
        ("auto", 0.5, Device("cuda")),
        ("cpu", 1, Device("cpu")),
        ("cuda", 0, Device("cuda")),
        ("cuda:3", 0, Device("cuda", 3)),
        (Device("cuda", 1), 0, Device("cuda", 1)),
    ],
)
def test_the_device_follows_from_its_name_and_the_gpus_of_the_worker(name, gpus, device):
    assert resolve(name, gpus) == device


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu:0", ""])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(ConfigError, match=r"encode\.device: expected auto, cpu or cuda"):
        resolve(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_refused_when_it_is_used():
    with pytest.raises(ConfigError, match=r"a CUDA device number 0 visible.*found none.*encode\.device=cpu"):
        Device("cuda").torch()


def test_a_cpu_is_identified_by_model_and_instruction_set():
    assert Device("cpu").torch() == torch.device("cpu")
    assert Device("cpu").instruction_set() == f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
    assert str(Device("cuda", 2)) == "cuda:2"

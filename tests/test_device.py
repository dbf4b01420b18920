"""Names become devices, missing devices are refused with a remedy, and a CPU is identified by its model."""

import platform

import pytest
import torch

from pipeline.device import Device, processor, resolve
from pipeline.errors import ConfigError

FALLBACK = platform.processor() or platform.machine()
"""name of the CPU where there is no /proc/cpuinfo"""


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


def test_devices_are_named_as_in_torch():
    assert Device("cpu").torch() == torch.device("cpu")
    assert str(Device("cuda", 2)) == "cuda:2"


CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8488C

processor\t: 1
vendor_id\t: AnotherVendor
cpu family\t: 7
model\t\t: 1
"""


@pytest.mark.parametrize(
    ("content", "expected"),
    [(CPUINFO, "GenuineIntel 6 143"), ("processor : 0\n", platform.machine()), (None, FALLBACK)],
    ids=["x86", "without a model", "no such file"],
)
def test_a_cpu_is_identified_by_its_model_and_instruction_set(monkeypatch, tmp_path, content, expected):
    file = tmp_path / "cpuinfo"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr("pipeline.device.Path", lambda path: {"/proc/cpuinfo": file}[path])
    processor.cache_clear()
    try:
        found = Device("cpu").instruction_set()
    finally:
        processor.cache_clear()
    assert found == f"{expected} {torch.backends.cpu.get_cpu_capability()}"

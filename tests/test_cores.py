"""The cores of a process: those of its affinity, within the quotas of its control groups."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cores import available_memory, usable_cores
from tests.conftest import ROOT

V1 = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}


def write(root: Path, groups: str, files: dict[str, str]) -> Path:
    """Write a made-up proc/self/cgroup, and files below sys/fs/cgroup."""
    paths = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in paths.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "350000 100000"}, 3),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "1600000 100000"}, 8),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "20000 10000"}, 2),
        ("0::/not/visible/here", {"cpu.max": "400000 100000"}, 4),
        ("5:memory:/\n4:cpu,cpuacct:/a\n0::/", {f"cpu,cpuacct/a/{k}": v for k, v in V1.items()}, 8),
        (
            "5:memory:/\n4:cpu,cpuacct:/a\n0::/",
            {f"cpu,cpuacct/a/{k}": v for k, v in (V1 | {"cpu.cfs_quota_us": "200000"}).items()},
            2,
        ),
    ],
)
def test_quotas_lower_the_number_of_cores(tmp_path, groups, files, cores):
    assert usable_cores(write(tmp_path, groups, files)) == cores


@pytest.mark.usefixtures("eight_cores")
def test_without_control_groups_the_affinity_counts(tmp_path):
    assert usable_cores(tmp_path) == 8


def test_the_affinity_of_a_real_process_counts():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " + (
        "from pipeline.cores import available_memory, usable_cores; print(usable_cores())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "1\n"


@pytest.mark.parametrize(
    ("limit", "used", "cached", "available"),
    [
        ("max", 9, 0, 5_000 << 10),
        (str(4 << 20), 3 << 20, 0, 1 << 20),
        (str(4 << 20), 4 << 20, 2 << 20, 2 << 20),
    ],
)
def test_the_memory_of_a_container_is_its_limit_without_its_use(tmp_path, limit, used, cached, available):
    group = tmp_path / "sys/fs/cgroup/pod"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    assert available_memory(tmp_path) == available


def test_a_system_that_does_not_say_its_memory_is_no_error(tmp_path):
    assert available_memory(tmp_path) is None

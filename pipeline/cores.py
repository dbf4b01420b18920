"""Cores and memory that this process may use."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least 1.

    The process may use the cores of its affinity, but not more than the CPU quotas of its control groups
    (such as a container's limit), rounded down.

    Args:
        root: folder that contains proc and sys.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([cores, *(int(quota) for quota in _quotas(root))]))


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process may still take; None if the system does not say.

    It is the least of the machine's available memory and of the space in the control groups of version 2,
    whose caches of files can be freed.

    Args:
        root: folder that contains proc and sys.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        found = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    group = PurePosixPath(groups[-1].split(":", 2)[2].lstrip("/"))
    for each in (group, *group.parents):
        folder = root / "sys/fs/cgroup" / each
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue
        if limit != "max":
            found.append(int(limit) - used + int(facts.get("inactive_file", 0)))
    return max(0, min(found)) if found else None


def limit_memory(extra_bytes: int) -> None:
    """Let this process allocate at most `extra_bytes` more bytes from now on, and write no core file."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stack, as RLIMIT_DATA counts
    limit = pages * resource.getpagesize() + extra_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    write_no_core()


def write_no_core() -> None:
    """Let this process write no core file if it crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of this process's control groups and of all groups that contain them.

    Version 1 of control groups has a tree for each set of controllers, version 2 a single one.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # inside a container, the container's group is the root, and the groups of this path may be missing
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):
            yield from _quota(root / "sys/fs/cgroup" / controllers / each)


def _quota(group: Path) -> Iterator[float]:
    """Yield the quota of a control group, if it has one."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    except OSError:
        return
    if quota != "max" and int(quota) > 0:
        yield int(quota) / int(period)

"""The resources that this process may use: threads by affinity and cgroup quota, memory by cgroup limit."""

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ingot.errors import InputError
from ingot.support.config import knob

ROOT = Path("/")
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def byte_number(text: str | int, option: str = "memory") -> int:
    """Parse a number of bytes with an optional unit, such as 4GiB. Raises InputError, which names the option."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)", str(text).strip())
    if match is None or match[2].upper() not in _UNITS:
        raise InputError(f"option {option}: got {text!r}, expected bytes with a unit or none, such as 4GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def threads() -> int:
    """Return the threads of a run: INGOT_THREADS, or all usable threads."""
    return int(knob("INGOT_THREADS")) or usable_threads()


def usable_threads(root: Path = ROOT) -> int:
    """Return the CPUs of the affinity mask, limited to the complete CPUs of the cgroup quota, and at least one.

    `root` is the folder that contains `proc` and `sys`.
    """
    quotas = [quota for folder in _cgroup_folders(root, "cpu") for quota in _cpu_quotas(folder)]
    # If a thread spins beyond the quota, all threads are stopped for the rest of the period: round down.
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def memory_bytes(root: Path = ROOT) -> int:
    """Return the bytes that this process may use: the physical memory, or the lowest cgroup limit above it."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    texts = (
        _read(folder / name)
        for folder in _cgroup_folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    )
    return min([physical, *(int(text) for text in texts if text.isdigit())])


def cpu_name() -> str:
    """Return the model name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cpu_quotas(folder: Path) -> Iterator[float]:
    """Yield the quota of one cgroup in CPUs; nothing when it has none. Version 2 writes `max`, version 1 writes -1."""
    for limit in (
        _read(folder / "cpu.max").split(),
        [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")],
    ):
        if len(limit) == 2 and all(number.isdigit() for number in limit) and int(limit[1]):
            yield int(limit[0]) / int(limit[1])


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and of its parents, in version 2 and in the controller's version 1."""
    own: dict[str, PurePosixPath] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, cgroup = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), PurePosixPath(cgroup)))
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        mount_root, mount_point = mount.split()[3:5]
        kind, options = source.split()[0], source.split()[-1].split(",")
        if kind == "cgroup2":
            path = own.get("")
        elif kind == "cgroup" and controller in options:
            path = own.get(controller)
        else:
            continue
        top = root / mount_point.lstrip("/")
        # Inside a container the path may be the host's and be outside the mount: then the mount is the cgroup.
        inside = path.relative_to(mount_root).parts if path and path.is_relative_to(mount_root) else ()
        inside = () if ".." in inside else inside
        yield from (top.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1))

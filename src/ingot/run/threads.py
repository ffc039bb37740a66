"""How many threads a run gets: what the process may use, not what the machine has."""

import os
from dataclasses import dataclass
from pathlib import Path

from ingot.config import knob

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads and why it is that."""

    count: int
    reason: str


def choose_threads(asked: int = 0) -> ThreadChoice:
    """`asked` if not 0, else INGOT_THREADS, else the CPUs of this process's affinity within its cgroup quota."""
    if asked:
        return ThreadChoice(asked, "asked for")
    forced = int(knob("INGOT_THREADS"))
    if forced:
        return ThreadChoice(forced, "INGOT_THREADS")
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    if quota is not None and quota < cpus:
        return ThreadChoice(max(1, int(quota)), f"cgroup quota of {quota:g} CPUs")
    return ThreadChoice(cpus, f"{cpus} CPUs in the affinity mask")


def cgroup_quota(root: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """The smallest CPU quota of this process's cgroup and those above it, in CPUs; None without one."""
    quotas: list[float] = []
    for line in _read(membership).splitlines():
        _, controllers, group = line.split(":", 2)
        top = root if controllers == "" else root / controllers
        folder = top / group.lstrip("/")
        while folder == top or top in folder.parents:
            quotas += _quota_of(folder)
            folder = folder.parent
    return min(quotas, default=None)


def _quota_of(folder: Path) -> list[float]:
    """Version 2 has `cpu.max` ("150000 100000" or "max 100000"); version 1 two files, -1 for no quota."""
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or words[1] == "0":
        return []
    return [int(words[0]) / int(words[1])]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""What a container may use, read from the files that the kernel shows in it."""

import os
from pathlib import Path

import pytest

from ingot.support import machine

V2 = "30 20 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V2_INSIDE = "30 20 0:25 /docker/a /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
V1 = (
    "31 20 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
CGROUP = "sys/fs/cgroup"
V1_FILES = {
    f"{CGROUP}/cpu,cpuacct/a/cpu.cfs_quota_us": "150000",
    f"{CGROUP}/cpu,cpuacct/a/cpu.cfs_period_us": "50000",
    f"{CGROUP}/cpu,cpuacct/cpu.cfs_quota_us": "-1",
    f"{CGROUP}/cpu,cpuacct/cpu.cfs_period_us": "100000",
    f"{CGROUP}/memory/a/memory.limit_in_bytes": "1048576",
    f"{CGROUP}/memory/memory.limit_in_bytes": "9223372036854771712",
}
ALL = None  # every CPU of the affinity mask, all of the memory

# cgroup line, mounts, files, CPUs, bytes
CASES = {
    "nothing to read": ("", "", {}, ALL, ALL),
    "no limit": ("0::/a", V2, {f"{CGROUP}/a/cpu.max": "max 100000", f"{CGROUP}/a/memory.max": "max"}, ALL, ALL),
    "a quota": ("0::/a", V2, {f"{CGROUP}/a/cpu.max": "200000 100000"}, 2, ALL),
    "a part of a CPU is rounded down": ("0::/a", V2, {f"{CGROUP}/a/cpu.max": "299999 100000"}, 2, ALL),
    "but not to none": ("0::/a", V2, {f"{CGROUP}/a/cpu.max": "50000 100000"}, 1, ALL),
    "the parent's is lower": (
        "0::/a/b",
        V2,
        {f"{CGROUP}/a/b/cpu.max": "400000 100000", f"{CGROUP}/a/cpu.max": "300000 100000"},
        3,
        ALL,
    ),
    "the host's path, in a container": ("0::/docker/b", V2_INSIDE, {f"{CGROUP}/cpu.max": "300000 100000"}, 3, ALL),
    "below the mount": ("0::/docker/a/x", V2_INSIDE, {f"{CGROUP}/x/cpu.max": "300000 100000"}, 3, ALL),
    "outside the namespace": ("0::/../b", V2, {"sys/fs/b/cpu.max": "100000 100000"}, ALL, ALL),
    "memory": ("0::/a", V2, {f"{CGROUP}/a/memory.max": "4096"}, ALL, 4096),
    "version 1": ("4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/x", V1, V1_FILES, 3, 1048576),
    "garbage": ("0::/a", V2, {f"{CGROUP}/a/cpu.max": "lots", f"{CGROUP}/a/memory.max": ""}, ALL, ALL),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_limits(case: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup, mounts, files, cpus, memory = case
    for name, text in {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine.usable_threads(tmp_path) == (cpus or 8)
    assert machine.memory_bytes(tmp_path) == (memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def test_threads_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_THREADS", "7")
    assert machine.threads() == 7
    monkeypatch.setenv("INGOT_THREADS", "0")
    assert 1 <= machine.threads() <= len(os.sched_getaffinity(0))

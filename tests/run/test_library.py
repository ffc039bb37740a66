"""The native library is found, checked and opened, or a clear error gives the reason."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ingot.errors import ResourceError
from ingot.run import library
from ingot.support import abi

GLIBC_SYMBOLS = Path(__file__).parents[2] / "cmake" / "glibc_2_28.txt"


@pytest.fixture
def native() -> library.Library:
    return library.load()


@pytest.fixture
def reload(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """INGOT_LIBRARY may be changed, and the library is opened anew before and after."""
    library.load.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    library.load.cache_clear()


def test_the_table_holds_every_kernel(native: library.Library) -> None:
    assert {kernel.name: kernel.args_type for kernel in native.kernels.values()} == abi.kernels()
    for kernel in native.kernels.values():
        assert native.ffi.sizeof(kernel.args_type) > 0
        own = [isa for isa in kernel.functions if isa != "avx2vnni"]  # which has few functions of its own
        addresses = {int(native.ffi.cast("intptr_t", native.kernel(kernel.name, isa))) for isa in own}
        assert len(addresses) == len(own) and 0 not in addresses


def test_no_run_can_ask_for_memory(native: library.Library) -> None:
    """The library does not know how: runs, and steps of training among them, work in what they are given."""
    listed = subprocess.run(["nm", "-D", "--undefined-only", native.path], capture_output=True, text=True, check=True)
    asked = {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}
    assert "memcpy" in asked
    assert asked.isdisjoint(("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "mmap", "sbrk", "brk"))


def test_wheels_run_with_glibc_2_28(native: library.Library) -> None:
    """`make wheel` links with the versions of symbols in this table, which has all that the library takes."""
    rows = [line.split() for line in GLIBC_SYMBOLS.read_text().splitlines() if not line.startswith("#")]
    versions = [tuple(map(int, version.removeprefix("GLIBC_").split("."))) for _, version, *_ in rows]
    assert versions and max(versions) <= (2, 28)
    listed = {symbol for _, _, *symbols in rows for symbol in symbols}
    taken = subprocess.run(["nm", "-D", "--undefined-only", native.path], capture_output=True, text=True, check=True)
    assert set(re.findall(r"(\w+)@GLIBC_", taken.stdout)) <= listed


def test_stale_build(native: library.Library, reload: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stale = tmp_path / "stale.so"
    stale.write_bytes(native.path.read_bytes().replace(library.abi_hash().encode(), b"0123" * 16))
    shutil.copy(native.path.with_suffix(".py"), stale.with_suffix(".py"))
    reload.setenv("INGOT_LIBRARY", str(stale))
    expected = (
        rf"stale\.so': stale build, got 012301230123, expected {library.abi_hash()[:12]}; rebuild it, or unset INGOT"
    )
    with pytest.raises(ResourceError, match=expected):
        library.load()


def test_missing_library(reload: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reload.setenv("INGOT_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(
        ResourceError, match=r"no such file, got nothing, expected '.*none\.so'; rebuild it, or unset INGOT"
    ):
        library.load()


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(64)])
def test_unreadable_library(content: bytes, reload: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bad.so").write_bytes(content)
    reload.setenv("INGOT_LIBRARY", str(tmp_path / "bad.so"))
    with pytest.raises(ResourceError, match="cannot be opened"):
        library.load()


def test_library_of_someone_else(native: library.Library, reload: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(np._core._multiarray_umath.__file__, tmp_path / "other.so")
    shutil.copy(native.path.with_suffix(".py"), tmp_path / "other.py")
    reload.setenv("INGOT_LIBRARY", str(tmp_path / "other.so"))
    with pytest.raises(ResourceError, match=r"cannot be opened, got .*ingot_abi_hash"):
        library.load()


def test_library_without_its_declarations(native: library.Library, reload: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(native.path, tmp_path / "alone.so")
    reload.setenv("INGOT_LIBRARY", str(tmp_path / "alone.so"))
    with pytest.raises(ResourceError, match=r"cannot be opened, got .*alone\.py"):
        library.load()


@pytest.mark.parametrize(
    ("best", "forced", "chosen"),
    [("avx512", "", "avx512"), ("avx2", "", "avx2"), ("avx512", "avx2", "avx2"), ("avx2", "scalar", "scalar")],
)
def test_isa(best: str, forced: str, chosen: str, native: library.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_ISA", forced)
    assert dataclasses.replace(native, best_isa=best).isa() == chosen


@pytest.mark.parametrize(("best", "forced"), [("scalar", "avx2"), ("avx2", "avx512")])
def test_forced_isa_that_the_cpu_lacks(
    best: str, forced: str, native: library.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_ISA", forced)
    with pytest.raises(ResourceError, match=f"this CPU or this build lacks it, got {forced}, expected one of scalar"):
        dataclasses.replace(native, best_isa=best).isa()


@pytest.mark.parametrize("forced", ["AVX2", "sse9", " "])
def test_garbage_isa(forced: str, native: library.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_ISA", forced)
    with pytest.raises(ValueError, match=r"INGOT_ISA: unknown value, got .* expected one of scalar, avx2, avx2vnni, "):
        native.isa()


def test_the_best_isa_is_one_the_kernel_reports(native: library.Library) -> None:
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split())
    needs = {"scalar": set(), "avx2": {"avx2", "fma", "f16c"}}
    needs["avx2vnni"] = needs["avx2"] | {"avx_vnni"}
    needs["avx512"] = needs["avx2"] | {"avx512f", "avx512dq", "avx512bw", "avx512vl"}
    assert native.isas() == tuple(isa for isa, needed in needs.items() if needed <= flags)


# A signal's stack that would not hold the registers of tiles: Linux then refuses them to the whole process.
SMALL_STACK = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
stack = Stack(ctypes.addressof(memory), 0, 4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
"""


@pytest.mark.parametrize(
    ("before", "knob", "said"), [("", "", "used"), ("", "1", "used"), ("", "0", "off"), (SMALL_STACK, "", "refused")]
)
def test_amx_is_used_where_the_cpu_has_it_and_nobody_forbids_it(before: str, knob: str, said: str) -> None:
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split()
    code = before + "from ingot.run.library import load\nprint(load().amx)"
    environment = {**os.environ, "INGOT_AMX": knob}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.split() == [said if "amx_int8" in flags or said == "off" else "absent"]


def test_only_entry_points_are_exported(native: library.Library) -> None:
    listing = subprocess.run(["nm", "-D", "--defined-only", native.path], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listing.stdout.splitlines() if line.split()[-2] == "T"}
    header = (Path(library.__file__).parents[1] / "csrc/abi.h").read_text()
    assert names == set(re.findall(r"\b(ingot_\w+)\([^)]*\);", header))


def test_import_opens_nothing() -> None:
    code = "import ingot, ingot.run.library, sys; print('cffi' in sys.modules, 'pycparser' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


def test_an_installation_without_its_library_explains_how_to_get_one(
    reload: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reload.delenv("INGOT_LIBRARY", raising=False)
    reload.setattr(library.importlib.resources, "files", lambda _: tmp_path)
    reload.setattr(library.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(ResourceError, match=r"no such file, got nothing, expected .*; run 'pip install \.'"):
        library.load()

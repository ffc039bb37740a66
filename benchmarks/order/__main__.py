"""Compile the kernels in a free order, and measure both."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.harness import page
from benchmarks.harness.report import table
from ingot.run import library
from ingot.support import abi

HERE = Path(__file__).parent
ROUNDS = 15
SECONDS = 0.01  # of each variant in a round
FLAGS = {
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma", "-mprefer-vector-width=512"],
}
KERNELS = ("gemm_f32_packed", "gemv_f32_packed", "attention_f32", "reduce_sum_f32", "layer_norm_f32", "softmax_f32")


class FreeOrder:
    """The kernels of KERNELS in free order, compiled for an instruction set in a folder of their own."""

    def __init__(self, native: library.Library, isa: str, folder: Path) -> None:
        csrc = ROOT / "src" / "ingot" / "csrc"
        shutil.copytree(csrc, folder, dirs_exist_ok=True)
        header = (folder / "abi.h").read_text()
        (folder / "abi.h").write_text(re.sub(r"(#define INGOT_K_BLOCK) \d+", r"\1 1073741824", header))
        names = ("gemm", "gemv", "pack", "gemm_micro_dots", f"gemm_micro_{isa}")
        sources = [folder / "attention" / "attention.c", *(folder / "gemm" / f"{name}.c" for name in names)]
        command = ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno"]
        command += ["-fno-trapping-math", *FLAGS[isa], f"-DISA={isa}", f"-DISA_{isa}=1", f"-I{folder}"]
        built = folder / "free.so"
        subprocess.run([*command, *map(str, sources), str(HERE / "free_order.c"), "-lm", "-o", str(built)], check=True)
        import cffi

        ffi: Any = cffi.FFI()
        ffi.cdef("".join(f"void {kernel}_{isa}(const void *, int32_t, int32_t);" for kernel in KERNELS))
        self.opened = ffi.dlopen(str(built))
        self.functions = {
            kernel: native.ffi.cast("ingot_kernel", int(ffi.cast("intptr_t", getattr(self.opened, f"{kernel}_{isa}"))))
            for kernel in KERNELS
        }


Case = tuple[str, str, dict[str, Any]]  # title, kernel, fields; arrays become pointers


def product(m: int, k: int, n: int) -> Case:
    """A packed matrix product."""
    a, b, c = floats(m, k), floats(n // 32, k, 32), floats(m, n)
    fields = {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k, "a_stride": k, "c_stride": n, "alpha": 1.0}
    kernel = "gemv_f32_packed" if m <= 4 else "gemm_f32_packed"
    return f"matmul {m}x{k}x{n}", kernel, fields


def attention(heads: int, rows: int, width: int) -> Case:
    """Attention of adjacent heads."""
    q, k, v, out = (floats(rows, heads, width) for _ in range(4))
    fields = {"heads": heads, "kv_heads": heads, "q_len": rows, "kv_len": rows, "head_dim": width, "v_dim": width}
    size = abi.scratch_floats("attention_f32", fields)
    strides = (rows * heads * width, width, heads * width)
    fields |= {"q": q, "k": k, "v": v, "out": out, "scratch": floats(size), "scratch_stride": size, "batch": 1}
    fields |= {f"{name}_strides": strides for name in ("q", "k", "v", "out")} | {"scale": width**-0.5}
    return f"attention {heads}x{rows}x{width}", "attention_f32", fields


def rows_of(op: str, rows: int, cols: int) -> Case:
    """A reduction over each row, or a norm of it."""
    fields: dict[str, Any] = {"x": floats(rows, cols), "out": floats(rows, cols)}
    if op == "reduce_sum":
        fields |= {"outer_rank": 1, "outer_shape": [rows], "outer_strides": [cols]}
        fields |= {"reduced_rank": 1, "reduced_shape": [cols], "reduced_strides": [1]}
    else:
        fields |= {"rows": rows, "cols": cols, "x_stride": cols, "out_stride": cols}
    if op == "layer_norm":
        fields |= {"weight": floats(cols), "bias": floats(cols), "eps": 1e-5}
    return f"{op} {rows}x{cols}", f"{op}_f32", fields


def floats(*shape: int) -> np.ndarray:
    """Random numbers, aligned to a cache line."""
    size = int(np.prod(shape))
    memory = np.empty(size + 16, np.float32)
    begin = -memory.ctypes.data // 4 % 16
    array = memory[begin : begin + size].reshape(shape)
    array[...] = np.random.default_rng(size).standard_normal(shape)
    return array


def cases() -> list[Case]:
    """What is measured."""
    shapes = ((128, 768, 768), (128, 3072, 768), (32, 2048, 2048), (1, 4096, 4096))
    reductions = ((1024, 1024), (128, 768), (16, 16384))
    return [
        *(product(*shape) for shape in shapes),
        attention(12, 512, 64),
        *(rows_of(op, *shape) for op in ("reduce_sum", "layer_norm", "softmax") for shape in reductions),
    ]


def seconds(function: Any, args: Any, runs: int) -> float:
    """Seconds of one call on one thread."""
    begin = time.perf_counter()
    for _ in range(runs):
        function(args, 0, 1)
    return (time.perf_counter() - begin) / runs


def order_cost() -> str:
    """A Markdown table: medians of interleaved rounds on one thread, in the fixed order and in a free one."""
    native = library.load()
    isa = native.isa()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        free = FreeOrder(native, isa, Path(folder))
        for title, kernel, values in cases():
            pointers = {
                name: native.ffi.cast("void *", value.ctypes.data) if isinstance(value, np.ndarray) else value
                for name, value in values.items()
            }
            row = native.kernels[kernel]
            args = native.ffi.new(f"{row.args_type} *", pointers)
            variants = (row.functions[isa], free.functions[kernel])
            runs = [max(1, round(SECONDS / seconds(function, args, 2))) for function in variants]
            rounds = [[seconds(f, args, n) for f, n in zip(variants, runs, strict=True)] for _ in range(ROUNDS)]
            fixed, loose = (statistics.median(column) for column in zip(*rounds, strict=True))
            rows.append([title, f"{fixed * 1e6:.1f}", f"{loose * 1e6:.1f}", f"{fixed / loose:.2f}"])
    return table(["kernel", "fixed order, us", "free order, us", "fixed / free"], rows)


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__).parse_args()
    page.publish(__package__, asked, "The cost of a fixed order", ["ingot"], order_cost())


if __name__ == "__main__":
    main()

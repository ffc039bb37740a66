"""Measure the adapter by shaders of its own, and then the model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import packages, page
from benchmarks.harness.report import table
from benchmarks.llm import model
from ingot import LLM, InferenceSession
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.run.device import READ, Device, mapped, open_device

ROUNDS = 7
DECODE_GOAL, PREFILL_GOAL, MATMUL_GOAL = 0.5, 0.6, 0.4
_LANES = 256
_COPY = """@group(0) @binding(0) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> target_: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
  for (var i = id.x; i < arrayLength(&source); i += count.x * 256u) { target_[i] = source[i]; }
}
"""
_CHAINS, _TURNS = 8, 4096  # of multiply-adds of four numbers, which do not wait for one another
_PEAK = f"""@group(0) @binding(0) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> target_: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let x = source[0];
  let y = source[1];
  {" ".join(f"var z{i} = source[{i + 2}];" for i in range(_CHAINS))}
  for (var i = 0; i < {_TURNS}; i++) {{ {" ".join(f"z{i} = fma(z{i}, x, y);" for i in range(_CHAINS))} }}
  target_[id.x] = {" + ".join(f"z{i}" for i in range(_CHAINS))};
}}
"""


@dataclass(frozen=True)
class Sizes:
    """What is measured. copied: bytes. groups: workgroups that multiply and add. squares: sides of matrices. folder: of
    a language model; None for one of Qwen2.5-0.5B's size in bf16. prompt, tokens: of prefill and decode.
    """

    copied: int = 128 << 20
    groups: int = 1 << 14
    squares: tuple[int, ...] = (1024, 2048, 4096)
    folder: Path | None = None
    prompt: int = 512
    tokens: int = 64


def small() -> Sizes:
    """For an adapter in software."""
    from ingot.cli.demo_language import FOLDER

    return Sizes(1 << 20, 4, (64,), Path(FOLDER), 32, 8)


def least(run: Callable[[], object]) -> float:
    """The least seconds of some runs, after a first one that counts for nothing."""
    times = []
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def seconds(device: Device, code: str, nbytes: int, groups: int) -> float:
    """Of a dispatch of a shader between two buffers: what a run with sixteen takes longer than a run with one."""
    gpu = device.gpu
    module = gpu.create_shader_module(code=code)
    pipeline = gpu.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    source, target = (device.buffer(nbytes, "STORAGE", "COPY_SRC") for _ in range(2))
    read = device.buffer(256, *READ)
    entries = [{"binding": i, "resource": {"buffer": each}} for i, each in enumerate((source, target))]
    group = gpu.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def run(count: int) -> None:
        encoder = gpu.create_command_encoder()
        for _ in range(count):
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(groups)
            compute.end()
        encoder.copy_buffer_to_buffer(target, 0, read, 0, 256)
        gpu.queue.submit([encoder.finish()])
        mapped(read, 256)

    return (least(lambda: run(17)) - least(lambda: run(1))) / 16


def matmul_rate(side: int) -> float:
    """Floating-point operations a second of Ingot's product of square matrices of f32, by the device's clock."""
    graph = Graph("product")
    graph.add_input("x", TensorType(f32, (side, side)))
    weight = graph.add_weight("w", np.full((side, side), 0.5, np.float32))
    attributes: dict[str, Any] = {"transpose_a": False, "transpose_b": False, "scale": 1.0}
    graph.set_output("y", graph.add("matmul", ["x", weight], **attributes).output)
    session = InferenceSession(graph, executor="webgpu", strict=True)
    profile = session.profile({"x": np.full((side, side), 0.5, np.float32)}, runs=ROUNDS)
    return 2 * side**3 / (1e-9 * sum(step.nanoseconds for step in profile.steps))


def model_seconds(llm: LLM, sizes: Sizes) -> tuple[float, float]:
    """Of a prompt, and of a token after one, greedily."""
    random = np.random.default_rng(1)

    def prompt() -> list[int]:
        return random.integers(3, llm.model.vocab_size, sizes.prompt).tolist()

    prefill = least(lambda: next(llm.generate_tokens(prompt(), max_tokens=1, temperature=0)))
    together = least(lambda: list(llm.generate_tokens(prompt(), max_tokens=sizes.tokens + 1, temperature=0)))
    return prefill, (together - prefill) / sizes.tokens


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__).parse_args()
    packages.require("wgpu")
    device = open_device()
    adapter, is_gpu = device.adapter, device.adapter.kind != "CPU"
    sizes = Sizes() if is_gpu else small()
    copied = 2 * sizes.copied / seconds(device, _COPY, sizes.copied, min(1 << 15, sizes.copied // 16 // _LANES))
    operations = sizes.groups * _LANES * _TURNS * _CHAINS * 4 * 2
    peak = operations / seconds(device, _PEAK, 16 * _LANES * sizes.groups, sizes.groups)
    product = max(matmul_rate(side) for side in sizes.squares)
    with tempfile.TemporaryDirectory() as temporary:
        folder = sizes.folder
        if folder is None:
            model.write(Path(temporary), "bf16")
            folder, _ = model.paths(Path(temporary), "bf16")
        llm = LLM(folder, executor="webgpu", sequences=1, context=2 * sizes.prompt)
        prefill, decode = model_seconds(llm, sizes)
    read = llm.memory.weights
    if sizes.folder is None:
        read = model.streamed_bytes(Path(temporary), "bf16")
    numbers = read / 2  # of bf16
    shares = (
        ("a product of f32, of the peak", product / peak, MATMUL_GOAL),
        ("decode, of the bandwidth of a copy", read / decode / copied, DECODE_GOAL),
        ("prefill, of the product of f32", 2 * numbers * sizes.prompt / prefill / product, PREFILL_GOAL),
    )
    words = (
        f"{adapter.name} ({adapter.kind}, {adapter.backend}). "
        f"A copy {1e-9 * copied:.1f} GB/s, multiply-adds {1e-9 * peak:.1f} GFLOP/s. "
        f"{sizes.prompt} tokens of a prompt {1e3 * prefill:.2f} ms, a token {1e3 * decode:.2f} ms."
    )
    rows = table(["", "share", "at least"], [[what, f"{share:.0%}", f"{goal:.0%}"] for what, share, goal in shares])
    caution = [] if is_gpu else ["This is no GPU, and the model a small one: nothing follows from these shares."]
    page.publish(__package__, asked, "Shares of a GPU", ["ingot", "wgpu"], words, rows, *caution)


if __name__ == "__main__":
    main()

"""The engines that are compared. Each makes one call that runs the workload on its inputs and gives its output.

OpenVINO and Ingot compute in the precision of the request, ONNX Runtime in int8 too, the others in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.models import quantized
from benchmarks.models.workloads import Workload

if TYPE_CHECKING:
    from ingot import InferenceSession

Call = Callable[[], np.ndarray]
Engine = Callable[[Workload, Path, int, str], Call]


def onnx_file(workload: Workload, folder: Path) -> Path:
    """The workload as ONNX; exported by whoever asks first."""
    from filelock import FileLock

    path = folder / f"{workload.name.replace(' ', '_')}.onnx"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            module, inputs = workload.build()
            names = [f"input{i}" for i in range(len(inputs))]
            torch.onnx.export(module, inputs, path, input_names=names, dynamo=True, verbose=False)
    return path


def named(inputs: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
    """The inputs under the names that `onnx_file` gives."""
    return {f"input{i}": tensor.numpy() for i, tensor in enumerate(inputs)}


def eager(workload: Workload, folder: Path, threads: int, precision: str) -> Call:
    """torch as it is."""
    module, inputs = workload.build()

    def call() -> np.ndarray:
        with torch.inference_mode():
            return module(*inputs).numpy()

    return call


def exact(workload: Workload) -> np.ndarray:
    """The output of torch in float64, also of what the module makes itself."""
    module, inputs = workload.build()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            return module.double()(*(x.double() if x.is_floating_point() else x for x in inputs)).numpy()
    finally:
        torch.set_default_dtype(torch.float32)


def compiled(workload: Workload, folder: Path, threads: int, precision: str) -> Call:
    """torch.compile with Inductor, weights frozen into the program."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    torch._dynamo.reset()
    module, inputs = workload.build()
    program = torch.compile(module, dynamic=False)

    def call() -> np.ndarray:
        with torch.no_grad():
            return program(*inputs).numpy()

    return call


def onnxruntime(workload: Workload, folder: Path, threads: int, precision: str) -> Call:
    """ONNX Runtime on the CPU, all its optimisations on; in int8 the model of its quantizer."""
    import onnxruntime as ort

    module, inputs = workload.build()
    feeds, model = named(inputs), onnx_file(workload, folder)
    model = quantized.onnxruntime(model, module, feeds) if precision == "int8" else model
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)[0]


def openvino(workload: Workload, folder: Path, threads: int, precision: str) -> Call:
    """OpenVINO on the CPU, with an explicit precision: by default it may compute in bf16, as it does in int8 models."""
    import openvino as ov

    module, inputs = workload.build()
    feeds, path = named(inputs), onnx_file(workload, folder)
    hint = {} if precision == "int8" else {"INFERENCE_PRECISION_HINT": precision.removesuffix("amx")}
    properties = {
        **hint,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    core = ov.Core()
    model = quantized.openvino(path, module, feeds) if precision == "int8" else core.read_model(path)
    request = core.compile_model(model, "CPU", properties).create_infer_request()
    return lambda: request.infer(feeds, share_inputs=True, share_outputs=True)[0]


def session_of(
    workload: Workload, folder: Path, threads: int, precision: str
) -> tuple[InferenceSession, dict[str, np.ndarray]]:
    """Ingot from a torch.export program, and its feeds; convolutions in int8 come from its own quantizer,
    as those of the others do.
    """
    from ingot import InferenceSession

    module, inputs = workload.build()
    if precision == "int8" and quantized.has_convolutions(module):
        feeds = named(inputs)
        return InferenceSession(quantized.ingot(onnx_file(workload, folder), module, feeds), threads=threads), feeds
    session = InferenceSession(torch.export.export(module, inputs), threads=threads, precision=precision)
    return session, {a.name: tensor.numpy() for a, tensor in zip(session.get_inputs(), inputs, strict=True)}


def ingot(workload: Workload, folder: Path, threads: int, precision: str) -> Call:
    """Ingot's `run`."""
    session, feeds = session_of(workload, folder, threads, precision)
    return lambda: session.run(None, feeds)[0]


def matrix_of(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """x[1, k] and w[n, k] of a matvec."""
    module, (x,) = workload.build()
    assert isinstance(module, torch.nn.Linear), workload.name
    return x, module.weight


def numpy_blas(workload: Workload, folder: Path, threads: int, precision: str) -> Call:
    """numpy's BLAS on a matvec; its threads come from OMP_NUM_THREADS."""
    x, w = (tensor.numpy() for tensor in matrix_of(workload))
    return lambda: x @ w.T


def read(workload: Workload, folder: Path, threads: int, precision: str) -> Call:
    """Reads as many bytes as a matvec's matrix has, and computes nothing: what memory allows."""
    from ingot.run.library import load
    from ingot.run.probe import Probe

    _, w = matrix_of(workload)
    probe = Probe("probe_read_f32", load().isa(), threads, nbytes=w.nbytes)
    nothing = np.zeros(1, np.float32)

    def call() -> np.ndarray:
        probe.seconds()
        return nothing

    return call


ENGINES: dict[str, Engine] = {
    "eager": eager,
    "compile": compiled,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "ingot": ingot,
    "numpy": numpy_blas,
    "read": read,
}

"""The instruction set that engines are held to."""

import argparse
import os

# Of `--isa avx2`: variables of the environment that hold engines to AVX2. ONNX Runtime has none.
AVX2 = {
    "INGOT_ISA": "avx2", "OPENBLAS_CORETYPE": "Haswell",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2",  # of torch and OpenVINO
}  # fmt: skip


def option(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option."""
    parser.add_argument("--isa", choices=["avx2", "best"], default=default, help=f"{default} by default")


def hold(isa: str) -> None:
    """Hold the engines of processes that are started later to an instruction set; `best`: each chooses."""
    if isa == "avx2":
        os.environ.update(AVX2)

"""`Trainer.emit_c` and `ingot emit-c --mode train`: emit training as a C program with the bits of native execution."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.compile import Mode, compile_mode, sharing_weights
from ingot.emit.c import HOSTED, Emission, emit_entries
from ingot.emit.interface import Interface, check_prefix
from ingot.emit.program import project
from ingot.emit.project import project_files
from ingot.emit.training.source import Fitting, state_memory, training_program, training_vector
from ingot.ir.graph import Graph
from ingot.lower import Target
from ingot.plan.memory import Placement
from ingot.run.store import WeightStore


@dataclass(frozen=True, slots=True)
class Checked:
    """The test vector of `make check`: rows of each input of a step, and the expected losses."""

    inputs: Sequence[np.ndarray]
    losses: np.ndarray


def emit_training(
    graphs: Mapping[str, Graph],
    states: Mapping[str, np.ndarray],
    fitting: Fitting,
    folder: str | os.PathLike[str],
    checked: Checked,
    *,
    prefix: str,
    threads: int,
    force: bool = False,
) -> Emission:
    """Write graphs over one set of states as C, each as a function, and a training program; return the paths.

    The first graph reads rows; with gradient accumulation, the second graph updates the parameters. states: initial
    values; force: as for `emit`. Raises the errors of `emit_entries`.
    """
    check_prefix(prefix)
    # Kernels and addresses depend on no instruction set.
    target, placement = Target("scalar", threads=threads), Placement()
    entries = {}
    for name, graph in graphs.items():
        entries[name] = compile_mode(graph, target, Mode(name), placement=placement)
        target = sharing_weights(target, entries[name])

    def programs(face: Interface) -> dict[str, str | bytes]:
        return {
            face.file("main.c"): training_program(face, fitting, HOSTED),
            **project_files(project(face, has_vector=True)),
            **training_vector(face, fitting, checked.inputs, checked.losses),
        }

    nbytes = max(entry.native[1].regions["state"] for entry in entries.values())
    return emit_entries(
        entries, WeightStore(threads), folder, prefix=prefix, companion=state_memory(prefix, nbytes), initial=states,
        programs=programs, force=force,
    )  # fmt: skip

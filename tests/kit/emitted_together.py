"""Many models as one emitted program: their graphs stand side by side in one, so that kernels are compiled once."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingot.emit.c import Vector, emit
from ingot.ir.graph import Graph
from ingot.passes.precision import F32, Precision
from ingot.run.store import WeightStore

# The features that a CPU of a set must lack, so that the dispatch chooses that set.
LACKS = {
    "scalar": "avx2 avx512f avx512vnni", "avx2": "avx512f avx512vnni", "avx2vnni": "avx512f avx512vnni",
    "avx512": "avx512vnni", "avx512vnni": "amx", "best": "",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A static graph, what it is fed, and what native makes of that, by name."""

    graph: Graph
    feeds: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]


def together(parts: Sequence[Part]) -> tuple[Graph, Vector]:
    """One graph of all parts, and its test vector; names of part i begin with `p<i>`."""
    whole = Graph("together")
    inputs: dict[str, np.ndarray] = {}
    outputs: dict[str, np.ndarray] = {}
    for number, part in enumerate(parts):
        graph, names = part.graph, {name: f"p{number} {name}" for name in part.graph.values}
        for name, value in graph.values.items():
            if value.kind == "input":
                whole.add_input(names[name], value.type)
            elif value.kind == "weight":
                whole.add_weight(names[name], value.data)
            elif value.kind == "constant":
                assert value.data is not None
                whole.add_constant(names[name], value.data)
        for node in graph.nodes:
            operands = [None if each is None else names[each] for each in node.operands]
            made = whole.add(node.op.name, operands, [names[each] for each in node.outputs], **node.attributes)
            names |= dict(zip(node.outputs, made.outputs, strict=True))
        for external, name in graph.outputs.items():
            whole.set_output(f"p{number} out {external}", names[name])
        inputs |= {names[name]: array for name, array in part.feeds.items()}
        outputs |= {f"p{number} out {name}": array for name, array in part.expected.items()}
    return whole, Vector(inputs, outputs)


def by(text: str, dispatch: str) -> str:
    """model.c for a test: "told", its dispatch goes by the environment's LACKS too; "portable", as for no x86."""
    if dispatch == "told":
        tested = r'__builtin_cpu_supports\("(avx2|avx512f|avx512vnni)"\)'
        edited = re.sub(tested, r'(\g<0> && !strstr(getenv("LACKS"), "\1"))', text)
        edited = edited.replace("may_use_amx() &&", 'may_use_amx() && !strstr(getenv("LACKS"), "amx") &&')
        edited = edited.replace("#include <string.h>", "#include <stdlib.h>\n#include <string.h>")
    else:
        edited = text.replace("defined(__x86_64__)", "0")
    assert edited != text
    return edited


def built(
    parts: Sequence[Part], folder: Path, compiler: str, *flags: str, dispatch: str, precision: Precision = F32
) -> None:
    """Emits the parts together and builds the program. dispatch: as for `by`."""
    graph, vector = together(parts)
    emit(graph, WeightStore(), folder, vector=vector, precision=precision)
    source = folder / "model.c"
    source.write_text(by(source.read_text(), dispatch))
    words = ["make", "-C", str(folder), f"CC={compiler}", f"CFLAGS={' '.join(flags)}"]
    made = subprocess.run(words, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-4000:]


def differing(folder: Path, isa: str = "best") -> set[int]:
    """The numbers of the parts that a built program gives other bits for. isa: the best set that it may take."""
    environment = os.environ | {"LACKS": LACKS[isa]}
    words = ["./model", "--check", "test"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)
    said = r"^p\d+_\S* .*: (?:the bits of|(\d+) of \d+ elements differ from) test/p(\d+)_"
    checked = re.findall(said, done.stdout, re.MULTILINE)
    assert done.returncode in (0, 1), done.stderr[-4000:]
    assert len(checked) == len(json.loads((folder / "layout.json").read_text())["outputs"])
    return {int(number) for count, number in checked if count}

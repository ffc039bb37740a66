"""What is made of a sample of models, so that runs under several PYTHONHASHSEED can be compared.

`python tests/kit/fingerprints.py --count N --start S` prints a JSON object, name -> text, of every model: its graph
after the passes, the lowered steps, the address of each tensor, what `explain` says, and errors. The sample: N random
graphs from seed S on and N cases of single ONNX nodes, each once with its sizes and once with limits, and the ONNX
models that have a graph for each size. --packaged adds the models that Ingot brings, as emitted files.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.resources
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from ingot.cli import main as ingot_cli
from ingot.errors import IngotError
from ingot.ir import text
from ingot.ir.graph import Graph
from ingot.plan.memory import layout
from onnx_binding_cases import MODELS
from onnx_cases import NODES
from onnx_models import one_node, text_model
from random_graphs import random_graph

LIMIT = 8  # of each dim, where one program is for all its sizes
STRIDE = 61  # between cases of nodes, so that neighbours are of different ops


def described(source: Any, **options: Any) -> str:
    """What a session makes of a model, or why there is none."""
    try:
        session = ingot.InferenceSession(source, threads=2, **options)
        parts = [text.dump(session.graph), str(session.bindings)]
        for program in session.program.native:
            parts += [str(program.lowered), json.dumps(layout(program.lowered, program.plan), indent=1)]
        return "\n".join([*parts, json.dumps(session.explain().to_json(), indent=1)])
    except IngotError as error:
        return f"{type(error).__name__}: {error}"


def both(name: str, source: Graph | bytes, sizes: dict[str, int]) -> Iterator[tuple[str, str]]:
    """A model with its sizes, and with limits of them."""
    yield name, described(source, dims=sizes)
    if sizes:
        limits = {symbol: ingot.at_most(max(size, LIMIT)) for symbol, size in sizes.items()}
        yield f"{name} with limits", described(source, dims=limits)


def grown(seeds: range) -> Iterator[tuple[str, str]]:
    """Random graphs, as they are drawn and as they come out."""
    for seed in seeds:
        graph, feeds = random_graph(seed)
        sizes: dict[str, int] = {}
        for name in graph.inputs:
            pairs = zip(graph.type(name).shape, feeds[name].shape, strict=True)
            sizes |= {str(dim): size for dim, size in pairs if str(dim) in graph.symbols}
        yield f"graph {seed} as it is drawn", text.dump(graph)
        yield from both(f"graph {seed}", graph, sizes)


def nodes(places: range) -> Iterator[tuple[str, str]]:
    """Single ONNX nodes, whose inputs have names for dims."""
    for place in places:
        case = NODES[place * STRIDE % len(NODES)]
        proto, feeds = one_node(case, np.random.default_rng(place))
        sizes = {}
        for declared in proto.graph.input:
            for axis, dim in enumerate(declared.type.tensor_type.shape.dim):
                dim.dim_param = f"{declared.name}_{axis}"
                sizes[dim.dim_param] = feeds[declared.name].shape[axis]
        yield from both(f"node {place} {case}", proto.SerializeToString(), sizes)


def forms() -> Iterator[tuple[str, str]]:
    """ONNX models with a graph for each size."""
    for name, (body, sizes) in MODELS.items():
        yield from both(f"form {name}", text_model(body), dict(zip("nm", sizes[0], strict=True)))


def packaged() -> Iterator[tuple[str, str]]:
    """The models that Ingot brings, as files: C, a page, ONNX."""
    digits = importlib.resources.files("ingot") / "data" / "digits.onnx"
    language = importlib.resources.files("ingot") / "models" / "tiny-lm"
    commands = {
        "C of digits": ("emit-c", digits, "--dim", "batch=1"),
        "C of digits with a limit": ("emit-c", digits, "--dim", "batch=..4"),
        "page of digits": ("emit-web", digits),
        "training of digits as C": ("emit-c", digits, "--dim", "batch=4", "--mode", "train"),
        "C of a language model": ("emit-c", language),
        "page of a language model": ("emit-web", language),
    }
    for name, command in commands.items():
        with tempfile.TemporaryDirectory() as folder:
            with redirect_stdout(sys.stderr):
                ingot_cli([*map(str, command), "-o", f"{folder}/out"])
            files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            found = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        yield name, json.dumps(found, indent=1)
    yield "digits as ONNX", str(ingot.export_onnx(ingot.InferenceSession(str(digits)).graph))


def main() -> None:
    """Prints the sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--packaged", action="store_true")
    options = parser.parse_args()
    chosen = range(options.start, options.start + options.count)
    found = dict([*grown(chosen), *nodes(chosen), *forms(), *(packaged() if options.packaged else ())])
    print(json.dumps(found))


if __name__ == "__main__":
    main()

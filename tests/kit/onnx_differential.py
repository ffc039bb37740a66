"""Random ONNX models, computed by everybody.

`python tests/kit/onnx_differential.py --count 2000 [--start S] [--jobs J]` takes seeds from S on, in J processes.
A session and the interpreter must agree with what the model means, in float64, to bounds that are measured as in
differential.py; so must ONNX Runtime, without which an importer could be wrong all alone. Where it does not, ONNX's
reference decides. `--seed N` prints a seed's model, shrunk when it fails. The exit code is 1 when there are findings.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from onnx import printer

from differential import Mismatch, Oracle
from forked import FAILURES, Say, judge_seeds, limited
from ingot.errors import UnsupportedError
from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from random_growth import Refused
from random_onnx import Feed, Model, pruned, reads, run_node
from random_onnx_nodes import random_onnx
from seeds import parse_seeds, print_outcomes
from shrink import shrink

OUTCOMES = ("agreed", "unsupported", "no model")
GROW_SECONDS = 20
RUN_SECONDS = 20


def compare(model: Model) -> str:
    """`agreed` or `unsupported`. Raises Mismatch, or what a stage raises."""
    content = model.proto.SerializeToString()
    try:
        graph = load_onnx(content)
    except UnsupportedError:
        return "unsupported"
    session = InferenceSession(content, threads=1)
    for values in model.bindings:
        feed = {name: values[name] for name in model.inputs}
        with np.errstate(all="ignore"):
            oracle = Oracle(graph, feed)
            ask_others(oracle, model, values)
            oracle.expect_near("interpreted", interpret(graph, feed))
        oracle.expect_near("session", dict(zip(model.outputs, session.run(None, feed), strict=True)))
    return "agreed"


def ask_others(oracle: Oracle, model: Model, values: Feed) -> None:
    """Raises Mismatch, which names the outlier, unless ONNX Runtime's values are what the graph means."""
    try:
        oracle.expect_near("ONNX Runtime", {name: values[name] for name in model.outputs})
    except Mismatch as mismatch:
        results, first = by_reference(model, values)
        if first is None:
            raise
        oracle.expect_near(f"the reference, after {mismatch}", {name: results[name] for name in model.outputs})
        raise Mismatch("ONNX Runtime differs from the reference", f"at {first}: {mismatch}") from mismatch


def by_reference(model: Model, values: Feed) -> tuple[Feed, str | None]:
    """Every value by ONNX's reference, and the first op whose results are others. What it cannot do, others did."""
    results = {name: values[name] for name in (*model.inputs, *model.constants)}
    first = None
    for node in model.nodes:
        made = [(values[name],) for name in node.output]
        with contextlib.suppress(Refused):
            made = run_node(node, {name: (results[name],) for name in reads(node)}, by_reference=True)
        for name, arrays in zip(node.output, made, strict=True):
            results[name] = arrays[0]
            alike = arrays[0].shape == values[name].shape and np.allclose(*arrays, values[name], 1e-4, 1e-4, True)
            first = first or (None if alike else node.op_type)
    return results, first


def failure(model: Model) -> tuple[str, str] | None:
    """What is wrong with a model: its kind, the same for one cause however large the model is, and a text."""
    try:
        compare(model)
    except Mismatch as mismatch:
        return mismatch.kind, str(mismatch)
    except FAILURES as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {frame.name}: {frame.line}", "".join(traceback.format_exception(error)[-6:])
    return None


def judge(seed: int, say: Say) -> str:
    """What became of a seed, in a child."""
    say("no model")  # unless it ends: a node may take ONNX Runtime for ever
    with limited(GROW_SECONDS):
        model = random_onnx(seed)
    say("! slow")
    try:
        with limited(RUN_SECONDS):
            return compare(model)
    except Mismatch as mismatch:
        return f"! {mismatch}".replace("\n", " ")


def smaller(model: Model) -> Iterator[Model]:
    """Models with fewer outputs, nodes or bindings."""
    for keep in model.outputs if len(model.outputs) > 1 else ():
        yield pruned(replace(model, outputs=(keep,)))
    bindings = len(model.bindings)
    for i in range(bindings) if bindings > 1 else ():
        values = {name: (arrays[i],) for name, arrays in model.values.items()}
        yield replace(model, values=values)
    for node in reversed(model.nodes):
        made = [name for name in node.output if name not in model.outputs]
        rest = tuple(n for n in model.nodes if n is not node)
        if len(made) == len(node.output) and rest:
            yield pruned(replace(model, nodes=rest, inputs={**model.inputs, **{n: model.declared(n) for n in made}}))
    for node in model.nodes:
        if len(model.outputs) == 1 and model.outputs[0] in node.output:
            made = {name for other in model.nodes for name in other.output}
            for name in node.input:
                if name in made:
                    yield pruned(replace(model, outputs=(name,)))


def report(seed: int) -> str:
    """For people: the shrunk model of a failing seed and how to repeat it, or the model of one that passes."""
    model = random_onnx(seed)
    found = failure(model)
    if found is None:
        return f"{printer.to_text(model.proto)}\nseed {seed}: {compare(model)}"
    model = shrink(model, smaller, lambda other: (failure(other) or ("",))[0] == found[0])
    last = failure(model)
    assert last is not None
    feeds = "\n".join(str({name: values[name].shape for name in model.inputs}) for values in model.bindings)
    repeat = f"python tests/kit/onnx_differential.py --seed {seed}"
    return f"seed {seed}: {found[0]}\n{last[1].strip()}\n\n{printer.to_text(model.proto)}\n{feeds}\n{repeat}\n"


def main() -> int:
    options = parse_seeds(__doc__, 2_000, one="print this seed's model, shrunk when it fails", parallel=True)
    if options.seed is not None:
        text = report(options.seed)
        print(text)
        return int(text.startswith("seed"))
    outcomes = judge_seeds(options.start, options.count, options.jobs, judge)
    return print_outcomes(outcomes, options, OUTCOMES, rare=1)


if __name__ == "__main__":
    sys.exit(main())

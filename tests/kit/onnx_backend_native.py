"""Which of ONNX's own tests run on kernels alone, and which ops of which dtypes keep the others from it; which of those
that do are emitted as C.

`python tests/kit/onnx_backend_native.py` counts them; what passes on the interpreter is what is counted.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emitted_together import Part
from ingot.compile import Mode, compile_mode
from ingot.emit.c import refusals
from ingot.errors import IngotError
from ingot.ir.graph import Graph, TensorType
from ingot.lower import Target
from ingot.run.program import InterpretedSegment
from ingot.session.inference import InferenceSession
from onnx_backend_cases import Case, Data, as_array, cases, listed, same

DIFFERS = "differs"


@dataclass(frozen=True)
class Outcome:
    """What becomes of a case in a session.

    steps: those that the reference runs, as "op of dtypes -> dtypes"; none where kernels run all of it. Of a case that
    a session fails, the error, or that it differs. part: where kernels run all of it, its graph, and its last data set
    with what kernels make of it; None where it is not emitted, for the reasons in refused.
    """

    steps: list[str]
    refused: list[str]
    part: Part | None = None


def outcome(case: Case, content: bytes, data: list[Data]) -> Outcome:
    """Runs a case on all of its data sets."""
    results: list[Any] = []
    try:
        session = InferenceSession(content, threads=1)
        names = [each.name for each in session.get_inputs()]
        for inputs, expected in data:
            feeds = dict(zip(names, map(as_array, inputs), strict=True))
            results = session.run(None, feeds)
            if not all(same(got, want, case) for got, want in zip(results, expected, strict=True)):
                return Outcome([DIFFERS], [])
    except IngotError as error:
        return Outcome([f"{type(error).__name__}: {error}".splitlines()[0]], [])
    segments = session.program.segments
    steps = sorted(step for part in segments if isinstance(part, InterpretedSegment) for step in _steps(part.graph))
    graph = session.graph
    refused = [] if steps else refusals(compile_mode(graph, Target("scalar"), Mode()))
    if steps or refused:
        return Outcome(steps, refused)
    return Outcome([], [], Part(graph, feeds, dict(zip(graph.outputs, results, strict=True))))


def _steps(graph: Graph) -> Iterator[str]:
    """The nodes of a segment with their dtypes; what it only hands through is a step too."""
    for node in graph.nodes:
        types = [[graph.values[v].type for v in values if v is not None] for values in (node.operands, node.outputs)]
        reads, makes = (", ".join(dict.fromkeys(str(getattr(t, "dtype", "no tensor")) for t in t)) for t in types)
        is_static = all(isinstance(type, TensorType) and type.is_static for each in types for type in each)
        yield f"{node.op.name} of {reads} -> {makes}{'' if is_static else ' of unknown shape'}"
    if not len(graph):
        yield "values handed through"


def report(found: Mapping[str, Sequence[str]]) -> None:
    """Prints how many cases are native, and the reference steps of the others, those of most cases first."""
    names = defaultdict(list)
    for name, steps in found.items():
        for step in dict.fromkeys(steps):
            names[step].append(name)
    print(f"{sum(not steps for steps in found.values())} of {len(found)} passing cases are native")
    for step, cases_of in sorted(names.items(), key=lambda item: -len(item[1])):
        print(f"{len(cases_of):5}  {step}  ({', '.join(cases_of[:3])})")


if __name__ == "__main__":
    failing = listed()
    report({case.name: outcome(case, *rest).steps for case, *rest in cases() if case.name not in failing})

"""Which of ONNX's own tests run on kernels alone, and which ops of which dtypes keep the others from it.

`python tests/load/onnx_backend_native.py` counts them; what passes on the reference is what is counted.
"""

from collections import defaultdict
from collections.abc import Iterator

from test_onnx_backend import PASSING, Case, Data, _as_array, cases, same

from ingot.errors import IngotError
from ingot.ir import Graph, TensorType
from ingot.run.program import InterpretedSegment
from ingot.session import InferenceSession


def native(case: Case, content: bytes, data: list[Data]) -> list[str]:
    """The steps of a case that the reference runs, as "op of dtypes -> dtypes"; none where kernels run all of it.

    Raises AssertionError for results that are not what ONNX expects, IngotError for a model that cannot be had or run.
    """
    session = InferenceSession(content, threads=1)
    for inputs, expected in data:
        results = session.run(None, dict(zip(session.graph.inputs, map(_as_array, inputs), strict=True)))
        right = all(same(got, want, case) for got, want in zip(results, expected, strict=True))
        assert right, f"{case.name}: differs"
    segments = session.program.segments
    return sorted(step for part in segments if isinstance(part, InterpretedSegment) for step in _steps(part.graph))


def _steps(graph: Graph) -> Iterator[str]:
    """The nodes of a segment with their dtypes; what it only hands through is a step too."""
    for node in graph.nodes:
        types = [[graph.values[v].type for v in values if v is not None] for values in (node.operands, node.outputs)]
        reads, makes = (", ".join(dict.fromkeys(str(getattr(t, "dtype", "no tensor")) for t in t)) for t in types)
        is_static = all(isinstance(type, TensorType) and type.is_static for each in types for type in each)
        yield f"{node.op.name} of {reads} -> {makes}{'' if is_static else ' of unknown shape'}"
    if not len(graph):
        yield "values handed through"


def reference_steps() -> dict[str, list[str]]:
    """The reference steps of every case that passes on the reference, by its name; of one that fails, the error."""
    listed, found = set(PASSING.read_text().split()), {}
    for case, content, data in cases():
        if case.name not in listed:
            continue
        try:
            found[case.name] = native(case, content, data)
        except (IngotError, AssertionError) as error:
            found[case.name] = [f"{type(error).__name__}: {error}"]
    return found


def report(found: dict[str, list[str]]) -> None:
    """Prints how many cases are native, and the reference steps of the others, those of most cases first."""
    names = defaultdict(list)
    for name, steps in found.items():
        for step in dict.fromkeys(steps):
            names[step].append(name)
    print(f"{sum(not steps for steps in found.values())} of {len(found)} passing cases are native")
    for step, cases_of in sorted(names.items(), key=lambda item: -len(item[1])):
        print(f"{len(cases_of):5}  {step}  ({', '.join(cases_of[:3])})")


if __name__ == "__main__":
    report(reference_steps())

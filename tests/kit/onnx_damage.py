"""Small ONNX files, each of other kinds of content, cut at every byte and with every bit flipped.

`python tests/kit/onnx_damage.py [NAME]` takes every damage to the files, or to one of them, in a process with limits of
memory and time, as `onnx_survival` has them. The exit code is 1 when there are findings.
"""

from __future__ import annotations

import functools
import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from attacks.hostile_families import trees
from forked import Say, batch
from onnx_models import model, text_model
from onnx_survival import load_and_run

RUN_SECONDS = 5  # of a file: a loop may be made endless

TEXTS = {
    "branch": (18, """g (float[1,2] x, bool c) => (float[1,2] y) <float[2,2] w = {1,2,3,4}> {
        r = Gemm<alpha=0.5>(x, w)  y = If (c) <then_branch = t () => (p) { p = Relu(r) },
        else_branch = e () => (q) { q = Softmax<axis=-1>(r) }> }"""),
    "loop": (18, """g (float[2] x, int64 n) => (float[2] y, float[k,2] z) { y, z = Loop (n, , x) <body =
        b (int64 i, bool d, float[2] v) => (bool e, float[2] a, float[2] o) { e = Identity(d)  f = Cast<to=1>(i)
        a = Add(v, f)  o = Neg(a) }> }"""),
    "scan": (18, """g (float[2] s, float[3,2] x) => (float[2] y, float[3,2] z) { y, z = Scan<num_scan_inputs=1,
        scan_output_directions=[1], body = b (float[2] v, float[2] e) => (float[2] a, float[2] o) {
        a = Mul(v, e)  o = Add(a, s) }>(s, x) }"""),
    "sequence": (18, """g (float[2,2] x, int64 i) => (float[a,b] y, int64 n) { q = SequenceConstruct(x, x)
        s = SplitToSequence<axis=1>(x)  h = SequenceAt(s, i)  r = SequenceInsert(q, h)  n = SequenceLength(r)
        t = SequenceErase(r, i)  y = ConcatFromSequence<axis=1>(t) }"""),
    "strings": (20, """g (string[2] s) => (string[2] y, bool[2] m, int64[2] k) { y = StringConcat(s, s)
        m = RegexFullMatch<pattern="[a-c]+|x\\\\d{1,3}">(y)  p, k = StringSplit<delimiter="b">(s) }"""),
    "quantized": (21, """g (float[2,4] x) => (float[2,3] y) <float s = {0.5}, uint8 z = {3}, uint8[4,3] w =
        {1,2,3,4,5,6,7,8,9,10,11,12}> { q = QuantizeLinear(x, s, z)  r = QLinearMatMul(q, s, z, w, s, z, s, z)
        y = DequantizeLinear(r, s, z) }"""),
    "earlier": (6, """g (float[1,1,3,4] x) => (float[1,2,6,8] y) <float[2,1,2,2] w = {1,2,3,4,5,6,7,8}, float[2] b =
        {1,2}> { p = Pad<pads=[0,0,1,0,0,0,0,1]>(x)  c = Conv<kernel_shape=[2,2]>(p, w)
        a = Add<axis=1,broadcast=1>(c, b)  y = Upsample<height_scale=2.0,width_scale=2.0>(a) }"""),
    "recurrent": (14, """g (float[3,1,2] x, int32[1] n) => (y, h) <float[1,3,2] w = {1,2,3,4,5,6}, float[1,3,1] r =
        {1,2,3}> { y, h = GRU<hidden_size=1, direction="reverse">(x, w, r, , n) }"""),
}  # fmt: skip


def few_bits() -> bytes:
    """Weights of 4 bits with a scale for each block."""
    weight = helper.make_tensor("w", TensorProto.INT4, [2, 3], [1, -2, 3, -4, 5, -6])
    scale = numpy_helper.from_array(np.array([[0.5, 0.25], [1, 2]], np.float32), "s")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1, block_size=2),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    return model(helper.make_graph(nodes, "g", [x], outputs, [weight, scale]), opset=21).SerializeToString()


@functools.cache
def files() -> dict[str, bytes]:
    """The whole files, by name."""
    texts = {name: text_model(body, opset) for name, (opset, body) in TEXTS.items()}
    return texts | {"few bits": few_bits(), "trees": trees()().SerializeToString()}


def damaged(content: bytes, place: int) -> bytes:
    """With the bit at `place` flipped; past the last bit, cut to as many bytes as that is past it."""
    if place >= 8 * len(content):
        return content[: place - 8 * len(content)]
    return content[: place // 8] + bytes([content[place // 8] ^ 1 << place % 8]) + content[place // 8 + 1 :]


def places(content: bytes) -> int:
    """How many ways there are to damage a file."""
    return 9 * len(content)


def survive(name: str, chosen: range) -> dict[int, str]:
    """What became of a file with each of these damages, by place; findings begin with `!`."""
    content = files()[name]

    def judge(place: int, say: Say) -> str:
        return load_and_run(damaged(content, place), say, RUN_SECONDS)

    outcomes: dict[int, str] = {}
    for first in range(0, len(chosen), 500):  # a process each
        outcomes |= batch(chosen[first : first + 500], judge)
    return outcomes


def main() -> int:
    bad = 0
    for name in sys.argv[1:] or files():
        outcomes = survive(name, range(places(files()[name])))
        found = {place: outcome for place, outcome in outcomes.items() if outcome.startswith("!")}
        bad += len(found)
        kinds = [*outcomes.values()]
        told = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("refused", "loaded", "ran", "slow"))
        print(f"{name}, {len(files()[name])} bytes: {told}", *(f"{p}: {o}" for p, o in found.items()), sep="\n  ")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

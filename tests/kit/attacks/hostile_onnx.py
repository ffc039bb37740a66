"""Hostile ONNX models, each with the error that it must get: (name, builder, error type, fragment of the message)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ingot.errors import IngotError, LimitError, LoadError, ShapeError, UnboundError, UnsupportedError
from onnx_models import ints, model, value_info

Attack = tuple[str, Callable[[], Any], type[IngotError], str]

X = value_info("x", np.zeros((2, 3), np.float32))
Y = onnx.ValueInfoProto(name="y")
node = helper.make_node


def graph(nodes: list, inputs: Any = (X,), outputs: Any = (Y,), constants: Any = (), **rest: Any) -> onnx.ModelProto:
    """A model of these nodes: x f32[2,3] in, y out by default; constants are (name, array) or tensors."""
    tensors = [c if isinstance(c, TensorProto) else numpy_helper.from_array(c[1], c[0]) for c in constants]
    return model(helper.make_graph(nodes, "attack", list(inputs), list(outputs), tensors), **rest)


def changed(change: Callable[[onnx.ModelProto], Any], **rest: Any) -> Callable[[], onnx.ModelProto]:
    """y = relu(x + w), after `change`."""

    def build() -> onnx.ModelProto:
        weight = ("w", np.ones((2, 3), np.float32))
        proto = graph(
            [node("Add", ["x", "w"], ["h"], "first"), node("Relu", ["h"], ["y"], "second")], constants=[weight]
        )
        change(proto)
        return proto

    return build


def tensor(**fields: Any) -> Callable[[], onnx.ModelProto]:
    """The weight's fields set: repeated ones replaced, others assigned."""

    def change(proto: onnx.ModelProto) -> None:
        weight = proto.graph.initializer[0]
        for name, value in fields.items():
            if isinstance(value, (list, tuple)):
                weight.ClearField(name)
                getattr(weight, name).extend(value)
            else:
                setattr(weight, name, value)

    return changed(change)


def one(op: str, operands: list[str], constants: dict[str, np.ndarray] | None = None, **rest: Any) -> Callable[[], Any]:
    """One node over x, then other names are constants."""
    options = {key: rest.pop(key) for key in ("opset", "inputs") if key in rest}
    arrays = list((constants or {}).items())
    return lambda: graph([node(op, operands, ["y"], "attacked", **rest)], constants=arrays, **options)


def large(elements: int) -> TensorProto:
    """A tensor of 2**18 bytes of raw data."""
    return TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[elements], raw_data=bytes(2**18))


def raw(content: bytes) -> Callable[[], bytes]:
    return lambda: content


def nested(depth: int) -> bytes:
    """A graph in an attribute of a node of a graph, as deep as asked, written byte by byte."""
    content = b""
    for _ in range(depth):
        for tag in (b"\x32", b"\x2a", b"\x0a"):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            content = tag + varint(len(content)) + content
    return b"\x08\x08\x3a" + varint(len(content)) + content


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def chain(length: int, fanout: int) -> onnx.ModelProto:
    """Functions that each call the next one `fanout` times."""
    functions = []
    for level in range(length):
        callee = ("Relu", "") if level == length - 1 else (f"f{level + 1}", "local")
        names = ["a", *(f"t{i}" for i in range(fanout))]
        body = [node(callee[0], [names[i]], [names[i + 1]], domain=callee[1]) for i in range(fanout)]
        functions.append(
            helper.make_function(
                "local",
                f"f{level}",
                ["a"],
                [names[-1]],
                body,
                [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
            )
        )
    return graph([node("f0", ["x"], ["y"], domain="local")], functions=functions, local=1)


def recursive() -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    itself = helper.make_function("local", "f", ["a"], ["b"], [node("f", ["a"], ["b"], domain="local")], imports)
    return graph([node("f", ["x"], ["y"], domain="local")], functions=[itself], local=1)


def constant_of_a_function() -> onnx.ModelProto:
    """A function whose constant has more than one value field."""
    twice = TensorProto(dims=[1], data_type=1, raw_data=b"\0" * 4, float_data=[1.0])
    nodes = [node("Constant", [], ["c"], value=twice), node("Add", ["a", "c"], ["b"])]
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("local", "f", ["a"], ["b"], nodes, imports)
    return graph([node("f", ["x"], ["y"], domain="local")], functions=[function], local=1)


def squared(times: int) -> onnx.ModelProto:
    """A shape computed by squaring 3 again and again, which wraps."""
    nodes = [node("Mul", [f"n{i}", f"n{i}"], [f"n{i + 1}"]) for i in range(times)]
    return graph([*nodes, node("Expand", ["x", f"n{times}"], ["y"])], constants=[("n0", ints(3))])


def squared_symbol(times: int) -> onnx.ModelProto:
    """The same with a symbol, which makes ever longer expressions."""
    symbolic = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    nodes = [node("Shape", ["x"], ["s"]), node("Add", ["s", "one"], ["n0"])]
    for i in range(times):
        nodes += [node("Mul", [f"n{i}", f"n{i}"], [f"m{i}"]), node("Div", [f"m{i}", "three"], [f"d{i}"])]
        nodes += [node("Add", [f"d{i}", f"m{i}"], [f"n{i + 1}"])]
    nodes.append(node("ConstantOfShape", [f"n{times}"], ["y"]))
    return graph(nodes, inputs=[symbolic], constants=[("one", ints(1)), ("three", ints(3))])


def entry(proto: onnx.ModelProto, domain: str, version: int) -> None:
    proto.opset_import.append(helper.make_opsetid(domain, version))


def conv(**attributes: Any) -> Callable[[], onnx.ModelProto]:
    image = value_info("x", np.zeros((1, 4, 5, 5), np.float32))
    return one("Conv", ["x", "w"], {"w": np.ones((4, 4, 3, 3), np.float32)}, inputs=[image], **attributes)


def drop(field: str) -> Callable[[], onnx.ModelProto]:
    return changed(lambda m: m.ClearField(field))


def typed(number: int, shape: tuple[Any, ...] = (2, 3)) -> onnx.ModelProto:
    return graph([node("Relu", ["x"], ["y"])], inputs=[helper.make_tensor_value_info("x", number, shape)])


FILES: list[Attack] = [
    ("empty", raw(b""), LoadError, "file is empty"),
    ("one byte", raw(b"\x08"), LoadError, "not an ONNX model"),
    ("zeros", raw(bytes(4096)), LoadError, "not an ONNX model"),
    ("web page", raw(b"<!DOCTYPE html><html><body>404</body></html>"), LoadError, "a web page"),
    (
        "lfs pointer",
        raw(b"version https:" + b"//git-lfs.github.com/spec/v1\noid sha256:0\n"),
        LoadError,
        "git lfs pull",
    ),
    ("text", raw(b"hello, world\n" * 20), LoadError, "not an ONNX model"),
    ("huge varint", raw(b"\x08\x08\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), LoadError, "not an ONNX model"),
    ("endless varint", raw(b"\x08" + b"\xff" * 40), LoadError, "not an ONNX model"),
    ("only ir_version", raw(b"\x08\x08"), LoadError, "it has no graph"),
    ("deep subgraphs", lambda: nested(40), LoadError, "not an ONNX model"),
    ("deeper subgraphs", lambda: nested(10_000), LoadError, "not an ONNX model"),
    ("deep groups", raw(b"\x08\x08" + b"\xfb\x07" * 10_000 + b"\xfc\x07" * 10_000), LoadError, "not an ONNX model"),
    ("ir_version missing", drop("ir_version"), LoadError, "ir_version missing"),
    ("ir_version huge", changed(lambda m: setattr(m, "ir_version", 10**9)), UnsupportedError, "ir_version 1000000000"),
    ("opset missing", drop("opset_import"), LoadError, "no opset of the default domain"),
    ("opset 0", changed(lambda m: setattr(m.opset_import[0], "version", 0)), UnsupportedError, "opset 0, expected 1.."),
    ("opset huge", changed(lambda m: setattr(m.opset_import[0], "version", 10**9)), UnsupportedError, "expected 1.."),
    ("opset twice", changed(lambda m: entry(m, "ai.onnx", 15)), LoadError, "imported twice"),
    ("training", changed(lambda m: m.training_info.add()), UnsupportedError, "training_info"),
    ("graph missing", drop("graph"), LoadError, "it has no graph"),
]

GRAPHS: list[Attack] = [
    ("initializer twice", changed(lambda m: m.graph.initializer.append(m.graph.initializer[0])), LoadError, "twice"),
    ("input twice", changed(lambda m: m.graph.input.append(X)), LoadError, "input 'x' is defined twice"),
    ("output twice", changed(lambda m: m.graph.output.append(Y)), LoadError, "output 'y' is defined twice"),
    (
        "value twice",
        changed(lambda m: m.graph.node.append(node("Abs", ["x"], ["h"]))),
        LoadError,
        "'h' is defined twice",
    ),
    (
        "input made",
        changed(lambda m: m.graph.node.append(node("Abs", ["h"], ["x"]))),
        LoadError,
        "'x' is defined twice",
    ),
    ("self loop", lambda: graph([node("Relu", ["y"], ["y"])]), LoadError, "nodes form a cycle, got 'y' (Relu)"),
    (
        "cycle",
        lambda: graph([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Abs", ["b"], ["y"])]),
        LoadError,
        "nodes form a cycle, got 'a' (Add), 'b' (Relu)",
    ),
    ("no producer", lambda: graph([node("Add", ["x", "ghost"], ["y"])]), LoadError, "input 'ghost' has no producer"),
    ("output ghost", lambda: graph([node("Relu", ["x"], ["z"])]), LoadError, "output 'y' has no producer"),
    ("empty name", changed(lambda m: setattr(m.graph.initializer[0], "name", "")), LoadError, "name is empty"),
    ("long name", changed(lambda m: setattr(m.graph.output[0], "name", "y" * 2**20)), LimitError, "name too long"),
    ("sparse", changed(lambda m: m.graph.sparse_initializer.add()), UnsupportedError, "sparse"),
    (
        "sequence input",
        lambda: graph(
            [node("Relu", ["x"], ["y"])], inputs=[helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [1])]
        ),
        ShapeError,
        "input 0 has a wrong dtype, got sequence<f32[1]>",
    ),
    (
        "input without type",
        lambda: graph([node("Relu", ["x"], ["y"])], inputs=[onnx.ValueInfoProto(name="x")]),
        UnsupportedError,
        "onnx input 'x'",
    ),
    ("input without shape", lambda: typed(TensorProto.FLOAT, None), UnboundError, "has no shape"),
    ("input of negative dim", lambda: typed(TensorProto.FLOAT, (-2, 3)), LoadError, "negative dim"),
    ("input of huge dims", lambda: typed(TensorProto.FLOAT, (2**32, 2**32)), LimitError, "too many elements"),
    ("input of rank 13", lambda: typed(TensorProto.FLOAT, (1,) * 13), LimitError, "rank too high"),
    ("input of dtype 9999", lambda: typed(9999), LoadError, ""),
    ("input of strings", lambda: typed(TensorProto.STRING), ShapeError, "wrong dtype, got string"),
    ("input of narrow floats", lambda: typed(TensorProto.FLOAT8E4M3FN), ShapeError, "wrong dtype, got f8e4m3fn"),
    ("input of narrow integers", lambda: typed(TensorProto.INT2), ShapeError, "wrong dtype, got i2"),
    ("input of complex", lambda: typed(TensorProto.COMPLEX64), UnsupportedError, "dtype COMPLEX64"),
    (
        "output of another dtype",
        changed(lambda m: m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, [2, 3]))),
        ShapeError,
        "declared dtype",
    ),
    ("custom op", one("PyOp", ["x"], domain="ai.onnx.contrib"), UnsupportedError, "ai.onnx.contrib.PyOp has no rule"),
    (
        "other domain's schema",
        one("FlexAttention", ["x", "x", "x"], domain="ai.onnx.preview"),
        UnsupportedError,
        "no rule",
    ),
    ("unknown op", one("Nonsense", ["x"]), UnsupportedError, "op Nonsense has no rule"),
    ("recursive function", recursive, LimitError, "nested too deep, or recursive"),
    ("deep functions", lambda: chain(3000, 1), LimitError, "nested too deep"),
    (
        "function twice",
        changed(lambda m: m.functions.extend(list(recursive().functions) * 2)),
        LoadError,
        "defined twice",
    ),
]

TENSORS: list[Attack] = [
    ("two value fields", tensor(float_data=[1.0] * 6), LoadError, "more than one value field"),
    ("raw too short", tensor(raw_data=b"\0" * 23), LoadError, "raw_data has a wrong length, got 23 bytes, expected 24"),
    ("raw too long", tensor(raw_data=b"\0" * 25), LoadError, "got 25 bytes"),
    (
        "large raw too short",
        lambda: graph([node("Relu", ["x"], ["y"])], constants=[large(2**20)]),
        LoadError,
        "wrong length",
    ),
    (
        "large raw too long",
        lambda: graph([node("Relu", ["x"], ["y"])], constants=[large(2**10)]),
        LoadError,
        "wrong length",
    ),
    ("float_data too short", tensor(raw_data=b"", float_data=[1.0]), LoadError, "more than one value field"),
    ("negative dim", tensor(dims=[-2, -3]), LoadError, "negative dim"),
    ("smallest dim", tensor(dims=[-(2**63)]), LoadError, "negative dim"),
    ("dims wrap to 0", tensor(dims=[2**32, 2**32], raw_data=b""), LimitError, "too many elements"),
    ("dims wrap to 4", tensor(dims=[4194305, 4194305, 211106198978564]), LimitError, "too many elements"),
    ("huge dim beside 0", tensor(dims=[0, 2**62], raw_data=b""), LimitError, "too many elements"),
    ("dtype 0", tensor(data_type=0), LoadError, "unknown dtype, got 0"),
    ("dtype 9999", tensor(data_type=9999), LoadError, "unknown dtype, got 9999"),
    ("dtype complex", tensor(data_type=TensorProto.COMPLEX64), UnsupportedError, "dtype COMPLEX64"),
    ("segment", changed(lambda m: m.graph.initializer[0].segment.SetInParent()), UnsupportedError, "segmented"),
    ("rank 2000", tensor(dims=[1] * 2000), LimitError, "rank too high"),
    ("rank 13", tensor(dims=[1] * 11 + [2, 3]), LimitError, "rank too high"),
    (
        "constant's fields",
        lambda: graph(
            [
                node(
                    "Constant",
                    [],
                    ["y"],
                    value=TensorProto(dims=[1], data_type=1, raw_data=b"\0" * 4, float_data=[1.0]),
                )
            ]
        ),
        LoadError,
        "more than one value field",
    ),
    ("constant's fields, of a function", constant_of_a_function, LoadError, "more than one value field"),
]

IMAGE = np.ones((1, 2, 4, 4), np.float32)
COLUMNS = np.ones((1, 2, 3), np.float32)


def scatter(indices: np.ndarray, **attributes: Any) -> Callable[[], bytes]:
    """A ScatterElements into x, of ones."""
    updates = np.ones(indices.shape, np.float32)
    return one("ScatterElements", ["x", "i", "u"], {"i": indices, "u": updates}, **attributes)


ATTRIBUTES: list[Attack] = [
    ("missing", one("Concat", ["x", "x"]), LoadError, "attribute 'axis' is missing"),
    ("of wrong type", one("Concat", ["x", "x"], axis=1.5), LoadError, "attribute 'axis' has a wrong type"),
    ("unknown", one("Relu", ["x"], __class__="y"), LoadError, "unknown attribute '__class__'"),
    ("twice", lambda: graph([_twice()]), LoadError, "attribute 'axis' is defined twice"),
    ("axis -rank-1", one("Softmax", ["x"], axis=-3), ShapeError, "axis out of range, got -3"),
    ("axis too high", one("Softmax", ["x"], axis=2), ShapeError, "out of range, got 2"),
    ("reference outside", lambda: graph([_reference()]), LoadError, "outside of a function"),
    ("too many inputs", one("Relu", ["x", "x"]), LoadError, "wrong number of inputs, got 2"),
    ("too few inputs", one("Add", ["x"]), LoadError, "wrong number of inputs, got 1"),
    ("input left out", one("Add", ["x", ""]), LoadError, "input 1 is missing"),
    ("too many outputs", lambda: graph([node("Relu", ["x"], ["y", "z"])]), LoadError, "wrong number of outputs, got 2"),
    ("dtypes differ", one("Add", ["x", "i"], {"i": ints(1)}), ShapeError, "differ in dtype"),
    ("dtype refused", one("Sqrt", ["i"], {"i": ints(1)}), ShapeError, "wrong dtype"),
    ("shapes differ", one("Add", ["x", "w"], {"w": np.ones(4, np.float32)}), ShapeError, "do not broadcast"),
    ("rank 0 where 2", one("MatMul", ["x", "w"], {"w": np.float32(1)}), LoadError, "a scalar operand"),
    ("stride 0", conv(strides=[0, 1]), LoadError, "strides is [0, 1]"),
    ("stride 0, same", conv(strides=[0, 1], auto_pad="SAME_UPPER"), LoadError, "strides [0, 1]"),
    ("dilation 0", conv(dilations=[0, 1]), LoadError, "dilations is [0, 1]"),
    ("dilations short", conv(dilations=[1]), LoadError, "dilations is [1]"),
    ("pads huge", conv(pads=[10**10] * 4), LoadError, "pads is"),
    ("pads large", conv(pads=[10**9] * 4), LimitError, "the padded operand: too many elements"),
    ("pads negative", conv(pads=[-1] * 4), LoadError, "pads is"),
    ("group 0", conv(group=0), ShapeError, "groups"),
    ("group 3", conv(group=3), ShapeError, "groups"),
    ("kernel larger", conv(dilations=[9, 9]), ShapeError, "window larger"),
    ("kernel_shape of rank 1", conv(kernel_shape=[3]), LoadError, "kernel_shape"),
    ("auto_pad", conv(auto_pad="MOST"), LoadError, "auto_pad"),
    ("kernel of rank 3", one("MaxPool", ["x"], kernel_shape=[1, 1, 1]), LoadError, "does not fit"),
    ("reshape twice -1", one("Reshape", ["x", "s"], {"s": ints(-1, -1)}), ShapeError, "at most one dim may be -1"),
    ("reshape -2", one("Reshape", ["x", "s"], {"s": ints(-2, 3)}), ShapeError, "none below"),
    ("reshape 0 beyond", one("Reshape", ["x", "s"], {"s": ints(2, 3, 0)}), ShapeError, "does not exist"),
    ("reshape to 7", one("Reshape", ["x", "s"], {"s": ints(7)}), ShapeError, "element counts differ"),
    ("reshape -1 of 7", one("Reshape", ["x", "s"], {"s": ints(-1, 4)}), ShapeError, "element counts differ"),
    (
        "reshape -1 by 0",
        one("Reshape", ["x", "s"], {"s": ints(-1, 0)}, allowzero=1),
        ShapeError,
        "-1 next to a dim of 0",
    ),
    ("reshape wraps", one("Reshape", ["x", "s"], {"s": ints(2**62, 2**62)}), ShapeError, "element counts differ"),
    (
        "slice step 0",
        one("Slice", ["x", "a", "b", "c", "d"], {"a": ints(0), "b": ints(1), "c": ints(0), "d": ints(0)}),
        LoadError,
        "a step of 0",
    ),
    ("slice lengths", one("Slice", ["x", "a", "b"], {"a": ints(0), "b": ints(1, 1)}), LoadError, "differ in length"),
    ("slice axes", one("Slice", ["x", "a", "b", "c"], {"a": ints(0), "b": ints(1), "c": ints(5)}), ShapeError, "axes"),
    (
        "split sum",
        lambda: graph([node("Split", ["x", "s"], ["y", "z"])], constants=[("s", ints(1, 2))]),
        LoadError,
        "sizes sum to 3",
    ),
    (
        "split negative",
        lambda: graph([node("Split", ["x", "s"], ["y", "z"])], constants=[("s", ints(-1, 3))]),
        LoadError,
        "sizes do not fit",
    ),
    ("concat mismatch", one("Concat", ["x", "w"], {"w": np.ones((3, 4), np.float32)}, axis=0), ShapeError, "concat"),
    ("pad length", one("Pad", ["x", "p"], {"p": ints(1, 1)}), LoadError, "pads do not fit"),
    ("pad huge", one("Pad", ["x", "p"], {"p": ints(2**62, 0, 2**62, 0)}), LimitError, "too many elements"),
    ("pad cuts", one("Pad", ["x", "p"], {"p": ints(-9, 0, 0, 0)}), LoadError, "cut more than there is"),
    ("pad mode", one("Pad", ["x", "p"], {"p": ints(1, 0, 0, 0)}, mode="most"), LoadError, "'mode' is 'most'"),
    (
        "pad of nothing",
        one("Pad", ["w", "p"], {"w": np.ones((2, 0), np.float32), "p": ints(0, 1, 0, 0)}, mode="edge"),
        LoadError,
        "nothing to repeat",
    ),
    ("shift", one("BitShift", ["i", "i"], {"i": np.ones(2, np.uint8)}, direction="UP"), LoadError, "'direction' is"),
    ("norm of p", one("LpNormalization", ["x"], p=3), LoadError, "attribute 'p' is 3"),
    ("pool of p", one("LpPool", ["w"], {"w": IMAGE}, kernel_shape=[1, 1], p=0), LoadError, "attribute 'p' is 0"),
    ("channels", one("LRN", ["w"], {"w": IMAGE}, size=2**40), LoadError, "attribute 'size' is"),
    ("channels 0", one("LRN", ["w"], {"w": IMAGE}, size=0), LoadError, "attribute 'size' is 0"),
    ("no square", one("Det", ["x"]), ShapeError, "dims differ"),
    ("window huge", one("HannWindow", ["i"], {"i": np.array(2**62)}), LimitError, "too large"),
    ("window below 0", one("HannWindow", ["i"], {"i": np.array(-1)}), LoadError, "a size of -1"),
    ("range of NaN", one("Range", ["a", "a", "a"], {"a": np.float32(np.nan)}), LoadError, "malformed"),
    ("random huge", one("RandomNormal", [], shape=[2**30, 2**30]), LimitError, "too many elements"),
    ("random below 0", one("RandomUniform", [], shape=[-1]), LoadError, "negative dim"),
    ("random seed", one("RandomUniform", [], shape=[1], seed=float("inf")), LoadError, "attribute 'seed' is inf"),
    ("draws", one("Multinomial", ["x"], sample_size=0), LoadError, "sample_size is 0"),
    ("draws huge", one("Multinomial", ["x"], sample_size=2**60), LimitError, "too many elements"),
    ("ratio", one("Dropout", ["x", "r", "t"], {"r": np.float32(1), "t": np.array(True)}), LoadError, "a ratio of 1.0"),
    ("scatter by", scatter(ints(0)[None], reduction="most"), LoadError, "attribute 'reduction' is 'most'"),
    ("scatter more", scatter(ints(0, 1, 2, 0)[None]), ShapeError, "do not fit"),
    ("scatter tuples", one("ScatterND", ["x", "i", "x"], {"i": ints(0, 0, 0)[None]}), LoadError, "tuples of 3"),
    ("scatter shape", one("ScatterND", ["x", "i", "x"], {"i": ints(0)[None]}), ShapeError, "dims differ, got 2 and 1"),
    ("lengths", one("ReverseSequence", ["x", "n"], {"n": ints(1)}), ShapeError, "dims differ, got 1 and 3"),
    ("time and batch", one("ReverseSequence", ["x", "n"], {"n": ints(1, 1)}, time_axis=1), LoadError, "time_axis 1"),
    ("columns", one("Col2Im", ["w", "n", "k"], {"w": COLUMNS, "n": ints(9), "k": ints(2)}), LoadError, "does not fit"),
    (
        "columns huge",
        one("Col2Im", ["w", "n", "k"], {"w": COLUMNS, "n": ints(2**50), "k": ints(2)}),
        LimitError,
        "too many elements",
    ),
    (
        "unpooled",
        one("MaxUnpool", ["w", "i"], {"w": IMAGE, "i": ints(0)}, kernel_shape=[1, 1]),
        LoadError,
        "do not fit",
    ),
    (
        "blocksize 0",
        one("DepthToSpace", ["w"], {"w": np.ones((1, 4, 2, 2), np.float32)}, blocksize=0),
        LoadError,
        "blocksize",
    ),
    (
        "blocksize 2**32",
        one("DepthToSpace", ["w"], {"w": np.ones((1, 4, 2, 2), np.float32)}, blocksize=2**32),
        LoadError,
        "blocksize",
    ),
    ("transpose", one("Transpose", ["x"], perm=[0, 0]), ShapeError, "given twice"),
    ("transpose short", one("Transpose", ["x"], perm=[0]), ShapeError, "permute"),
    ("squeeze of 3", one("Squeeze", ["x", "a"], {"a": ints(1)}), ShapeError, "dim is not 1"),
    ("cast to nothing", one("Cast", ["x"], to=77), LoadError, "unknown dtype, got 77"),
    ("cast to complex", one("Cast", ["x"], to=14), UnsupportedError, "dtype COMPLEX64"),
    (
        "gather out of range",
        one("Gather", ["s", "i"], {"s": ints(1, 2), "i": ints(2)}),
        LoadError,
        "index out of range",
    ),
    (
        "topk too many",
        lambda: graph([node("TopK", ["x", "k"], ["y", "z"])], constants=[("k", ints(4))]),
        ShapeError,
        "topk",
    ),
    ("einsum", one("Einsum", ["x"], equation="ij->ik"), LoadError, "repeated or unknown"),
    ("einsum text", one("Einsum", ["x"], equation="".join("ij" * 500) + "%"), LoadError, "not an einsum equation"),
    (
        "heads",
        one(
            "MultiHeadAttention",
            ["w", "w", "w"],
            {"w": np.ones((1, 2, 6), np.float32)},
            num_heads=0,
            domain="com.microsoft",
        ),
        LoadError,
        "0 heads do not fit",
    ),
    (
        "heads 5",
        one(
            "MultiHeadAttention",
            ["w", "w", "w"],
            {"w": np.ones((1, 2, 6), np.float32)},
            num_heads=5,
            domain="com.microsoft",
        ),
        LoadError,
        "5 heads do not fit",
    ),
    (
        "groups",
        one(
            "GroupNormalization",
            ["w", "v", "v"],
            {"w": np.ones((1, 4, 2), np.float32), "v": np.ones(4, np.float32)},
            num_groups=3,
            opset=21,
        ),
        ShapeError,
        "groups",
    ),
    (
        "condition of many",
        lambda: graph([_if("b")], inputs=[X, value_info("b", np.array([True, False]))]),
        ShapeError,
        "bad condition",
    ),
]


def empty(*dims: int) -> TensorProto:
    """A tensor z without elements."""
    return TensorProto(name="z", data_type=TensorProto.INT64, dims=dims)


BOMBS: list[Attack] = [
    (
        "rows of nothing, summed",
        lambda: graph([node("ReduceSum", ["z", "a"], ["y"])], constants=[empty(2**36, 0), ("a", ints(1))]),
        LimitError,
        "constants too large",
    ),
    (
        "dims beside 0",
        lambda: graph([node("Abs", ["z"], ["y"])], constants=[empty(2**30, 0, 2**30)]),
        LimitError,
        "too",
    ),
    (
        "dims beside 0, made",
        one("ConstantOfShape", ["s"], {"s": ints(0, 2**30, 2**30)}),
        LimitError,
        "too large",
    ),
    (
        "many constants",
        lambda: graph(
            [node("Expand", ["w", "s"], ["h0"]), *(node("Exp", [f"h{i}"], [f"h{i + 1}"]) for i in range(20))],
            outputs=[onnx.ValueInfoProto(name="h20")],
            constants=[("w", np.float32(1)), ("s", ints(2**12, 2**13))],
        ),
        LimitError,
        "constants too large",
    ),
    ("pads and strides", conv(pads=[2**30] * 4, strides=[2**30] * 2), LimitError, "the padded operand"),
    ("expand", one("Expand", ["w", "s"], {"w": np.float32(1), "s": ints(2**20, 2**21)}), LimitError, "too large"),
    ("expand of input", one("Expand", ["x", "s"], {"s": ints(2**40, 2, 3)}), LimitError, "too large"),
    ("expand wraps", one("Expand", ["w", "s"], {"w": np.float32(1), "s": ints(2**32, 2**32)}), LimitError, "too large"),
    ("tile", one("Tile", ["w", "s"], {"w": np.ones(3, np.float32), "s": ints(2**40)}), LimitError, "too large"),
    (
        "range",
        one("Range", ["a", "b", "c"], {"a": np.array(0), "b": np.array(2**60), "c": np.array(1)}),
        LimitError,
        "too large",
    ),
    (
        "float range",
        one("Range", ["a", "b", "c"], {"a": np.float32(0), "b": np.float32(1e30), "c": np.float32(1e-30)}),
        LimitError,
        "too large",
    ),
    ("constant of shape", one("ConstantOfShape", ["s"], {"s": ints(2**20, 2**20)}), LimitError, "too large"),
    (
        "one hot",
        one("OneHot", ["i", "d", "v"], {"i": ints(1), "d": np.array(2**50), "v": np.ones(2, np.float32)}),
        LimitError,
        "too large",
    ),
    (
        "eye",
        one("EyeLike", ["z"], inputs=[X, helper.make_tensor_value_info("z", 1, [2**19, 2**19])]),
        LimitError,
        "too large",
    ),
    ("squared", lambda: squared(60), ShapeError, "got [2, 3] and [4611686018427387905]"),
    ("squared symbol", lambda: squared_symbol(30), LimitError, "expression is too long"),
    (
        "matmul",
        one("MatMul", ["z", "z"], inputs=[X, helper.make_tensor_value_info("z", 1, [2**19, 1, 2**19, 1])]),
        ShapeError,
        "matmul",
    ),
]


def _twice() -> onnx.NodeProto:
    made = node("Softmax", ["x"], ["y"], axis=1)
    made.attribute.append(made.attribute[0])
    return made


def _reference() -> onnx.NodeProto:
    made = node("Softmax", ["x"], ["y"], axis=1)
    made.attribute[0].ref_attr_name = "axis"
    return made


def _if(condition: str) -> onnx.NodeProto:
    body = helper.make_graph([node("Abs", ["x"], ["r"])], "body", [], [onnx.ValueInfoProto(name="r")])
    other = helper.make_graph([node("Neg", ["x"], ["q"])], "body", [], [onnx.ValueInfoProto(name="q")])
    return node("If", [condition], ["y"], then_branch=body, else_branch=other)

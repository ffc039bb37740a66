"""Mutants of small ONNX models, by seed: fields changed to what files lie about, and bytes changed at any place.

What a mutant may do is judged elsewhere, by `onnx_survival`.
"""

import functools
import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_cases import NODES, SYMBOLIC
from onnx_models import model, one_node, text_model, value_info

MAX_MUTATIONS = 3
SIZES = (0, 1, 2, 3, 7, -1, -2, 64, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
REALS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
OPSETS = (1, 6, 9, 11, 12, 13, 17, 18, 20, 21, 23, 24)
DTYPES = (*range(24), 9999)

Chance = random.Random
Mutation = Callable[[onnx.ModelProto, Chance], None]


@functools.cache
def originals() -> list[bytes]:
    """Real models: every case of a rule with its inputs fed and with them as constants, and symbolic ones."""
    found = [text_model(body) for body in SYMBOLIC.values()]
    for case in NODES:
        proto, feeds = one_node(case, np.random.default_rng(0))
        found.append(proto.SerializeToString())
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in feeds.items())
        del proto.graph.input[:]
        found.append(proto.SerializeToString())
    return found


@functools.cache
def operators() -> list[str]:
    """The op types of all cases."""
    return sorted({case.op for case in NODES})


def mutant(seed: int) -> bytes:
    """The mutant of a seed."""
    chance = random.Random(seed)
    content = chance.choice(originals())
    if chance.random() < 0.2:
        return _changed_bytes(content, chance)
    proto = onnx.load_from_string(content)
    for _ in range(chance.randint(1, MAX_MUTATIONS)):
        chance.choice(MUTATIONS)(proto, chance)
    return proto.SerializeToString()


def _changed_bytes(content: bytes, chance: Chance) -> bytes:
    """Bits flipped, and runs of bytes removed, repeated and replaced."""
    data = bytearray(content)
    for _ in range(chance.randint(1, MAX_MUTATIONS)):
        start, size = chance.randrange(len(data)), chance.randint(1, 12)
        match chance.randrange(5):
            case 0 | 1:
                data[start] ^= 1 << chance.randrange(8)
            case 2:
                del data[start : start + size]
            case 3:
                data[start:start] = data[start : start + size]
            case 4:
                data[start : start + size] = chance.choice((chance.randbytes(size), b"\xff" * size, b"\0" * size))
        if not data:
            break
    return bytes(data)


def _pick(items: Sequence, chance: Chance):  # type: ignore[no-untyped-def]
    return chance.choice(items) if len(items) else None


def _names(proto: onnx.ModelProto) -> list[str]:
    graph = proto.graph
    made = [name for node in graph.node for name in node.output]
    return [*(i.name for i in graph.input), *(t.name for t in graph.initializer), *made, "", "nowhere"]


def _declared_dim(proto: onnx.ModelProto, chance: Chance) -> None:
    info = _pick([*proto.graph.input, *proto.graph.output], chance)
    if info is None:
        return
    dims = info.type.tensor_type.shape.dim
    dim = _pick(dims, chance)
    match chance.randrange(5):
        case 0 if dim is not None:
            dims.remove(dim)
        case 1:
            dims.add().dim_value = chance.choice(SIZES)
        case 2 if dim is not None:
            dim.dim_param = chance.choice(("n", "m", "n + 1", "2*n", "n//2", "", "?", "min(n, 2)", "\u00e4"))
        case _ if dim is not None:
            dim.dim_value = chance.choice(SIZES)


def _declared_dtype(proto: onnx.ModelProto, chance: Chance) -> None:
    info = _pick([*proto.graph.input, *proto.graph.output], chance)
    if info is not None:
        info.type.tensor_type.elem_type = chance.choice(DTYPES)


def _tensors(proto: onnx.ModelProto) -> list[TensorProto]:
    attributes = [a.t for node in proto.graph.node for a in node.attribute if a.HasField("t")]
    return [*proto.graph.initializer, *attributes]


def _tensor_dims(proto: onnx.ModelProto, chance: Chance) -> None:
    tensor = _pick(_tensors(proto), chance)
    if tensor is None:
        return
    dims = list(tensor.dims)
    match chance.randrange(4):
        case 0:
            dims.insert(chance.randint(0, len(dims)), chance.choice((1, 1, *SIZES)))
        case 1 if dims:
            dims.pop(chance.randrange(len(dims)))
        case 2 if dims:
            dims[chance.randrange(len(dims))] = chance.choice(SIZES)
        case 3:  # an array without elements, and dims that hide it
            dims = [
                chance.choice((0, min(abs(size), 2**63 - 1))) for size in chance.choices(SIZES, k=chance.randint(0, 3))
            ] + [0]
            tensor.ClearField("raw_data")
    del tensor.dims[:]
    tensor.dims.extend(dims)


def _tensor_dtype(proto: onnx.ModelProto, chance: Chance) -> None:
    tensor = _pick(_tensors(proto), chance)
    if tensor is not None:
        tensor.data_type = chance.choice(DTYPES)


def _tensor_elements(proto: onnx.ModelProto, chance: Chance) -> None:
    """One element, of the tensor's own dtype; other fields of it become raw_data."""
    tensor = _pick(_tensors(proto), chance)
    if tensor is None:
        return
    try:
        array = numpy_helper.to_array(tensor).copy()
    except (TypeError, ValueError, KeyError, RuntimeError):  # mutated before
        return
    if array.size == 0 or array.dtype.kind not in "iufb":
        return
    with np.errstate(all="ignore"):
        value = np.array(chance.choice(REALS if array.dtype.kind == "f" else SIZES)).astype(array.dtype)
    array.ravel()[chance.randrange(array.size)] = value
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _operand(proto: onnx.ModelProto, chance: Chance) -> None:
    node = _pick(proto.graph.node, chance)
    if node is None:
        return
    names = list(node.input)
    match chance.randrange(4):
        case 0 if names:
            names[chance.randrange(len(names))] = chance.choice(("", *_names(proto)))
        case 1 if names:
            names.pop(chance.randrange(len(names)))
        case 2:
            names.append(chance.choice(_names(proto)))
        case 3:
            chance.shuffle(names)
    del node.input[:]
    node.input.extend(names)


def _constant_operand(proto: onnx.ModelProto, chance: Chance) -> None:
    """An operand that is a few known integers."""
    node = _pick(proto.graph.node, chance)
    if node is None or not node.input:
        return
    dtype = chance.choice((np.int64, np.int64, np.int32, np.uint8, np.bool_))
    shape = chance.choice(((), (1,), (1,), (2,), (3,), (4,), (0,), (2, 2), (0, 2**20), (2**30, 0)))
    count = 0 if 0 in shape else int(np.prod(shape, dtype=int))
    with np.errstate(all="ignore"):
        array = np.array([chance.choice(SIZES) for _ in range(count)], np.int64).astype(dtype).reshape(shape)
    name = f"known{len(proto.graph.initializer)}"
    proto.graph.initializer.append(numpy_helper.from_array(array, name))
    node.input[chance.randrange(len(node.input))] = name


def _attribute(proto: onnx.ModelProto, chance: Chance) -> None:
    node = _pick(proto.graph.node, chance)
    attribute = None if node is None else _pick(node.attribute, chance)
    if attribute is None:
        return
    match chance.randrange(8):
        case 0:
            node.attribute.remove(attribute)
        case 1:
            attribute.name = chance.choice(("axis", "axes", "perm", "pads", "k", ""))
        case 2:
            attribute.type = chance.choice(onnx.AttributeProto.AttributeType.values())
        case 3:
            attribute.s = chance.choice((b"", b"SAME_UPPER", b"reflect", b"\xff", b"ij,jk->ik", b"i" * 200))
        case 4:
            attribute.f = chance.choice(REALS)
        case _ if attribute.ints:
            attribute.ints[chance.randrange(len(attribute.ints))] = chance.choice(SIZES)
        case _:
            attribute.i = chance.choice(SIZES)


def _added_attribute(proto: onnx.ModelProto, chance: Chance) -> None:
    node = _pick(proto.graph.node, chance)
    if node is None:
        return
    schemas = [s for s in onnx.defs.get_all_schemas() if s.name == node.op_type]
    names = [*schemas[0].attributes] if schemas else []
    value = chance.choice((chance.choice(SIZES), chance.choice(REALS), chance.choices(SIZES, k=2), "text"))
    node.attribute.append(helper.make_attribute(chance.choice((*names, "axis")), value))


def _operator(proto: onnx.ModelProto, chance: Chance) -> None:
    node = _pick(proto.graph.node, chance)
    if node is None:
        return
    match chance.randrange(3):
        case 0:
            node.domain = chance.choice(("", "ai.onnx", "com.microsoft", "elsewhere"))
        case _:
            node.op_type = chance.choice(operators())


def _nodes(proto: onnx.ModelProto, chance: Chance) -> None:
    node = _pick(proto.graph.node, chance)
    if node is None:
        return
    match chance.randrange(4):
        case 0:
            proto.graph.node.remove(node)
        case 1:
            proto.graph.node.add().CopyFrom(node)
        case 2 if node.output:
            node.output[0] = chance.choice(_names(proto))
        case _:  # another node reads what this one makes, and is the output instead
            if node.output and proto.graph.output:
                follower = proto.graph.node.add()
                follower.op_type = chance.choice(operators())
                follower.input.extend([node.output[0], *chance.choices(_names(proto), k=chance.randrange(3))])
                follower.output.append("followed")
                proto.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="followed"))


def _opset(proto: onnx.ModelProto, chance: Chance) -> None:
    entry = _pick(proto.opset_import, chance)
    if entry is not None:
        entry.version = chance.choice(OPSETS)


def _name(proto: onnx.ModelProto, chance: Chance) -> None:
    named = _pick([*proto.graph.input, *proto.graph.output, *proto.graph.initializer], chance)
    if named is not None:
        named.name = chance.choice(("", "x", "result0", "a b", "\u00e4", "y" * 2000))


def _input_becomes_constant(proto: onnx.ModelProto, chance: Chance) -> None:
    """And a constant an input of that type."""
    tensor = _pick(proto.graph.initializer, chance)
    if tensor is None:
        return
    try:
        proto.graph.input.append(value_info(tensor.name, numpy_helper.to_array(tensor)))
    except (TypeError, ValueError, KeyError, RuntimeError):  # mutated before
        return
    proto.graph.initializer.remove(tensor)


def _folded(proto: onnx.ModelProto, chance: Chance) -> None:
    """The output of a constant expression of a few large dims."""
    proto.CopyFrom(_bomb(chance))


def _bomb(chance: Chance) -> onnx.ModelProto:
    shape = np.array(chance.choices((1, 2, 2**8, 2**16, 2**20, 2**31), k=chance.randint(1, 3)), np.int64)
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["h0"])]
    operations = chance.choices(("Exp", "Neg", "Cumulated", "Transpose", "Softmax", "ReduceSum", "Tile"), k=3)
    for i, op in enumerate(operations):
        names = {"Cumulated": ["CumSum", f"h{i}", "a"], "Tile": ["Tile", f"h{i}", "s"]}.get(op, [op, f"h{i}"])
        nodes.append(helper.make_node(names[0], names[1:], [f"h{i + 1}"]))
    constants = [numpy_helper.from_array(shape, "s"), numpy_helper.from_array(np.array(0), "a")]
    outputs = [onnx.ValueInfoProto(name=f"h{len(operations)}")]
    return model(helper.make_graph(nodes, "bomb", [], outputs, constants))


MUTATIONS: tuple[Mutation, ...] = (
    *(_declared_dim, _declared_dim, _declared_dtype, _tensor_dims, _tensor_dtype, _tensor_elements, _tensor_elements),
    *(_operand, _operand, _constant_operand, _constant_operand, _attribute, _attribute, _added_attribute, _operator),
    *(_nodes, _opset, _name, _input_becomes_constant, _folded),
)

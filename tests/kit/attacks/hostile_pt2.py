"""Hostile .pt2 files, each with the error that it must get: (name, builder, error type, fragment of the message).

A builder writes model.pt2 into a folder. What would run makes a file called `ran` there.
"""

import functools
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ingot.errors import IngotError, LimitError, LoadError, UnsupportedError

Attack = tuple[str, Callable[[Path], None], type[IngotError], str]

CONSTANTS_CONFIG, WEIGHTS_CONFIG = (
    "data/constants/model_constants_config.json",
    "data/weights/model_weights_config.json",
)
PROGRAM, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"


class Small(nn.Module):
    """Weights, a constant, a state and a dynamic size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(3))
        self.scale = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.seen.add_(1)
        with torch.no_grad():
            rows = torch.relu(self.linear(x)) * self.scale
        return {"rows": rows + self.seen, "flat": [x.reshape(-1), x.shape[0] * 2]}


@functools.cache
def records() -> dict[str, bytes]:
    """Name -> content of the records of the small model's file."""
    torch.manual_seed(0)
    sizes = ({0: torch.export.Dim("rows", max=64)},)
    saved = io.BytesIO()
    torch.export.save(torch.export.export(Small(), (torch.ones(2, 4),), dynamic_shapes=sizes, strict=False), saved)
    with zipfile.ZipFile(saved) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(path: Path | io.BytesIO, content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, each in content.items():
            archive.writestr(f"archive/{name}", each)


class Payload:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return open, (str(self.path), "w")


def pickled(folder: Path) -> bytes:
    """What torch.save writes of such an object."""
    content = io.BytesIO()
    torch.save((Payload(folder / "ran"),), content)
    return content.getvalue()


def bare(folder: Path) -> bytes:
    """The same without torch's container."""
    return pickle.dumps(Payload(folder / "ran"))


def code(folder: Path) -> str:
    """An expression that makes the file."""
    return f"__import__('os').close(__import__('os').open({str(folder / 'ran')!r}, 65, 511))"


def with_records(change: Callable[[dict[str, bytes], Path], Any], **rest: Any) -> Callable[[Path], None]:
    """The small model's file after `change` of its records, given the folder too."""

    def build(folder: Path) -> None:
        content = dict(records())
        change(content, folder)
        write(folder / "model.pt2", content, **rest)

    return build


def with_bytes(**contents: bytes) -> Callable[[Path], None]:
    """The small model's file with the contents of weights replaced."""
    return with_records(lambda content, _: content.update({f"data/weights/{name}": c for name, c in contents.items()}))


def with_pickle(config: str, record: str, write_pickle: Callable[[Path], bytes]) -> Callable[[Path], None]:
    """The tensors of a kind, pickled; their record is called `record`."""

    def change(content: dict[str, bytes], folder: Path) -> None:
        document = json.loads(content[config])
        for payload in document["config"].values():
            payload |= {"path_name": record, "use_pickle": True}
        content[config] = json.dumps(document).encode()
        content[f"{Path(config).parent}/{record}"] = write_pickle(folder)

    return with_records(change)


def with_json(record: str, change: Callable[[Any, Path], Any]) -> Callable[[Path], None]:
    """The small model's file after `change` of one of its JSON documents."""

    def rewritten(content: dict[str, bytes], folder: Path) -> None:
        document = json.loads(content[record])
        change(document, folder)
        content[record] = json.dumps(document).encode()

    return with_records(rewritten)


def with_graph(change: Callable[[Any, Path], Any]) -> Callable[[Path], None]:
    return with_json(PROGRAM, lambda document, folder: change(document["graph_module"]["graph"], folder))


def with_tensor(record: str, name: str, **fields: Any) -> Callable[[Path], None]:
    """Fields of a tensor's description replaced: of the payload, or of its `tensor_meta`."""

    def change(document: Any, _: Path) -> None:
        payload = document["config"][name]
        for field, value in fields.items():
            (payload if field in payload else payload["tensor_meta"])[field] = value

    return with_json(record, change)


def with_expression(text: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(graph: Any, folder: Path) -> None:
        graph["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": text(folder), "hint": {"as_int": 2}}}

    return with_graph(change)


def with_target(target: str, **argument: Any) -> Callable[[Path], None]:
    """The first node calls something else, on one argument if that is given."""

    def change(graph: Any, folder: Path) -> None:
        node = graph["nodes"][0]
        node["target"] = target
        if argument:
            node["inputs"] = [{"name": "", "arg": argument, "kind": 1}]

    return with_graph(change)


def with_tree(spec: Any) -> Callable[[Path], None]:
    """Another tree specification of the outputs; its module, if it names one, is in the folder."""

    def change(document: Any, folder: Path) -> None:
        (folder / "hostile_module.py").write_text(code(folder))
        sys.path.insert(0, str(folder))
        document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, spec])

    return with_json(PROGRAM, change)


def renamed(text: str, to: Callable[[Path], str]) -> Callable[[Path], None]:
    """A name replaced wherever the program has it."""

    def change(content: dict[str, bytes], folder: Path) -> None:
        name = json.dumps(to(folder)).encode()
        content[PROGRAM] = content[PROGRAM].replace(json.dumps(text).encode(), name)

    return with_records(change)


def overlapping(folder: Path) -> None:
    """Two entries of the directory over the same bytes."""
    write(folder / "model.pt2", dict(records()))
    with zipfile.ZipFile(folder / "model.pt2", "a") as archive:
        for i in range(40):
            copy = zipfile.ZipInfo(f"archive/copy_{i}")
            first = max(archive.infolist(), key=lambda entry: entry.file_size)
            for field in ("header_offset", "compress_size", "file_size", "CRC"):
                setattr(copy, field, getattr(first, field))
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
        archive._didModify = True  # type: ignore[attr-defined]


def twice(folder: Path) -> None:
    write(folder / "model.pt2", dict(records()))
    content = (folder / "model.pt2").read_bytes()
    name, other = b"archive/data/weights/weight_0", b"archive/data/weights/weight_1"
    (folder / "model.pt2").write_bytes(content.replace(name, other))


ARCHIVES: list[Attack] = [
    (
        "weights torch-saved",
        with_records(lambda c, f: c.update({"data/weights/model.pt": pickled(f)}) or c.pop(WEIGHTS_CONFIG)),
        LoadError,
        "missing 'data/weights/model_weights_config.json'",
    ),
    ("pickled weights", with_pickle(WEIGHTS_CONFIG, "weight_0", pickled), UnsupportedError, "is pickled"),
    ("pickled constants", with_pickle(CONSTANTS_CONFIG, "tensor_0", pickled), UnsupportedError, "is pickled"),
    ("opaque constants", with_pickle(CONSTANTS_CONFIG, "opaque_obj_0", bare), UnsupportedError, "is pickled"),
    ("custom objects", with_pickle(CONSTANTS_CONFIG, "custom_obj_0", pickled), UnsupportedError, "is pickled"),
    (
        "compressed records",
        with_records(
            lambda c, f: c.update({"data/weights/weight_0": bytes(1 << 24)}), compression=zipfile.ZIP_DEFLATED
        ),
        LoadError,
        "is compressed",
    ),
    ("overlapping records", overlapping, LimitError, "in a file of"),
    ("two records of one name", twice, LoadError, "records of the same name"),
    (
        "another archive",
        with_records(lambda c, f: c.update({"archive_format": b"zip"})),
        LoadError,
        "got another archive",
    ),
    ("no program", with_records(lambda c, f: c.pop(PROGRAM)), LoadError, "missing 'models/model.json'"),
    (
        "no weight",
        with_records(lambda c, f: c.pop("data/weights/weight_0")),
        LoadError,
        "missing 'data/weights/weight_0'",
    ),
    ("a weight cut short", with_bytes(weight_0=bytes(8)), LimitError, "got 2 elements"),
    ("part of an element", with_bytes(weight_0=bytes(47)), LoadError, "expected elements of 4"),
    (
        "another byte order",
        with_records(lambda c, f: c.update({"byteorder": b"middle"})),
        UnsupportedError,
        "bytes in another order",
    ),
]

TENSORS: list[Attack] = [
    (
        "a huge weight of one element",
        with_tensor(
            WEIGHTS_CONFIG,
            "linear.weight",
            sizes=[{"as_int": 1 << 40}, {"as_int": 4}],
            strides=[{"as_int": 0}, {"as_int": 1}],
        ),
        LimitError,
        "expected at most",
    ),
    (
        "a weight beyond its record",
        with_tensor(WEIGHTS_CONFIG, "linear.weight", storage_offset={"as_int": 1}),
        LimitError,
        "from 1, got 12 elements",
    ),
    (
        "a negative stride",
        with_tensor(WEIGHTS_CONFIG, "linear.weight", strides=[{"as_int": 4}, {"as_int": -1}]),
        LoadError,
        "expected numbers from 0",
    ),
    (
        "fewer strides than sizes",
        with_tensor(WEIGHTS_CONFIG, "linear.weight", strides=[{"as_int": 4}]),
        LoadError,
        "not an exported program",
    ),
    (
        "a symbolic size",
        with_tensor(WEIGHTS_CONFIG, "linear.weight", storage_offset={"as_expr": {"expr_str": "Symbol('s0')"}}),
        LoadError,
        "expected numbers from 0",
    ),
    ("a sparse weight", with_tensor(WEIGHTS_CONFIG, "linear.weight", layout=1), UnsupportedError, "layout SparseCoo"),
    ("an unknown dtype", with_tensor(WEIGHTS_CONFIG, "linear.weight", dtype=99), LoadError, "expected ScalarType"),
    (
        "a record elsewhere",
        with_tensor(WEIGHTS_CONFIG, "linear.weight", path_name="../../../etc/passwd"),
        LoadError,
        "missing",
    ),
    ("no description", with_tensor(WEIGHTS_CONFIG, "linear.weight", tensor_meta=None), UnsupportedError, "is pickled"),
    ("a fake weight of zero bytes", with_bytes(weight_0=b""), LimitError, "got 0 elements"),
]

EXPRESSIONS: list[Attack] = [
    ("code in a size", with_expression(code), LoadError, "not an expression"),
    ("a function of Python", with_expression(lambda f: f"eval({code(f)!r})"), UnsupportedError, "function 'eval'"),
    ("code in a list of sizes", with_expression(lambda f: [code(f)]), LoadError, "expected str"),
    ("code in a symbol's name", with_expression(lambda f: f"Symbol({code(f)!r})"), LoadError, "not an expression"),
    ("code in an argument", with_expression(lambda f: f"Integer({code(f)})"), LoadError, "not an expression"),
    (
        "code in an assumption",
        with_expression(lambda f: f"Symbol('s0', integer={code(f)})"),
        LoadError,
        "not an expression",
    ),
    ("an attribute", with_expression(lambda f: "Integer.__subclasses__()"), LoadError, "not an expression"),
    (
        "a function of sympy that parses",
        with_expression(lambda f: f"sympify({code(f)!r})"),
        UnsupportedError,
        "function 'sympify'",
    ),
    ("a lambda", with_expression(lambda f: f"(lambda: {code(f)})()"), LoadError, "not an expression"),
    ("a huge integer", with_expression(lambda f: f"Integer({1 << 70})"), LimitError, "71 bits"),
    (
        "a tower of powers",
        with_expression(lambda f: "Pow(Integer(10), Pow(Integer(10), Integer(8)))"),
        LimitError,
        "power",
    ),
    (
        "powers of powers",
        with_expression(lambda f: "Pow(" * 9 + "Symbol('s0')" + ", Integer(8))" * 9),
        LimitError,
        "power",
    ),
    (
        "a huge power by another name",
        with_expression(lambda f: "PowByNatural(Integer(10), Integer(1000000000))"),
        LimitError,
        "power",
    ),
    ("a deep expression", with_expression(lambda f: "Add(" * 3000 + ")" * 3000), LoadError, "not an expression"),
    ("a long expression", with_expression(lambda f: f"Add({'Integer(1), ' * 4000})"), LimitError, "characters"),
    (
        "a division by zero",
        with_expression(lambda f: "FloorDiv(Symbol('s0', integer=True), Integer(0))"),
        LoadError,
        "not an expression",
    ),
]

PROGRAMS: list[Attack] = [
    ("code in a node's name", renamed("add_", lambda f: f"a=({code(f)})"), LoadError, "expected a Python identifier"),
    ("code in an input's name", renamed("x", lambda f: f"x={code(f)}"), LoadError, "expected a Python identifier"),
    (
        "code in an input's name, by lines",
        renamed("x", lambda f: f"x):\n  pass\n{code(f)}\ndef g(x"),
        LoadError,
        "expected a Python identifier",
    ),
    ("a keyword as a name", renamed("x", lambda f: "lambda"), LoadError, "expected a Python identifier"),
    (
        "a function below torch",
        with_target("torch.os.system", as_string="touch ran"),
        UnsupportedError,
        "got torch.os.system",
    ),
    ("a function of torch", with_target("torch.load", as_string="model.pt2"), UnsupportedError, "got torch.load"),
    ("a function of operator", with_target("_operator.methodcaller"), UnsupportedError, "got _operator.methodcaller"),
    ("an op that maps a file", with_target("torch.ops.aten.from_file.default"), UnsupportedError, "aten.from_file"),
    ("ops of an extension", with_target("#custom:op"), UnsupportedError, "got #custom:op"),
    (
        "a library of ops",
        with_target("torch.ops.load_library", as_string="hostile.so"),
        UnsupportedError,
        "load_library",
    ),
    ("control flow", with_target("torch.ops.higher_order.cond"), UnsupportedError, "higher_order.cond"),
    ("no op", with_target("torch.ops.aten.no_such_op.default"), UnsupportedError, "no_such_op"),
    (
        "an operator as an argument",
        with_graph(lambda g, f: g["nodes"][0]["inputs"][0].update(arg={"as_operator": "torch.os.system"})),
        UnsupportedError,
        "argument of kind 'as_operator'",
    ),
    (
        "a check as an argument of another op",
        with_graph(
            lambda g, f: g["nodes"][0]["inputs"][0].update(
                arg={"as_operator": "torch.ops.aten._linalg_check_errors.default"}
            )
        ),
        UnsupportedError,
        "argument of kind 'as_operator'",
    ),
    ("effects of a tensor", with_target("torch.ops.higher_order.with_effects"), LoadError, "not an exported program"),
    (
        "a custom object as an argument",
        with_graph(
            lambda g, f: g["nodes"][0]["inputs"][0].update(arg={"as_custom_obj": {"name": "x", "class_fqn": "os"}})
        ),
        UnsupportedError,
        "argument of kind 'as_custom_obj'",
    ),
    (
        "an enum of a module",
        with_tree(
            {
                "type": "builtins.dict",
                "context": '[{"__enum__": true, "fqn": "hostile_module:E", "name": "A"}]',
                "children_spec": [],
            }
        ),
        UnsupportedError,
        "expected tuples, lists and dicts",
    ),
    (
        "a default dict of a module",
        with_tree(
            {
                "type": "collections.defaultdict",
                "context": {
                    "default_factory_module": "hostile_module",
                    "default_factory_name": "os",
                    "dict_context": [],
                },
                "children_spec": [],
            }
        ),
        UnsupportedError,
        "expected tuples, lists and dicts",
    ),
    (
        "an unknown class",
        with_tree({"type": "os.system", "context": '"x"', "children_spec": []}),
        LoadError,
        "not registered",
    ),
    (
        "a deep tree",
        with_tree(json.loads('{"type": null, "context": null, "children_spec": [' * 100 + "]}" * 100)),
        LimitError,
        "nested too deep",
    ),
    ("deep JSON", with_records(lambda c, f: c.update({PROGRAM: b"[" * 100_000})), LimitError, "nested too deep"),
    ("no JSON", with_records(lambda c, f: c.update({PROGRAM: b"{"})), LoadError, "not JSON"),
    ("a list of programs", with_records(lambda c, f: c.update({PROGRAM: b"[]"})), LoadError, "expected a JSON object"),
    ("no graph", with_json(PROGRAM, lambda d, f: d.pop("graph_module")), LoadError, "missing 'graph_module'"),
    (
        "a list for a name",
        with_graph(lambda g, f: g["inputs"][0].update(as_tensor={"name": ["x"]})),
        LoadError,
        "expected str",
    ),
    (
        "two kinds of one argument",
        with_graph(lambda g, f: g["inputs"][0].update(as_int=1)),
        LoadError,
        "expected one of",
    ),
    (
        "an unknown kind of argument",
        with_graph(lambda g, f: g["inputs"].append({"as_code": "x"})),
        LoadError,
        "expected one of",
    ),
    (
        "a value used before it is made",
        with_graph(lambda g, f: g["nodes"].reverse()),
        LoadError,
        "not an exported program",
    ),
    (
        "a version of the future",
        with_json(PROGRAM, lambda d, f: d["schema_version"].update(major=99)),
        LoadError,
        "schema version",
    ),
    ("a huge integer", with_graph(lambda g, f: g["inputs"].append({"as_int": 1 << 90})), LimitError, "91 bits"),
    (
        "an unknown verifier",
        with_json(PROGRAM, lambda d, f: d.update(verifiers=["os"])),
        LoadError,
        "not an exported program",
    ),
]

ATTACKS = [*ARCHIVES, *TENSORS, *EXPRESSIONS, *PROGRAMS]

"""docs/from-onnxruntime.md: every public name of the installed onnxruntime, and what Ingot does under it.

`python tests/kit/ort_names.py` writes it anew.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime

import ingot
from ingot.ort.options import RUN_OPTIONS, SESSION_OPTIONS
from ingot.ort.tables import ACCEPTED, REFUSED

PATH = Path(__file__).parents[2] / "docs" / "from-onnxruntime.md"
REWRITE = "`python tests/kit/ort_names.py` writes it anew"
CLASSES = (
    "InferenceSession", "SessionOptions", "RunOptions", "IOBinding", "OrtValue", "OrtDevice", "NodeArg",
    "ModelMetadata", "GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder",
)  # fmt: skip
OPTIONS = {"SessionOptions": SESSION_OPTIONS, "RunOptions": RUN_OPTIONS}

HEAD = """\
# From ONNX Runtime

```python
import ingot as ort  # instead of: import onnxruntime as ort
```

For third-party code, run this before it is imported:

```python
import sys
import ingot

sys.modules["onnxruntime"] = ingot.ort
```

silero-vad, rapidocr's engine, magika, sentence-transformers' ONNX backend, and language models through optimum run in
this way with the same results; `tests/ort/test_clients.py` tests them (optimum-onnx 0.1 requires transformers 4).
Additional tools of ONNX Runtime, such as `onnxruntime.quantization`, work if ONNX Runtime is installed:
sentence-transformers uses them to export models in int8.

Intended differences:

- Ingot's options can be combined with ONNX Runtime's: `ort.InferenceSession("model.onnx", sess_options, threads=2)`.
- A list with numbers that the input's dtype cannot represent, such as 1.5 for an int64, is an error and is not
  truncated. Numbers, tuples, and tensors of torch and of other libraries with `__array__` or DLPack are accepted,
  too.
- Errors are Ingot's. `onnxruntime.capi.onnxruntime_pybind11_state` has them under the names that clients catch:
  `Fail` stands for every error, `InvalidArgument` is `ingot.InputError`, `InvalidGraph` and `InvalidProtobuf` are
  `ingot.LoadError`, `NoSuchFile` is also a `FileNotFoundError`, `NotImplemented` is `ingot.UnsupportedError`,
  `RuntimeException` is `ingot.ResourceError`. Wrong inputs are also a `ValueError`.
- A dim that `add_free_dimension_override_by_name` names and the model does not have is an error.
- Random ops draw other numbers than ONNX Runtime's, by the same rules: [random.md](random.md). Where ONNX leaves the
  behaviour open, Ingot behaves like ONNX Runtime: [onnx-choices.md](onnx-choices.md).
- An op without a kernel runs on numpy, with an `ingot.errors.ReferenceWarning`.

The tables list every public name of onnxruntime {version}. *works*: as in ONNX Runtime, with the stated differences;
*nothing*: accepted without effect, with a line on stderr at `INGOT_DEBUG=1`; *refused*: an `ingot.UnsupportedError`
that names the call.
"""


def public(scope: Any) -> list[str]:
    """The public names of a module or a class, but for modules that it imports."""
    names = (name for name in dir(scope) if not name.startswith("_"))
    return [name for name in names if not isinstance(getattr(scope, name), types.ModuleType)]


def scopes() -> Iterator[tuple[str, list[str]]]:
    """Each class that has a table, "" for the module, with the names of onnxruntime's."""
    yield "", [name for name in public(onnxruntime) if name != "import_capi_exception"]
    for name in CLASSES:
        cls = getattr(onnxruntime, name)
        if hasattr(cls, "__members__"):
            yield name, list(cls.__members__)
        else:
            yield name, public(cls)


def row(scope: str, name: str) -> tuple[str, str]:
    """The status of a name, and what Ingot does."""
    if name in ACCEPTED.get(scope, {}):
        return "nothing", ACCEPTED[scope][name]
    if name in REFUSED.get(scope, {}):
        return "refused", REFUSED[scope][name]
    if scope in OPTIONS and name in OPTIONS[scope]:
        effect = OPTIONS[scope][name].effect
        return ("works", effect) if effect else ("nothing", "")
    found = getattr(getattr(ingot.ort, scope) if scope else ingot.ort, name)
    if not callable(found) or isinstance(found, enum.Enum):
        return "works", ""
    text = inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0].replace("\n", " ").strip()
    return ("nothing" if text.startswith("Kept, without effect") else "works"), text


def document() -> str:
    """docs/from-onnxruntime.md."""
    parts = [HEAD.format(version=onnxruntime.__version__)]
    for scope, names in scopes():
        parts.append(f"\n## {scope or 'The module'}\n\n| call | status | here |\n|---|---|---|\n")
        parts += [f"| `{name}` | {' | '.join(row(scope, name))} |\n".replace("|  |", "| |") for name in names]
    return "".join(parts)


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")

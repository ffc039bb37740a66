"""WGSL as text: the functions of shaders/ that a kernel reaches, and accessors for the fields of its argument struct.

A body has `fn work(group: i32, lane: i32)` and accesses no buffer directly: for a pointer `x` it calls `at_x(i)`,
`int_x(i)`, `set_x(i, value)` and `has_x`, for a number `arg_n()`, for an array `arg_strides(i)`.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingot.ir.dim import AtMost
from ingot.lower.lowered import FAULT, Field, Pointer

SHADERS = Path(__file__).parents[2] / "shaders"
LANES = 64  # of a workgroup, in every kernel
PARAMETER_WORDS = 128  # of a step; steps begin at multiples of the 256 bytes that WebGPU aligns to
# The memory regions that a program binds by default, in the order of bindings after the parameters. WebGPU guarantees
# eight storage buffers.
REGIONS = ("arena0", "arena1", "arena2", "arena3", "inputs", "outputs", "weights", "state")
READ_ONLY = frozenset(("inputs", "weights"))
# Optional features of shaders, by WebGPU's name, and the name in WGSL's `enable` directive.
SUBGROUPS, F16 = "subgroups", "shader-f16"
FEATURES = {SUBGROUPS: "subgroups", F16: "f16"}
_LIBRARIES = (
    "attention", "elementwise", "epilogue", "gemv", "index", "integer", "paged", "offsets", "panels",
)  # fmt: skip
_NAME = re.compile(r"^(?:@\S+ )*(?:fn|var(?:<[^>]*>)?|const|alias) (\w+)", re.MULTILINE)
_MAIN = """@compute @workgroup_size(LANES)
fn main(
  @builtin(workgroup_id) id: vec3<u32>,
  @builtin(num_workgroups) count: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
) {{
  let group = i32(id.y * count.x + id.x);
{calls}
}}
"""


@dataclass(frozen=True, slots=True)
class Argument:
    """A field that a body accesses: a pointer, a number or numbers. count: elements of an array, 0 for a number.

    is_baked: whether the value is a constant in the text instead of a parameter.
    """

    name: str
    value: Field
    is_pointer: bool = False
    is_float: bool = False
    count: int = 0
    is_baked: bool = False

    @property
    def values(self) -> tuple[int | float, ...]:
        """The numbers of an argument that is not a pointer."""
        given = self.value if isinstance(self.value, tuple) else (self.value or 0,)
        return (*given, *[0] * (self.count - len(given)))  # type: ignore[arg-type, return-value]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of shaders/: its parameters' types by name, and the type of its result."""

    parameters: Mapping[str, str]
    result: str


@functools.cache
def functions() -> Mapping[str, Function]:
    """Return the functions of elementwise.wgsl, by name."""
    found = re.findall(r"^fn (\w+)\(([^)]*)\) -> (\w+)", _read("elementwise"), re.MULTILINE)
    return {
        name: Function(dict(each.split(": ") for each in inside.split(", ") if each), result)
        for name, inside, result in found
    }


def floating(value: float) -> str:
    """Return an f32 as WGSL with the same bits, infinities included."""
    return f"of_bits({struct.unpack('<I', struct.pack('<f', value))[0]:#010x}u)"


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel for a shader, which may contain several. bodies: files of shaders/. own: additional functions.

    regions: of each pointer that is not null. element: the type that pointers point to, unless a body reads integers.
    """

    bodies: Sequence[str]
    own: str
    arguments: Sequence[Argument]
    regions: Mapping[str, str]
    element: str = "f32"


def is_read_only(region: str) -> bool:
    """Return whether steps only read a region, which may be one of several, such as "weights1"."""
    return region.rstrip("0123456789") in READ_ONLY


def shader(parts: Sequence[Part], bindings: Sequence[str], features: Sequence[str] = ()) -> str:
    """Return the text of kernels that run in one dispatch; it is equal for steps that differ only in parameters.

    bindings: regions in the order of their numbers. features: the FEATURES that the kernels use; see `enabled` for the
    directive. The first parameters are the workgroups at which each kernel but the last ends; then the kernels'
    parameters follow.
    """
    declarations: dict[str, str] = {}
    shared, word = _of_any_kernel(bindings, features), len(parts) - 1
    for number, part in enumerate(parts):
        chunks = _reached(shared | _of_part(part, word))
        declarations |= chunks if len(parts) == 1 else _with_number(chunks, shared, number)
        word += _word_count(part.arguments)
    order = [*shared, *(name for name in declarations if name not in shared)]
    return "\n\n".join(
        [declarations[name] for name in order if name in declarations] + [_MAIN.format(calls=_calls(len(parts)))]
    )


def enabled(text: str, features: Sequence[str]) -> str:
    """Prepend the `enable` directives of features to a shader."""
    return "".join(f"enable {FEATURES[feature]};\n\n" for feature in features) + text


def _calls(parts: int) -> str:
    """Return the statements that select the kernel of a workgroup."""
    if parts == 1:
        return "  work(group, i32(lane));"
    task_ends = [f"bitcast<i32>({_word(number)})" for number in range(parts - 1)]
    begins = ["group", *(f"group - {end}" for end in task_ends)]
    tests = [f"if (group < {task_ends[0]}) ", *(f"else if (group < {end}) " for end in task_ends[1:]), "else "]
    return "\n".join(
        f"  {test}{{ work_{number}({begin}, i32(lane)); }}"
        for number, (test, begin) in enumerate(zip(tests, begins, strict=True))
    )


def _of_any_kernel(bindings: Sequence[str], features: Sequence[str]) -> dict[str, str]:
    """Return the declarations that any kernel may reach, by name."""
    chunks = {"LANES": f"const LANES: i32 = {LANES};"}
    chunks["parameters"] = f"@group(0) @binding(0) var<uniform> parameters: array<vec4<u32>, {PARAMETER_WORDS // 4}>;"
    for number, region in enumerate(bindings, 1):
        access = "read" if is_read_only(region) else "read_write"
        chunks[region] = f"@group(0) @binding({number}) var<storage, {access}> {region}: array<u32>;"
    term, count = ("f16", 8) if F16 in features else ("f32", 256)
    chunks |= {"Term": f"alias Term = {term};", "TERMS": f"const TERMS: i32 = {count};"}
    for library in (*_LIBRARIES, "subgroup" if SUBGROUPS in features else "group"):
        chunks |= _chunks(_read(library))
    return chunks


def _of_part(part: Part, word: int) -> dict[str, str]:
    """Return the declarations of a single kernel. word: the index of its first parameter."""
    chunks = {"T": f"alias T = {part.element};"} | _accessors(part.arguments, part.regions, word)
    for body in part.bodies:
        chunks |= _chunks(_read(body))
    return chunks | _chunks(part.own)


def _reached(chunks: Mapping[str, str]) -> dict[str, str]:
    """Return the declarations that a kernel needs."""
    reached: dict[str, None] = {}
    waiting = ["LANES", "parameters", "work"]
    for name in waiting:
        if name in chunks and name not in reached:
            reached[name] = None
            waiting += _mentioned(chunks[name])
    return {name: chunks[name] for name in chunks if name in reached}


def _mentioned(text: str) -> list[str]:
    return re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*", "", text))


def _with_number(chunks: Mapping[str, str], shared: Mapping[str, str], number: int) -> dict[str, str]:
    """Append a number to the names of declarations that only one kernel has, or that refer to such a declaration."""
    own = {name for name, text in chunks.items() if shared.get(name) != text}
    while more := {name for name in chunks.keys() - own if own.intersection(_mentioned(chunks[name]))}:
        own |= more
    names = re.compile(rf"\b({'|'.join(sorted(own))})\b")
    return {
        f"{name}_{number}" if name in own else name: names.sub(rf"\1_{number}", text) for name, text in chunks.items()
    }


def _word_count(arguments: Sequence[Argument]) -> int:
    return sum(1 if a.is_pointer else a.count or 1 for a in arguments if not a.is_baked)


def words(arguments: Sequence[Argument], element_offsets: Mapping[str, int]) -> list[int]:
    """Return the parameters of a step as bits; parameters that each run sets stay symbolic.

    element_offsets: the element offset in its region, for each pointer that is not null.
    """
    found: list[int] = []
    for argument in arguments:
        if argument.is_pointer:
            found.append(element_offsets.get(argument.name, 0))
        elif not argument.is_baked:
            found += [_bits(value, argument.is_float) for value in argument.values]
    return found


def _bits(value: float, is_float: bool) -> int:
    if is_float:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    assert -(2**31) <= value < 2**31, f"a parameter of 32 bits is {value}"
    return value if isinstance(value, AtMost) else int(value) & 0xFFFFFFFF


def _accessors(arguments: Sequence[Argument], regions: Mapping[str, str], word: int) -> dict[str, str]:
    declarations: dict[str, str] = {}
    for argument in arguments:
        if argument.is_pointer:
            declarations |= _pointer(argument, regions.get(argument.name), word)
            word += 1
            continue
        name, type = f"arg_{argument.name}", "f32" if argument.is_float else "i32"
        if argument.is_baked:
            declarations[name] = _baked(
                name, type, [floating(v) if argument.is_float else str(int(v)) for v in argument.values]
            )
            continue
        if argument.count:
            at = f"let w = u32(i) + {word}u;" if word else "let w = u32(i);"
            read = "parameters[w >> 2u][w & 3u]"
            declarations[name] = f"fn {name}(i: i32) -> {type} {{\n  {at}\n  return bitcast<{type}>({read});\n}}"
        else:
            declarations[name] = f"fn {name}() -> {type} {{ return bitcast<{type}>({_word(word)}); }}"
        word += argument.count or 1
    return declarations


def _baked(name: str, type: str, values: list[str]) -> str:
    if len(values) == 1:
        return f"fn {name}() -> {type} {{ return {values[0]}; }}"
    known = f"var known = array<{type}, {len(values)}>({', '.join(values)});"
    return f"fn {name}(i: i32) -> {type} {{\n  {known}\n  return known[i];\n}}"


def _word(number: int) -> str:
    return f"parameters[{number // 4}].{'xyzw'[number % 4]}"


def _pointer(argument: Argument, region: str | None, word: int) -> dict[str, str]:
    name = argument.name
    declarations = {f"has_{name}": f"const has_{name}: bool = {'false' if region is None else 'true'};"}
    for prefix, type in (("at", "T"), ("int", "i32")):
        setter = f"set_{name}" if prefix == "at" else f"set_int_{name}"
        if region is None:
            declarations[f"{prefix}_{name}"] = f"fn {prefix}_{name}(i: i32) -> {type} {{ return {type}(); }}"
            declarations[setter] = f"fn {setter}(i: i32, value: {type}) {{}}"
            continue
        element = f"{region}[u32(i + i32({_word(word)}))]"
        declarations[f"{prefix}_{name}"] = (
            f"fn {prefix}_{name}(i: i32) -> {type} {{ return bitcast<{type}>({element}); }}"
        )
        if not is_read_only(region):
            declarations[setter] = f"fn {setter}(i: i32, value: {type}) {{ {element} = bitcast<u32>(value); }}"
    return declarations


def pointers(arguments: Sequence[Argument]) -> dict[str, Pointer]:
    """Return the pointers that are not null, by name; the fault slot has a separate location."""
    found = {a.name: a.value for a in arguments if isinstance(a.value, Pointer)}
    return {name: value for name, value in found.items() if value.tensor != FAULT}


@functools.cache
def _read(name: str) -> str:
    return (SHADERS / f"{name}.wgsl").read_text(encoding="utf-8")


def _chunks(text: str) -> dict[str, str]:
    """Split a text into declarations by name, each with the comments above it; only blank lines separate them."""
    parts = [part.strip("\n") for part in text.split("\n\n")]
    return {match[1]: part for part in parts if (match := _NAME.search(part))}

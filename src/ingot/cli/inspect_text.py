"""Print inspection documents as text. The text contains no fact that is missing in the document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ingot.cli.terminal import fits, human_bytes, print_facts, print_folded, print_table, print_text

_STAGES = {
    "graph": "as loaded", "optimized": "after the passes", "lowered": "as kernel calls", "plan": "as planned"
}  # fmt: skip
_FORMATS = {
    "onnx": "ONNX", "pt2": "exported by torch", "folder": "Hugging Face folder", "gguf": "GGUF",
    "program": "saved program",
}  # fmt: skip
_HOW = {
    "same": "stays", "rewritten": "is now", "fused": "is part of", "constant": "is folded into", "step": "runs in",
    "reference": "runs on the reference in",
}  # fmt: skip
# The most of each that is shown:
_PORTS = {"inputs": 16, "outputs": 16, "states": 2}
_LISTED = 16  # operands, results, attributes and later forms of a node
_MODULES = 32  # rows of a module tree
_NAMED = 8  # names in a row
_CHARACTERS = 60  # characters of a metadata value
_ATTRIBUTE = 240  # characters of an attribute
_BAR = 24  # characters of a bar of a histogram


def print_summary(document: Mapping[str, Any]) -> None:
    """Print the document of `ingot inspect`, or the text of the stage if the document has one."""
    if "text" in document:
        if document["stage"] != "plan":
            print_text(document["text"].rstrip("\n"))
            return
        print_folded(document["text"])
        _print_layout(document["values"])
        return
    print_text(f"{document['model']}: {_FORMATS[document['format']]}, {human_bytes(document['file_bytes'])}")
    rows = [("graph", f"{document['name']}, {_STAGES[document['stage']]}"), *_origin(document)]
    for role in ("inputs", "outputs", "states"):
        ports = document[role]
        rows += _listed(role, _first((f"{port['name']}: {port['type']}" for port in ports), _PORTS[role]))
    if document["symbols"]:
        rows.append(("symbols", _named(document["symbols"])))
    if "isa" in document:
        rows.append(("for", f"{document['isa']}, {document['threads']} thread(s), mode {document['mode']}"))
    steps = "nodes" if document["stage"] in ("graph", "optimized") else "steps"
    rows.append((steps, f"{document['nodes']:,}: {_counts(document['ops'])}"))
    if document["source_ops"]:
        rows.append(("source ops", _counts(document["source_ops"])))
    if document["layers"]:
        rows.append(("layers", ", ".join(f"{row['count']:,} in {row['path']}" for row in document["layers"][:_NAMED])))
    if document.get("reference"):
        rows.append(("reference", f"no kernel for {', '.join(document['reference'])}"))
    if "parameters" in document:
        rows.append(("parameters", f"{document['parameters']:,}"))
    kinds = (kind for kind in ("weights", "constants") if document.get(kind, {}).get("tensors"))
    rows += [(kind, _sizes(document[kind])) for kind in kinds]
    if document["dtypes"]:
        dtypes = document["dtypes"].items()
        rows.append(("dtypes", ", ".join(f"{name} {human_bytes(row['bytes'])}" for name, row in dtypes)))
    rows.append(("FLOPs", _flops(document["flops"])))
    if memory := document.get("memory"):
        rows += _memory(memory)
    rows += _listed("absent", _first(document["absent"].values(), 3))
    print_facts(rows)
    _print_modules(document["modules"])
    _print_stored(document)


def _origin(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows on the model's producer, versions, precision and quantization."""
    rows = []
    if producer := document.get("producer"):
        rows.append(("producer", str(producer)))
    versions = [f"opset {domain} {version}" for domain, version in document.get("opsets", {}).items()]
    versions += [f"{key.replace('_', ' ')} {document[key]}" for key in ("ir_version", "schema") if key in document]
    if "gguf_version" in document:
        versions.append(f"GGUF version {document['gguf_version']}, {document['bits_per_weight']:.2f} bits per weight")
    if versions:
        rows.append(("version", ", ".join(versions)))
    if precision := document.get("precision"):
        rows.append(("precision", precision))
    if quantization := document.get("quantization"):
        rows.append(("quantized", ", ".join(f"{key} {value}" for key, value in quantization.items())))
    return rows


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def _sizes(row: Mapping[str, int]) -> str:
    return f"{row['elements']:,} elements in {row['tensors']:,} tensors, {human_bytes(row['bytes'])}"


def _flops(found: Mapping[str, Any]) -> str:
    def number(count: Any) -> str:
        return f"{count:,}" if isinstance(count, int) else str(count)

    by_op = ", ".join(f"{op} {number(count)}" for op, count in found["by_op"].items())
    more = f"; {found['uncounted']} nodes not counted" if found["uncounted"] else ""
    return f"{number(found['total'])}{f' ({by_op})' if len(found['by_op']) > 1 else ''}{more}"


def _memory(memory: Mapping[str, Any]) -> list[tuple[str, str]]:
    arena, least = memory["arena_bytes"], memory["lower_bound_bytes"]
    ratio = f"{arena / max(least, 1):.3f}x the least possible"
    rows = [("arena", f"{arena:,} bytes, {ratio}; all activations and scratch {memory['activation_bytes']:,}")]
    if memory["unfused_bytes"] is not None:
        rows.append(("unfused", f"{memory['unfused_bytes']:,} bytes at once if each node of the graph were a step"))
    return [*rows, ("regions", ", ".join(f"{name} {human_bytes(size)}" for name, size in memory["regions"].items()))]


def _first(lines: Iterable[str], count: int) -> list[str]:
    found = list(lines)
    return found[:count] + ([f"and {len(found) - count:,} more"] if len(found) > count else [])


def _named(names: Iterable[str]) -> str:
    return ", ".join(_first(names, _NAMED))


def _print_modules(modules: Sequence[Mapping[str, Any]]) -> None:
    """Print the module tree to the depth that fits into the rows."""
    if not modules:
        return
    depth = max((d for d in range(1, 10) if sum(row["depth"] <= d for row in modules) <= _MODULES), default=1)
    shown = [row for row in modules if row["depth"] <= depth]
    lines = [
        ["  " * (row["depth"] - 1) + row["path"].rpartition(".")[2], f"{row['nodes']:,}", f"{row['parameters']:,}",
         _named(row["ops"])]
        for row in shown[:_MODULES]
    ]  # fmt: skip
    print_table(["module", "nodes", "parameters", "ops"], lines, right=["nodes", "parameters"])
    if len(modules) > len(lines):
        print_text(f"and {len(modules) - len(lines):,} more modules: --json lists them")


def _print_stored(document: Mapping[str, Any]) -> None:
    """Print tables of the file's tensor types, metadata and tensors."""
    if types := document.get("types"):
        rows = ([name, f"{row['tensors']:,}", human_bytes(row["bytes"])] for name, row in types.items())
        print_table(["type", "tensors", "bytes"], rows, right=["tensors", "bytes"])
    if metadata := document.get("metadata"):
        print_table(["metadata", "value"], ([key, _short(value)] for key, value in metadata.items()))
    if "tensors" in document:
        tensors = ([t["name"], t["type"], str(t["shape"]), f"{t['bytes']:,}"] for t in document["tensors"])
        print_table(["tensor", "type", "shape", "bytes"], tensors, right=["bytes"])


def _short(value: Any) -> str:
    if isinstance(value, dict) and "first" in value:
        more = ", ..." if value["count"] > len(value["first"]) else ""
        return f"{value['count']:,} of {value['type']}: {', '.join(map(_cut, value['first']))}{more}"
    return _cut(value)


def _cut(value: Any, characters: int = _CHARACTERS) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= characters else f"{text[:characters]}..."


def _print_layout(tensors: Sequence[Mapping[str, Any]]) -> None:
    placed = sorted((t for t in tensors if "region" in t), key=lambda t: (t["region"], t["offset"], t.get("birth", 0)))
    rows = ([t["region"], t["offset"], t["bytes"], _lifetime(t), t["type"], t["name"]] for t in placed)
    print_table(["region", "offset", "bytes", "steps", "type", "name"], rows, right=["offset", "bytes", "steps"])


def _lifetime(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['birth']}..{tensor['death']}" if "birth" in tensor else ""


def print_nodes(document: Mapping[str, Any]) -> None:
    """Print the document of `ingot list-nodes`."""
    _print_rows([_cells(row) for row in document["nodes"]], ["node", "op", "operands", "type", "from"])
    print_folded(f"{document['count']:,} of {document['of']:,} nodes: {_counts(document['ops'])}")
    if document["source_ops"]:
        print_folded(f"from {_counts(document['source_ops'])}")


def _print_rows(rows: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    """Print a table of nodes; if it is too wide, print each name above its op. An empty last column is left out."""
    if not any(row[-1] for row in rows):
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    widths = (max(len(row[i]) for row in rows) + 2 for i in range(len(columns)))
    if not rows or fits(sum(widths)):
        print_table(columns, rows)
        return
    first = columns.index("node")
    for row in rows:
        name, op, operands, type, *from_ = row[first:]
        print_folded(" ".join([*row[:first], name]))
        print_folded(f"    {op}({operands}): {type}")
        if any(from_):
            print_folded(f"    from {from_[0]}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    names = _named("none" if name is None else name for name in row["operands"])
    return [_named(row["outputs"]), _op(row), names, _named(row["types"]), _from(row)]


def _from(row: Mapping[str, Any]) -> str:
    """Return the nodes of the loaded model that a node was built from, each with its torch module, if any."""
    return _named(map(_source, row["sources"]))


def _source(source: Mapping[str, str]) -> str:
    op = f"{source['domain']}.{source['op']}" if source["domain"] else source["op"]
    inside = f" in {source['module']}" if source["module"] not in ("", source["name"]) else ""
    return f"{op} {source['name']}".rstrip() + inside


def _op(row: Mapping[str, Any]) -> str:
    """Return the op, or the kernel with its number of tasks."""
    return f"{row['op']} x{row['parts']}" if "parts" in row else row["op"]


def print_trace(document: Mapping[str, Any]) -> None:
    """Print the document of `ingot trace-node`."""
    above, below = (document["goes_on"][side] for side in ("above", "below"))
    rows = [[_distance(row["distance"]), *_cells(row)] for row in document["nodes"]]
    _print_rows(rows, ["", "node", "op", "operands", "type", "from"])
    if above or below:
        sides = " and ".join(side for side, is_cut in (("above", above), ("below", below)) if is_cut)
        print_text(f"more nodes {sides}: --up {document['up'] + 2} --down {document['down'] + 2}")


def _distance(distance: int) -> str:
    return f"{distance:+d}" if distance else "->"


def print_node(document: Mapping[str, Any]) -> None:
    """Print the document of `ingot inspect-node`."""
    what = f": {document['what']}" if document["what"] else ""
    print_text(f"{document['name']}, {_STAGES[document['stage']]}")
    rows = [("op" if not what else document["op"], what[2:] or _op(document))]
    rows += _listed("from", _first(map(_source, document["sources"]), _LISTED))
    rows += _listed("same source", _first(document["also"], _LISTED))
    rows += _listed("operands", _first(map(_operand, document["operands"]), _LISTED))
    rows += _listed("results", _first((f"{each['name']}: {each['type']}" for each in document["outputs"]), _LISTED))
    attributes = (f"{key} = {_cut(value, _ATTRIBUTE)}" for key, value in document["attributes"].items())
    rows += _listed("attributes", _first(attributes, _LISTED))
    facts = [f"{key} {document[key]:,}" for key in ("flops", "bytes", "step") if key in document]
    rows += _listed("costs", [", ".join(facts)] if facts else [])
    rows.append(("producers", _named(document["producers"]) or "no node"))
    rows.append(("consumers", _named(document["consumers"]) or "no node"))
    if document["returned_as"]:
        rows.append(("returned", ", ".join(document["returned_as"])))
    rows += _listed("became", _became(document))
    print_facts(rows)


def _operand(operand: Mapping[str, Any] | None) -> str:
    if operand is None:
        return "none"
    role = f"{operand['as']} = " if operand.get("as") else ""
    return f"{role}{operand['name']}: {operand['type']} ({operand['kind']})"


def _became(document: Mapping[str, Any]) -> list[str]:
    if document["became"] is None:
        return []
    if not document["became"]:
        return ["nothing: no result depends on it, or it needs no step"]
    return _first((f"{_HOW[row['how']]} {row['name']} ({row['op']})" for row in document["became"]), _LISTED)


def _listed(label: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(label if i == 0 else "", line) for i, line in enumerate(lines)]


def print_tensor(document: Mapping[str, Any]) -> None:
    """Print the document of `ingot inspect-tensor`."""
    print_text(f"{document['name']}, {_STAGES[document['stage']]}")
    size = "" if document["bytes"] is None else f", {human_bytes(document['bytes'])}"
    rows = [("type", f"{document['type']}, {document['kind']}{size}")]
    if document["producer"] is not None:
        rows.append(("producer", document["producer"]))
    rows.append(("consumers", _named(document["users"]) or "no node"))
    if document["returned_as"]:
        rows.append(("returned", ", ".join(document["returned_as"])))
    rows += _listed("dequantized", _first(document["decoded_as"], _LISTED))
    if "packed_of" in document:
        rows.append(("packed from", _named(document["packed_of"])))
    if "region" in document:
        life = f", steps {document['birth']} to {document['death']}" if "birth" in document else ""
        rows.append(("address", f"{document['region']} from byte {document['offset']:,}{life}"))
    if document["first"] is None:
        rows.append(("values", document["why_no_values"]))
    else:
        rows.append(("values", ", ".join(map(_number, document["first"])) or "none"))
    if statistics := document["statistics"]:
        extremes = ("min", "max", "mean", "std")
        rows.append(("numbers", ", ".join(f"{key} {_number(statistics[key])}" for key in extremes)))
        rows.append(("", ", ".join(f"{key} {statistics[key]:,}" for key in ("elements", "zeros", "nan", "infinite"))))
    print_facts(rows)
    if histogram := document["histogram"]:
        _print_histogram(histogram)


def print_measured(document: Mapping[str, Any]) -> None:
    """Print the measured steps of `ingot explain --measure`."""
    limits = document["limits"]
    print_text(f"limits {limits['gflops']:.0f} GFLOP/s, {limits['gigabytes_per_second']:.0f} GB/s of the arena")
    rows = (
        [row["node"], f"{row['kernel']} x{row['parts']}", f"{row['nanoseconds']:,}", f"{row['gflops']:.1f}",
         f"{row['gigabytes_per_second']:.1f}", f"{row['of_limit']:.0%}"]
        for row in document["measured"]
    )  # fmt: skip
    columns = ["node", "kernel", "ns", "GFLOP/s", "GB/s", "of limit"]
    print_table(columns, rows, right=columns[2:])


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _print_histogram(histogram: Mapping[str, Any]) -> None:
    """Print a line for each bin: lower edge, number of elements, bar."""
    counts, edges = histogram["counts"], histogram["edges"]
    longest, width = max(counts), max(len(f"{count:,}") for count in counts)
    for edge, count in zip(edges, counts, strict=False):
        bar = "#" * round(_BAR * count / longest)
        print_text(f"  {_number(edge):>12}  {count:>{width},}  {bar}".rstrip())
    print_text(f"  {_number(edges[-1]):>12}")


def print_validation(document: Mapping[str, Any]) -> None:
    """Print the document of `ingot validate`."""
    assumed = ", ".join(f"{name} = {value}" for name, value in document["assumed"].items())
    print_text(f"{document['model']}{f', with {assumed}' if assumed else ''}")
    rows = _listed("problems", _first(document["problems"], 50))
    if modes := document["modes"]:
        rows.append(("modes", f"{', '.join(modes)}: up to stage {document['stage']}, not run"))
    for row in document["executors"]:
        word = "runs" if row["runs"] else "does not run"
        rows += _listed(row["name"], [f"{word}: {row['what']}", *row["problems"], *row["notes"]])
    print_facts(rows)

"""A Graph as Graphviz text. Names from the model appear in quoted labels only; identifiers are numbers."""

from ingot.ir import Graph, Node

_SHAPES = {"input": "ellipse", "weight": "cylinder", "constant": "note", "state": "folder"}


def draw(graph: Graph) -> str:
    """The graph from inputs to outputs; edges between nodes carry the type."""
    lines = [f"digraph {quoted(graph.name)} {{", "  node [shape=box, fontname=monospace];"]
    identifiers: dict[str, str] = {}
    for name, value in graph.values.items():
        if value.producer is None and (value.users or graph.is_output(name)):
            identifiers[name] = f"v{len(identifiers)}"
            label = quoted(f"{name}\n{value.type}")
            lines.append(f"  {identifiers[name]} [label={label}, shape={_SHAPES[value.kind]}];")
    for number, node in enumerate(graph.nodes):
        identifiers.update(dict.fromkeys(node.outputs, f"n{number}"))
        lines.append(f"  n{number} [label={quoted(_label(node))}];")
        lines += [f"  {identifiers[o]} -> n{number}{_edge(graph, o)};" for o in node.operands if o is not None]
    for number, (external, name) in enumerate(graph.outputs.items()):
        lines.append(f"  o{number} [label={quoted(external)}, shape=ellipse];")
        lines.append(f"  {identifiers[name]} -> o{number}{_edge(graph, name)};")
    return "\n".join([*lines, "}"]) + "\n"


def _label(node: Node) -> str:
    return f"{node.op.name}\n{', '.join(node.outputs)}"


def quoted(text: str) -> str:
    """A Graphviz string; quotes, backslashes and control characters cannot end or alter it."""
    plain = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _edge(graph: Graph, name: str) -> str:
    return f" [label={quoted(str(graph.values[name].type))}]" if graph.values[name].producer is not None else ""

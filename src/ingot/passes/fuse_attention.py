"""Recognition of attention: softmax(q k^T * scale + mask) v, written out in any of the usual forms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ingot.ir.dim import Dim
from ingot.ir.graph import Graph, Node
from ingot.ops.attention import ATTENTIONS
from ingot.passes.match import add_scalar, has_known_type, same_type, scalar, substitute

MASKED = -1e9  # a score at or below it counts as masked: its exponential is zero next to any other
_MAX_MASKS = 8  # added to or selected for one set of scores
# A number of this magnitude absorbs any score that it is added to, and two of them do not add up to -inf.
_ABSORBING = (-1e38, -1e30)


def fuse_attention(graph: Graph) -> bool:
    """Fuse matmul, scale, masks, softmax and matmul into one attention, with a dropout of its weights in training; then
    remove repeats of its keys and values.

    Ranks 2 to 4; masks are added, or selected with `where`; a key may be transposed by any permute. A row that is
    completely masked with -inf gives the same as when written out: NaN, or zero if NaN is replaced by zero. Refused:
    intermediates with another reader, a softmax over another axis, weights as keys or values, batches that broadcast,
    several masks whose finite fills could not be distinguished afterwards.
    """
    changed = False
    for node in graph.nodes:
        if node.op.name == "matmul" and has_known_type(graph, node.output):
            scores = _scores(graph, node)
            if scores is not None and _has_attention_shapes(graph, node, scores.matmul):
                _replace(graph, node, scores)
                changed = True
        elif node.op.name in ATTENTIONS:
            changed |= _remove_repeats(graph, node)
    return changed


@dataclass(frozen=True)
class _Scores:
    """The source of the scores and their masks, innermost first; the dropout of the weights computed from them."""

    matmul: Node
    masks: tuple[str | _Chosen, ...] = ()  # added, or selected
    zero_nan: bool = False
    dropout: Node | None = None


@dataclass(frozen=True)
class _Chosen:
    """Scores where a condition has the value `keeps`, else `fill`."""

    condition: str
    keeps: bool
    fill: float


def _scores(graph: Graph, node: Node) -> _Scores | None:
    """Return the scores of matmul(softmax(scores), v) if intermediates have no other reader."""
    if node.transpose_a or node.scale != 1.0:
        return None
    weights = str(node.operands[0])
    dropout = _dropout(graph, weights)
    weights = weights if dropout is None else str(dropout.operands[0])
    softmax = _softmax(graph, weights)
    if softmax is None or softmax.axis != graph.type(softmax.output).rank - 1:
        return None
    scores = _read(graph, str(softmax.operands[0]))
    if scores is None or not _has_exact_fills(graph, scores):
        return None
    return replace(scores, zero_nan=softmax.output != weights, dropout=dropout)


def _dropout(graph: Graph, name: str) -> Node | None:
    """Return the training dropout that computes the weights, if it is their only use."""
    node = graph.producer(name)
    is_drawn = node is not None and node.op.name == "dropout" and node.operands[1] is not None
    return node if is_drawn and graph.only_user(name) is not None else None


def _softmax(graph: Graph, name: str) -> Node | None:
    """Return the softmax that computes the probabilities, plain or with NaN rows set to zero, if it has one use."""
    node = graph.producer(name)
    if node is None or graph.only_user(name) is None:
        return None
    if node.op.name == "softmax":
        return node
    if node.op.name != "where" or scalar(graph, node.operands[1]) != 0:
        return None
    condition, _, probabilities = (str(o) for o in node.operands)
    isnan, softmax = graph.producer(condition), graph.producer(probabilities)
    if isnan is None or isnan.op.name != "isnan" or isnan.operands != (probabilities,):
        return None
    is_alone = graph.only_user(condition) is not None and not graph.is_output(probabilities)
    is_softmax = softmax is not None and softmax.op.name == "softmax"
    return softmax if is_softmax and is_alone and set(graph.users(probabilities)) == {isnan, node} else None


def _read(graph: Graph, name: str, depth: int = 0) -> _Scores | None:
    node = graph.producer(name)
    if node is None or graph.only_user(name) is None or depth > _MAX_MASKS:
        return None
    if node.op.name == "matmul":
        return _Scores(node)
    if node.op.name == "add":
        for scores, mask in (node.operands, node.operands[::-1]):
            assert scores is not None and mask is not None
            found = _read(graph, scores, depth + 1) if same_type(graph.type(scores), graph.type(name)) else None
            if found is not None:
                return replace(found, masks=(*found.masks, mask))
    if node.op.name == "where":
        condition, yes, no = (str(o) for o in node.operands)
        for keeps, scores, fill in ((True, yes, no), (False, no, yes)):
            number = scalar(graph, fill)
            if number is None or number > MASKED or not same_type(graph.type(scores), graph.type(name)):
                continue
            found = _read(graph, scores, depth + 1)
            if found is not None:
                return replace(found, masks=(*found.masks, _Chosen(condition, keeps, number)))
    return None


def _lowest(graph: Graph, scores: _Scores) -> float:
    return float(np.finfo(graph.type(scores.matmul.output).dtype.numpy).min)


def _hidings(scores: _Scores) -> set[float | None]:
    """Return the finite numbers that mask scores: a fill, or None for an added mask."""
    return {None if isinstance(mask, str) else mask.fill for mask in scores.masks} - {float("-inf")}


def _has_exact_fills(graph: Graph, scores: _Scores) -> bool:
    """Return whether fills can be added instead: there is one, or every fill absorbs scores, so the order stays."""
    low, high = _ABSORBING
    fills, lowest = _hidings(scores), _lowest(graph, scores)
    return len(fills) < 2 or all(fill is None or fill == lowest or low <= fill <= high for fill in fills)


def _has_attention_shapes(graph: Graph, node: Node, matmul: Node) -> bool:
    """Return whether operands are [.., S, D], [.., T, D] and [.., T, Dv] of one rank 2 to 4 and one batch."""
    names = [*matmul.operands, node.operands[1]]
    types = [graph.type(str(name)) for name in names]
    if not 2 <= types[0].rank <= 4 or any(t.rank != types[0].rank or None in t.shape for t in types):
        return False
    if any(t.shape[:-2] != types[0].shape[:-2] or t.dtype.kind != "f" for t in types):
        return False
    return all(
        graph.values[str(name)].kind == "activation" or graph.values[str(name)].kind == "input" for name in names
    )


def _replace(graph: Graph, node: Node, scores: _Scores) -> None:
    matmul = scores.matmul
    q = _transposed(graph, node, str(matmul.operands[0]), matmul.transpose_a)
    k = _transposed(graph, node, str(matmul.operands[1]), not matmul.transpose_b)
    v = _transposed(graph, node, str(node.operands[1]), node.transpose_b)
    mask = _mask(graph, node, scores)
    rank = graph.type(q).rank
    operands: list[str | None] = [_with_rank_4(graph, node, name) for name in (q, k, v)]
    if mask is not None:
        operands.append(_mask_with_rank_4(graph, node, mask, rank))
    attributes = {
        "scale": matmul.scale, "causal": False, "causal_offset": 0, "safe": scores.zero_nan, "zero_nan": scores.zero_nan
    }  # fmt: skip
    op = "attention"
    if scores.dropout is not None:  # drawn by index only, so the same elements at any rank
        op = "attention_dropout"
        operands += [*[None] * (4 - len(operands)), *scores.dropout.operands[1:]]
        attributes |= scores.dropout.attributes
    if rank == 4:
        added = substitute(graph, node, op, operands, attributes)
    else:
        four = graph.add(op, operands, f"{node.output}.attention", before=node, **attributes)
        added = substitute(graph, node, "reshape", [four.output], {"shape": graph.type(node.output).shape})
    assert added is not None, f"attention for {node} has another type"


def _transposed(graph: Graph, before: Node, name: str, is_transposed: bool) -> str:
    """Return the value with its last two dims swapped back."""
    if not is_transposed:
        return name
    rank = graph.type(name).rank
    axes = (*range(rank - 2), rank - 1, rank - 2)
    return graph.add("permute", [name], f"{name}.permuted", before=before, axes=axes).output


def _with_rank_4(graph: Graph, before: Node, name: str) -> str:
    """Return [S, D] and [B, S, D] as [1, 1, S, D] and [B, 1, S, D]: one head."""
    shape = graph.type(name).shape
    if len(shape) == 4:
        return name
    full = (1, 1, *shape) if len(shape) == 2 else (shape[0], 1, *shape[1:])
    return graph.add("reshape", [name], f"{name}.heads", before=before, shape=full).output


def _mask_with_rank_4(graph: Graph, before: Node, mask: str, rank: int) -> str:
    """Return a mask over [B, S, T] scores as a mask over [B, 1, S, T]."""
    shape: tuple[Dim, ...] = graph.type(mask).shape
    if rank == 3 and len(shape) == 3:
        return graph.add("reshape", [mask], f"{mask}.heads", before=before, shape=(shape[0], 1, *shape[1:])).output
    return mask


def _mask(graph: Graph, node: Node, scores: _Scores) -> str | None:
    """Return one mask: a bool mask if a single `where` fills with -inf, else a float mask, combined as the scores were.

    A finite fill makes a completely masked row uniform; the lowest float added to its scores has the same effect. Next
    to other finite masks a fill keeps its value, which decides the order within such a row.
    """
    like, is_alone = scores.matmul.output, len(_hidings(scores)) == 1
    match scores.masks:
        case (_Chosen(condition, keeps, fill),) if fill == float("-inf"):
            if keeps:
                return condition
            return graph.add("logical_not", [condition], f"{condition}.masked", before=node).output
    total: str | None = None
    for mask in scores.masks:
        if isinstance(mask, str):
            total = mask if total is None else graph.add("add", [total, mask], f"{total}.masks", before=node).output
            continue
        fill = _lowest(graph, scores) if is_alone and mask.fill > float("-inf") else mask.fill
        branches = [total or add_scalar(graph, 0.0, like, "visible"), add_scalar(graph, fill, like, "masked")]
        operands = [mask.condition, *(branches if mask.keeps else branches[::-1])]
        total = graph.add("where", operands, f"{mask.condition}.mask", before=node).output
    return total


def _remove_repeats(graph: Graph, node: Node) -> bool:
    """Rewrite attention(q, repeat(k), repeat(v)) to attention(q, k, v): a group of query heads shares a key head."""
    sources = [_before_repeat(graph, str(name)) for name in node.operands[1:3]]
    if None in sources:
        return False
    (k, k_heads), (v, v_heads) = (source for source in sources if source is not None)
    if k_heads != v_heads:
        return False
    names = [
        graph.add("reshape", [name], f"{name}.heads", before=node, shape=shape).output if shape is not None else name
        for name, shape in ((k[0], k[1]), (v[0], v[1]))
    ]
    operands = [node.operands[0], *names, *node.operands[3:]]
    return substitute(graph, node, node.op.name, operands, node.attributes) is not None


_Source = tuple[str, tuple[Dim, ...] | None]  # a value, and the shape to give it (None: unchanged)


def _before_repeat(graph: Graph, name: str) -> tuple[_Source, int] | None:
    """Return the source that a value [B, H, T, D] repeats along its heads, and its number of heads; else None.

    Each head is repeated H / heads times in a row.
    """
    node = graph.producer(name)
    if node is None or node.op.name not in ("expand", "reshape", "gather"):
        return None
    source = node.operands[0]
    assert source is not None
    shape, full = graph.type(source).shape, graph.type(name).shape
    if None in full:
        return None
    if node.op.name == "expand":
        repeats = len(shape) == 4 and shape[1] == 1 and (shape[0], *shape[2:]) == (full[0], *full[2:])
        return ((source, None), 1) if repeats else None
    if node.op.name == "gather":
        return _before_gather(graph, node, source)
    expand = graph.producer(source)
    if expand is None or expand.op.name != "expand" or len(shape) != 5 or expand.operands[0] is None:
        return None
    inner = graph.type(expand.operands[0]).shape
    batch, heads, groups, *rest = shape
    if inner != (batch, heads, 1, *rest) or not isinstance(heads, int) or not isinstance(groups, int):
        return None
    if full != (batch, heads * groups, *rest):
        return None
    return (expand.operands[0], (batch, heads, *rest)), heads


def _before_gather(graph: Graph, node: Node, source: str) -> tuple[_Source, int] | None:
    """Match gather(x, [0, 0, 1, 1, ..], axis=1)."""
    heads = graph.type(source).shape[1] if graph.type(source).rank == 4 else None
    indices = graph.data(node.operands[1])
    if node.axis != 1 or not isinstance(heads, int) or indices is None or indices.ndim != 1 or indices.size % heads:
        return None
    if not np.array_equal(indices, np.repeat(np.arange(heads), indices.size // heads)):
        return None
    return (source, None), heads

"""Branches of a known condition: text in, text out."""

from pass_case import check_pass

BEFORE, AFTER = (
    """
        input x: f32[B, 6]
        constant yes: bool[] = [true]
        constant no: bool[1] = [false]
        y = if(yes, x, no, x, then_branch={graph t; input a: f32[B, 6]; input c: bool[1]; constant k: f32[] = [2.0]; \
z = if(c, a, a, then_branch={graph i; input a: f32[B, 6]; b = relu(a): f32[B, 6]; output b = b}, else_branch={graph \
j; input a: f32[B, 6]; b = neg(a): f32[B, 6]; output b = b}): f32[B, 6]; m = mul(z, k): f32[B, 6]; output m = m}, \
else_branch={graph e; input a: f32[B, 6]; b = tanh(a): f32[B, 6]; output b = b}): f32[B, 6]
        w = if(no, x, x, then_branch={graph t; input a: f32[B, 6]; output a = a}, else_branch={graph e; input a: \
f32[B, 6]; b = slice(a, starts=[0, 0], stops=[B, 3], steps=[1, 1]): f32[B, 3]; output b = b}): f32[B, ?]
        output y = y
        output w = w
        """,
    """
        input x: f32[B, 6]
        constant no: bool[1] = [false]
        constant k: f32[] = [2.0]
        b = neg(x)
        m = mul(b, k)
        w = if(no, x, x, then_branch={graph t; input a: f32[B, 6]; output a = a}, else_branch={graph e; input a: \
f32[B, 6]; b = slice(a, starts=[0, 0], stops=[B, 3], steps=[1, 1]): f32[B, 3]; output b = b}): f32[B, ?]
        output y = m
        output w = w
        """,
)


def test_known_branches_are_inlined() -> None:
    """One branch is inside another. An `if` whose branches have another type, with a measured dim, stays."""
    check_pass(("take_branch", "dce"), BEFORE, AFTER)

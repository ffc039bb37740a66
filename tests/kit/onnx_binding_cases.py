"""ONNX models whose form depends on their dims: they have a graph for each binding of n and m, x: float[n, m, 4]."""

SQUEEZED = """agraph (float[n, m, 4] x) => (y) <int64[1] one = {1}, int64[1] axis = {1}, int64[2] grown = {0, 5}> {
    s = Shape (x)
    d = Gather (s, axis)
    c = Equal (d, one)
    z = If (c) <then_branch = a () => (p) { p = Squeeze (x, axis) }, else_branch = b () => (q) { q = Identity (x) }>
    y = Softmax <axis = 1> (z)
}"""
WEIGHED = """agraph (float[n, m, 4] x) => (y) <int64[1] one = {1}, int64[1] first = {0}> {
    s = Shape (x)
    d = Gather (s, first)
    c = Equal (d, one)
    z = If (c) <
        then_branch = a () => (p) {
            w = Constant <value = float[4, 2] {1, 2, 3, 4, 5, 6, 7, 8}> ()
            p = MatMul (x, w)
        },
        else_branch = b () => (q) {
            w = Constant <value = float[4, 2] {8, 7, 6, 5, 4, 3, 2, 1}> ()
            v = MatMul (x, w)
            q = Transpose <perm = [0, 2, 1]> (v)
        }
    >
    i = Shape (z)
    y = Expand (z, i)
}"""
MODELS = {
    "a rank that depends on a dim": (SQUEEZED, [(2, 1), (2, 3), (2, 1), (5, 1)]),
    "a squeeze of whatever is 1": (
        "agraph (float[n, m, 4] x) => (y) { z = Squeeze (x) y = Neg (z) }",
        [(1, 3), (2, 1)],
    ),
    "ceil_mode": (
        "agraph (float[n, m, 4] x) => (y) { y = MaxPool <kernel_shape = [2], strides = [3], ceil_mode = 1> (x) }",
        [(2, 3), (1, 1)],
    ),
    "a resize by a fraction": (
        """agraph (float[n, m, 4] x) => (y) <float[3] scales = {1.0, 1.5, 1.0}> {
            none = Constant <value = float[0] {}> ()
            y = Resize <mode = "linear"> (x, none, scales)
        }""",
        [(2, 4), (1, 7)],
    ),
    "weights of one name in both branches": (WEIGHED, [(1, 3), (2, 3), (1, 3)]),
    "a convolution by filters of any width": (
        "agraph (float[n, m, 4] x) => (y) { z = Transpose <perm = [2, 1, 0]> (x) y = Conv (z, z) }",
        [(1, 3), (5, 2)],
    ),
}

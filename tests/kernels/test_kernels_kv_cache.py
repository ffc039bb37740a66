"""Kernels of a paged cache: append against the references' bits, attention against float64; and every cut of a prompt,
neighbour, block table, part and instruction set gives a row the same bits."""

import itertools

import numpy as np
import pytest

import ingot.ops  # noqa: F401
from ingot.ir.dtype import DTYPES
from ingot.ir.graph import OPS
from ingot.support import abi
from kernel_calls import ISAS, LIBRARY, at_page_end, bits, element_strides, run, ways

pytestmark = pytest.mark.native

BLOCK = 64
BAD = np.int32(-77)


def strides(array):
    return element_strides(array)[:-1]


def call(kernel, isa, parts, fields):
    """Runs a kernel's parts and returns the fault."""
    fault = LIBRARY.ffi.new("ingot_fault *")
    run(kernel, isa, parts, fields | {"fault": fault, "step": 5})
    return fault


# -- append -----------------------------------------------------------------------------------------------------

SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1e-45,
    -1e-42,
    3.4e38,
    1.00390625,
    1.01171875,
    -1.00390635,
    126.5,
    -127.0,
]
APPENDED = [
    *itertools.product(["keys", "values"], ["f32", "bf16", "i8"], [(1, 1), (3, 5), (2, 16), (1, 33), (2, 64)]),
    *itertools.product(["keys", "values"], ["i4"], [(1, 2), (3, 6), (2, 16), (1, 34), (2, 64), (1, 92)]),
]
ITEMS = {name: DTYPES[name].numpy for name in ("f32", "bf16", "i8")} | {"i4": np.uint8}
CODES = {"i8": "int8", "i4": "int4"}


def held(name, dim):
    """Items of a cache that a head's dims are, and what it has scales in, in front of a block's positions."""
    return (dim // 2, (2 * -(-dim // 32),), np.float16) if name == "i4" else (dim, (), np.float32)


def addresses(generator, rows, sequences, each, total):
    return {
        "positions": at_page_end(generator.integers(0, each * BLOCK, rows, np.int32)),
        "owners": at_page_end(generator.integers(0, sequences, rows, np.int32)),
        "blocks": at_page_end(generator.integers(0, total, (sequences, each), np.int32)),
    }


def append_case(what, name, heads, dim, rows=23):
    generator = np.random.default_rng(dim)
    total, dtype, (width, groups, beside) = 5, ITEMS[name], held(name, dim)
    shape = (total, heads, width, BLOCK) if what == "keys" else (total, heads, BLOCK, width)
    x = generator.standard_normal((rows, heads, dim)).astype(np.float32)
    x[0, 0, : len(SPECIAL)] = SPECIAL[:dim]
    x[1:2] = 0
    x[2:3, 0] = 3e-44
    cache = abs(generator.standard_normal(shape) * 40).astype(dtype)
    scales = generator.random((total, heads, *groups, BLOCK)).astype(beside)
    where = addresses(generator, rows, 2, 3, total)
    fields = {
        **where, "x": at_page_end(x, 3), "rows": rows, "kv_heads": heads, "dim": dim,
        "x_strides": strides(at_page_end(x, 3)), "total_blocks": total, "sequences": 2, "blocks_each": 3,
    }  # fmt: skip
    return x, cache, scales, where, fields


@pytest.mark.parametrize(("what", "name", "size"), APPENDED)
def test_append_writes_what_the_reference_does(what, name, size):
    x, cache, scales, where, fields = append_case(what, name, *size)
    if name in CODES:
        expected = OPS[f"append_{what}_{CODES[name]}"].function(cache, scales, x, *where.values())
    else:
        expected = (OPS[f"append_{what}"].function(cache, x, *where.values()), scales)
    for isa, parts in ways():
        written, with_scales = at_page_end(cache), at_page_end(scales)
        extra = {"cache": written, "scales": with_scales}
        assert call(f"append_{what}_{name}", isa, parts, fields | extra).code == 0
        np.testing.assert_array_equal(bits(written), bits(expected[0]), err_msg=f"{isa} in {parts}")
        np.testing.assert_array_equal(bits(with_scales), bits(expected[1]), err_msg=f"{isa} in {parts}")


OUTSIDE = [("positions", -1, 192), ("positions", 192, 192), ("owners", 2, 2), ("owners", -5, 2), ("blocks", 5, 5),
           ("blocks", -1, 5)]  # fmt: skip


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize(("table", "bad", "limit"), OUTSIDE)
def test_a_row_out_of_range_is_a_fault(table, bad, limit, name):
    x, cache, scales, where, fields = append_case("values", name, 2, 16, rows=1)
    where[table][...] = bad
    for isa, parts in ways():
        written, with_scales = cache.copy(), scales.copy()
        fault = call(f"append_values_{name}", isa, parts, fields | {"cache": written, "scales": with_scales})
        assert (fault.code, fault.step, fault.index, fault.limit) == (2, 5, bad, limit)
        np.testing.assert_array_equal(bits(written), bits(cache))
    out = np.full((1, 2, 16), np.nan, np.float32)
    scratch = abi.scratch_floats(f"cached_attention_{name}", {"head_dim": 16, "v_dim": 16})
    fields |= {
        "q": x, "keys": np.ascontiguousarray(cache.swapaxes(2, 3)), "values": cache, "key_scales": scales, "out": out,
        "value_scales": scales, "heads": 2, "head_dim": 16, "v_dim": 16, "q_strides": strides(x), "scale": 1.0,
        "out_strides": strides(out), "scratch": np.full(scratch, np.nan, np.float32), "scratch_stride": scratch,
    }  # fmt: skip
    attention = {k: v for k, v in fields.items() if k not in ("x", "dim", "x_strides")}
    for isa in ISAS:
        fault = call(f"cached_attention_{name}", isa, 1, attention)
        assert (fault.code, fault.step, fault.index, fault.limit) == (2, 5, bad, limit)
        assert np.all(out == 0)


# -- attention --------------------------------------------------------------------------------------------------


class Sequences:
    """Caches that hold tokens of some sequences; everything that no sequence wrote is NaN, tables say -77 there."""

    def __init__(self, name, lengths, heads, kv_heads, head_dim, v_dim, *, seed=0, gap=0):
        generator = np.random.default_rng(0)
        self.name, self.kv_heads, self.lengths = name, kv_heads, lengths
        self.q = [generator.standard_normal((n, heads, head_dim)).astype(np.float32) for n in lengths]
        each = -(-max(lengths) // BLOCK) + 1
        needed = [-(-n // BLOCK) for n in lengths]
        self.blocks = np.full((len(lengths), each), BAD)
        total = sum(needed) + gap
        places = iter(np.random.default_rng(seed).permutation(total).astype(np.int32))
        for s, count in enumerate(needed):
            self.blocks[s, :count] = [next(places) for _ in range(count)]
        dtype, self.v_dim = ITEMS[name], v_dim
        nothing = 99 if name in CODES else np.nan
        (k_width, k_groups, beside), (v_width, v_groups, _) = held(name, head_dim), held(name, v_dim)
        self.keys = np.full((total, kv_heads, k_width, BLOCK), nothing, dtype)
        self.values = np.full((total, kv_heads, BLOCK, v_width), nothing, dtype)
        groups = (k_groups, v_groups)
        self.scales = [np.full((total, kv_heads, *count, BLOCK), np.nan, beside) for count in groups]
        for s, n in enumerate(lengths):
            where = (np.arange(n, dtype=np.int32), np.full(n, s, np.int32), self.blocks)
            k = generator.standard_normal((n, kv_heads, head_dim)).astype(np.float32)
            v = generator.standard_normal((n, kv_heads, v_dim)).astype(np.float32)
            if name in CODES:
                append_keys, append_values = (OPS[f"append_{what}_{CODES[name]}"] for what in ("keys", "values"))
                self.keys, self.scales[0] = append_keys.function(self.keys, self.scales[0], k, *where)
                self.values, self.scales[1] = append_values.function(self.values, self.scales[1], v, *where)
            else:
                self.keys = OPS["append_keys"].function(self.keys, k, *where)
                self.values = OPS["append_values"].function(self.values, v, *where)
        self.keys, self.values, self.scales = (
            at_page_end(self.keys), at_page_end(self.values), [*map(at_page_end, self.scales)],
        )  # fmt: skip

    def rows(self, spans):
        """q, positions and owners of spans (sequence, begin, end) one after another."""
        q = np.concatenate([self.q[s][begin:end] for s, begin, end in spans])
        positions = np.concatenate([np.arange(begin, end, dtype=np.int32) for _, begin, end in spans])
        owners = np.concatenate([np.full(end - begin, s, np.int32) for s, begin, end in spans])
        return q, positions, owners

    def exact(self, spans, **attributes):
        """The reference in float64."""
        scales = [s.astype(np.float64) for s in self.scales] if self.name in CODES else []
        q, positions, owners = self.rows(spans)
        caches = (self.keys, self.values)
        if self.name == "f32":
            caches = tuple(c.astype(np.float64) for c in caches)
        function = OPS["cached_attention"].function
        return function(q.astype(np.float64), *caches, positions, owners, self.blocks, *scales, **attributes)

    def attend(self, spans, isa, parts=1, **attributes):
        q, positions, owners = (at_page_end(a, pad) for a, pad in zip(self.rows(spans), (5, 0, 0), strict=True))
        out = at_page_end(np.full((*q.shape[:2], self.v_dim), np.nan, np.float32), 2)
        sizes = {"head_dim": q.shape[2], "v_dim": self.v_dim}
        scratch = abi.scratch_floats(f"cached_attention_{self.name}", sizes)
        fields = {
            "q": q, "keys": self.keys, "values": self.values, "key_scales": self.scales[0], "out": out,
            "value_scales": self.scales[1], "positions": positions, "owners": owners, "blocks": self.blocks,
            "scratch": at_page_end(np.full(parts * scratch, np.nan, np.float32)), "scratch_stride": scratch,
            "rows": len(q), "heads": q.shape[1], "kv_heads": self.kv_heads, "head_dim": q.shape[2],
            "v_dim": out.shape[2], "q_strides": strides(q), "out_strides": strides(out),
            "total_blocks": len(self.keys), "sequences": len(self.blocks), "blocks_each": self.blocks.shape[1],
        }  # fmt: skip
        assert call(f"cached_attention_{self.name}", isa, parts, fields | attributes).code == 0
        return np.array(out)


# heads, heads of keys, head_dim, v_dim; spans of sequences; attributes
ATTENDED = [
    ((1, 1, 1, 1), [(0, 0, 1)], {}),
    ((14, 2, 64, 64), [(0, 0, 300)], {}),
    ((14, 2, 64, 64), [(0, 299, 300)], {}),
    ((14, 2, 64, 64), [(1, 600, 601), (0, 40, 41), (2, 0, 1)], {}),
    ((4, 4, 33, 20), [(0, 10, 140)], {}),
    ((4, 4, 8, 48), [(0, 250, 262), (1, 500, 530)], {"window": 70}),
    ((3, 1, 96, 16), [(0, 0, 90), (1, 255, 258)], {"softcap": 0.7}),
    ((71, 1, 16, 16), [(0, 60, 70)], {"window": 3}),
    ((25, 1, 16, 7), [(0, 100, 102), (2, 3, 5)], {"window": 64, "softcap": 2.0}),
    ((8, 2, 300, 96), [(1, 530, 535)], {}),
    ((14, 2, 64, 64), [(0, 250, 262), (1, 520, 530)], {"segment": 130}),
    ((4, 1, 16, 16), [(0, 0, 90), (1, 255, 258)], {"sinks": np.array([-2, 0, 1, 30], np.float32)}),
    ((4, 2, 16, 7), [(2, 3, 5), (0, 60, 140)], {"window": 9, "sinks": np.array([3, -1, 0.5, 2], np.float32)}),
    ((2, 2, 16, 16), [(1, 0, 601)], {"window": 256}),
    ((4, 1, 16, 16), [(0, 0, 90), (1, 255, 258)], {"biases": True}),
    ((4, 2, 16, 7), [(2, 3, 5), (0, 60, 140), (1, 599, 601)], {"biases": True, "relative": True, "softcap": 2.0}),
    ((3, 1, 16, 16), [(0, 250, 262), (1, 500, 530)], {"biases": True, "relative": True, "window": 70}),
]


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize(("dims", "spans", "attributes"), ATTENDED)
def test_attention_is_the_reference(name, dims, spans, attributes):
    if name == "i4":  # whose dims are even
        dims = (*dims[:2], *(-(-dim // 2) * 2 for dim in dims[2:]))
    sequences = Sequences(name, [300, 601, 9], *dims, gap=2)
    attributes = {"scale": dims[2] ** -0.5} | attributes
    if "biases" in attributes:
        shape = (dims[0], sequences.blocks.shape[1] * BLOCK)
        attributes["biases"] = at_page_end(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    expected = sequences.exact(spans, **attributes)
    first = sequences.attend(spans, "scalar", **attributes)
    np.testing.assert_allclose(first, expected, rtol=5e-6, atol=5e-6)
    for isa, parts in ways():
        result = sequences.attend(spans, isa, parts, **attributes)
        np.testing.assert_array_equal(bits(result), bits(first), err_msg=f"{isa} in {parts}")


CUTS = [
    [(0, 0, 1), (0, 1, 2), (0, 2, 5), (0, 5, 69), (0, 69, 300), (0, 300, 301), (0, 301, 600)],
    [(0, 0, 256), (0, 256, 512), (0, 512, 600)],
    [(0, 0, 13), (0, 13, 599), (0, 599, 600)],
]


@pytest.mark.parametrize("attributes", [{}, {"window": 100}, {"softcap": 1.0}])
@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("dims", [(6, 2, 16, 16), (2, 2, 20, 18)])
def test_a_row_has_the_same_bits_in_any_company(name, dims, attributes):
    """A prompt at once and in chunks, together with other sequences, in other blocks of the cache."""
    isa, attributes = LIBRARY.best_isa, {"scale": 0.3} | attributes
    alone = Sequences(name, [600], *dims)
    whole = alone.attend([(0, 0, 600)], isa, **attributes)
    for cut in CUTS:
        pieces = [alone.attend([span], isa, 2, **attributes) for span in cut]
        np.testing.assert_array_equal(bits(np.concatenate(pieces)), bits(whole))
    crowd = Sequences(name, [600, 257, 64], *dims, seed=3, gap=3)
    # The first sequence draws the same numbers in both, its blocks lie elsewhere.
    crowd.q[0] = alone.q[0]
    for i, block in enumerate(alone.blocks[0, : -(-600 // BLOCK)]):
        to = crowd.blocks[0, i]
        crowd.keys[to], crowd.values[to] = alone.keys[block], alone.values[block]
        for mine, theirs in zip(crowd.scales, alone.scales, strict=True):
            mine[to] = theirs[block]
    together = [(1, 200, 256), (0, 131, 173), (2, 63, 64), (0, 500, 501), (1, 256, 257)]
    result = crowd.attend(together, isa, 3, **attributes)
    np.testing.assert_array_equal(bits(result[56:98]), bits(whole[131:173]))
    np.testing.assert_array_equal(bits(result[99]), bits(whole[500]))

"""Cases as in `aten_cases`: special functions, bags, searches, and results whose sizes data decide."""

import torch
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.ao.quantization.fx import _decomposed
from torch.nn import functional as F

from aten_cases import A, bools, case, floats, ints

assert _decomposed  # declares the ops of its namespace
Q = torch.ops.quantized_decomposed

NAN, INF = float("nan"), float("inf")


@case(floats(3, 7, low=-0.95, high=0.95), floats(3, 7, low=0.1, high=9.0))
def special_functions(x, positive):
    ends = torch.tensor([-1.0, 1.0, 0.0, -0.0, 1.5, NAN])
    far = torch.tensor([0.0, -1.0, -2.5, 60.0, -60.0, INF, -INF, NAN])
    return {
        "erfc": torch.erfc(positive),
        "erfc_far": torch.erfc(far),
        "erfinv": torch.erfinv(x),
        "erfinv_ends": torch.erfinv(ends),
        "lgamma": torch.lgamma(positive),
        "lgamma_far": torch.lgamma(far),
        "digamma": torch.digamma(positive),
        "digamma_far": torch.digamma(far[:6]),
        "i0": torch.i0(positive),
        "i0_far": torch.i0(far[:5]),
        "of_integers": torch.lgamma(torch.arange(1, 7)),
    }


@case(floats(3, 5), torch.tensor([0.0, -0.0, 2.0, -NAN, NAN]), ints(3, 5), ints(3, 5, low=0, high=9).to(torch.uint8))
def signs_and_digits(x, y, i, small):
    return {
        "copysign": torch.copysign(x, y),
        "copysign_double": torch.copysign(x.double(), -y.double()),
        "copysign_half": torch.copysign(x[:, :3].half(), y[:3].half()),
        "copysign_int": torch.copysign(i, x),
        "copysign_scalar": A.copysign.Scalar(x, -0.0),
        "signbit": torch.signbit(y),
        "signbit_int": torch.signbit(i),
        "angle": torch.angle(torch.cat([y, x[0]])),
        "scatter_add": x.scatter(0, i.abs() % 3, x, reduce="add"),
        "scatter_mul": x.scatter(0, i[:1].abs() % 3, 2.0, reduce="multiply"),
        "put": A.put.default(x, torch.tensor([[1, -2], [3, 7]]), x[:2, :2]),
        "put_added": A.put.default(x, torch.tensor([1, -2, 1]), x[0, :3], True),
        "digits": torch.round(x * 7, decimals=1),
        "tens": torch.round(x * 70, decimals=-1),
        "none": torch.round(x, decimals=0),
        "neg_unsigned": -small,
    }


@case(torch.tensor([-1.0, 0.0, 0.0, 0.5, 2.0]), floats(3, 4), floats(3, 7), ints(3, 4, low=-2, high=3))
def searches(boundaries, x, rows, i):
    rows = rows.sort(-1)[0]
    where = torch.tensor([0.0, 2.0, 3.0, -2.0, NAN])
    return {
        "left": torch.searchsorted(boundaries, x),
        "right": torch.searchsorted(boundaries, where, side="right"),
        "equal": torch.searchsorted(boundaries, where),
        "rows": torch.searchsorted(rows, x),
        "rows_right": torch.searchsorted(rows, x, right=True, out_int32=True),
        "scalar": torch.searchsorted(boundaries, 0.0),
        "sorter": torch.searchsorted(rows.flip(-1), x, sorter=torch.arange(6, -1, -1).expand(3, 7)),
        "bucketize": torch.bucketize(x, boundaries, right=True),
        "bucketize_int": torch.bucketize(i, boundaries),
        "bucketize_scalar": torch.bucketize(0.25, boundaries),
        "empty": torch.searchsorted(boundaries[:0], x),
    }


@case(floats(9, 4), ints(8, low=0, high=9), torch.tensor([0, 3, 3, 6]), floats(8), ints(3, 5, low=0, high=9))
def bags(table, ids, offsets, weights, matrix):
    bag = F.embedding_bag
    padded = torch.tensor([2, 2, 1, 2, 3, 4, 2, 2])
    ended = torch.cat([offsets, torch.tensor([8])])
    results = {}
    for mode in ("sum", "mean", "max"):
        results[mode] = bag(ids, table, offsets, mode=mode)
        results[f"{mode}_padded"] = bag(padded, table, offsets, mode=mode, padding_idx=2)
        results[f"{mode}_ended"] = bag(ids, table, ended, mode=mode, include_last_offset=True)
        results[f"{mode}_rows"] = bag(matrix, table, mode=mode)
    return results | {
        "weighted": bag(ids, table, offsets, mode="sum", per_sample_weights=weights),
        "int32": bag(ids.int(), table, offsets.int()),
        "forward_only": A._embedding_bag_forward_only.default(table, ids, offsets)[0],
        "core": A._embedding_bag.default(table, ids, offsets, False, 1)[0],
    }


@case(floats(4, 5), floats(6), bools(4, 5), bools(4), floats(20), floats(4, 5))
def masks(x, vector, some, rows, source, other):
    return {
        "scattered": x.masked_scatter(some, source),
        "scattered_wide": A.masked_scatter.default(x, rows[:, None], source),
        "put": x.index_put((some,), torch.tensor(2.0)),
        "put_rows": A.index_put.default(x, [torch.tensor([True, False, True, True])], other[:3]),
        "put_columns": A.index_put.default(x, [None, torch.tensor([True, False, False, True, True])], other[:, :3]),
        "put_one": A.index_put.default(x, [torch.tensor([True, False, True, True])], other[:1]),
        "put_each": A.index_put.default(x, [torch.tensor([True, False, True, True])], other[0]),
        "added": A.index_put.default(x, [torch.tensor([True, False, True, True])], other[:3], True),
        "none": vector.masked_scatter(vector > 9, source[:0]),
    }


@case(floats(4, 5), bools(4, 5), ints(9, low=0, high=4), ints(5, 2, low=0, high=2), torch.tensor([2, 0, 3]), bools(4))
def sizes_of_data(x, some, numbers, pairs, repeats, rows):
    values, inverse, counts = torch.unique(numbers, return_inverse=True, return_counts=True)
    runs, of, lengths = torch.unique_consecutive(numbers, return_inverse=True, return_counts=True)
    different, which, number = torch.unique(pairs, dim=0, return_inverse=True, return_counts=True)
    return {
        "mask": x[some] * 2,
        "rows": x[rows].sum(0),
        "columns": x[:, torch.tensor([True, False, True, True, False])],
        "deeper": x[None, :, :, None][:, some],
        "selected": torch.masked_select(x, some).exp(),
        "selected_wide": torch.masked_select(x, rows[:, None]),
        "nonzero": some.nonzero(),
        "argwhere": torch.argwhere(some),
        "nonzero_scalar": (x.sum() > -99).nonzero(),
        "length": torch.zeros(some.nonzero().shape[0]) + 1,
        "values": values, "inverse": inverse, "counts": counts,
        "runs": runs, "of": of, "lengths": lengths,
        "run_rows": torch.unique_consecutive(pairs, dim=0),
        "different": different, "which": which, "number": number,
        "bins": torch.bincount(numbers),
        "bins_weighted": torch.bincount(numbers, torch.ones(9), minlength=7),
        "repeated": torch.repeat_interleave(x[:3], repeats, 0),
        "repeated_known": torch.repeat_interleave(x[:3], repeats, 0, output_size=5),
    }  # fmt: skip


@case(floats(6), torch.tensor(2), torch.tensor(-3))
def numbers_of_data(x, count, lower):
    return {
        "product": x * x.sum().item(),
        "first": x[: count.item()] + count.item(),
        "negative": x + lower.item(),
        "filled": torch.full((3,), x.sum().item()),
        "held": x.clamp(max=x.mean().item()),
    }


@case(floats(6), torch.tensor([0, 0, 2, 5, 5]), floats(5), ints(6), ints(5), floats(3, 4), torch.tensor([0, 2, 0]))
def reductions_without_self(x, places, source, whole, numbers, rows, index):
    results = {}
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for own in (True, False):
            results[f"{reduce}_{own}"] = x.scatter_reduce(0, places, source, reduce, include_self=own)
            results[f"{reduce}_{own}_int"] = whole.scatter_reduce(0, places, numbers, reduce, include_self=own)
    for reduce in ("prod", "mean", "amax", "amin"):
        for own in (True, False):
            results[f"slices_{reduce}_{own}"] = rows.index_reduce(0, index, rows * 2, reduce, include_self=own)
    return results


@case(
    floats(3, 7, low=-9.0, high=9.0),
    floats(3, 7),
    torch.tensor([1.0, NAN, -2.0, NAN]),
    torch.tensor([NAN, NAN, 3.0, 4.0]),
)
def functions_of_few(x, y, left, right):
    return {
        "i0e": torch.special.i0e(x),
        "i1": torch.special.i1(x),
        "i1e": torch.special.i1e(x * 9),
        "fmax": torch.fmax(left, right),
        "fmin": torch.fmin(x, y),
        "fmax_int": torch.fmax((x * 9).long(), (y * 9).long()),
        "nanmedian": torch.nanmedian(torch.cat([left, right])),
        "nanmedian_dim": torch.nanmedian(torch.stack([left, right]), 1)[0],
        "nanmedian_places": torch.nanmedian(torch.stack([left, right, right]), 0, keepdim=True)[1][..., 2:],
        "nanmedian_int": torch.nanmedian((x * 3).long(), 1)[0],
        "norm_0": torch.linalg.vector_norm(x.relu(), 0, 1),
        "pdist": F.pdist(x),
        "pdist_1": F.pdist(x, 1.0),
    }


@case(
    floats(2, 3, 5, 6), floats(2, 3, 2, 3), floats(2, 3, 3, 3), floats(3), floats(3, low=0.5, high=2.0),
    ints(2, 4, low=0, high=7), floats(2, 4, 5),
)  # fmt: skip
def ways_back(x, pooled, adapted, channel, positive, ids, rows):
    back = A.avg_pool2d_backward.default
    mean, scale = A.native_layer_norm.default(x, [6], None, None, 1e-5)[1:]
    group_mean, group_scale = A.native_group_norm.default(x, channel, None, 2, 3, 30, 3, 1e-5)[1:]
    own_mean, own_scale = A._native_batch_norm_legit.no_stats(x, channel, None, True, 0.1, 1e-5)[1:]
    moved = A._native_batch_norm_legit_functional.default(x, channel, None, channel, positive, True, 0.1, 1e-5)
    still = A._native_batch_norm_legit_functional.default(x, channel, None, channel, positive, False, 0.1, 1e-5)
    layer = A.native_layer_norm_backward.default(x, x * 2, [6], mean, scale, None, None, [True, False, False])
    group = A.native_group_norm_backward.default(x, x, group_mean, group_scale, channel, 2, 3, 30, 3, [True] * 3)
    return {
        "average": back(pooled, x, [2, 2], [2, 2], [0, 0], False, True, None),
        "average_padded": back(adapted, x, [3, 3], [2, 2], [1, 1], False, False, None),
        "average_counted": back(adapted, x, [3, 3], [2, 2], [1, 1], False, True, None),
        "average_divided": back(pooled, x, [2, 2], [], [0, 0], False, True, 3),
        "adaptive": A._adaptive_avg_pool2d_backward.default(pooled, x),
        "embedding": A.embedding_dense_backward.default(rows, ids, 7, 2, False),
        "mean": mean, "scale": scale, "group_mean": group_mean, "group_scale": group_scale,
        "own_mean": own_mean, "own_scale": own_scale,
        "layer": layer[0], "group": group[0], "group_weight": group[1],
        "normed": moved[0], "batch_mean": moved[1], "moved_mean": moved[3], "moved_variance": moved[4],
        "still": still[0],
    }  # fmt: skip


@case(floats(4, 6), floats(3, 4, 5), floats(3, 5, 2), floats(4, 2), floats(4), floats(2, 3, 5, 7, 4))
def strided_and_added(x, left, right, beside, diagonal, volume):
    return {
        "strided": A.as_strided.default(x, [3, 2], [6, 2], 1),
        "strided_overlapping": A.as_strided.default(x, [5, 3], [1, 1]),
        "strided_copy": A.as_strided_copy.default(x, [2, 2], [1, 3]),
        "addbmm": torch.addbmm(beside, left, right, beta=0.5, alpha=2),
        "addbmm_alone": torch.addbmm(beside, left, right, beta=0),
        "diagonal": torch.diagonal_scatter(x, diagonal),
        "diagonal_above": torch.diagonal_scatter(x, diagonal, 2),
        "reflected": F.pad(volume, (1, 2, 2, 1, 1, 1), mode="reflect"),
        "replicated": F.pad(volume, (1, 2, 2, 1, 1, 3), mode="replicate"),
    }


@case(floats(4, 6), floats(4, low=0.01, high=0.1), ints(4, low=-5, high=6), torch.tensor(0.03), torch.tensor(-7))
def quantized(x, scales, points, scale, point):
    codes = Q.quantize_per_tensor.default(x, 0.02, -3, -128, 127, torch.int8)
    bytes_ = Q.quantize_per_tensor.tensor(x, scale, point + 100, 0, 255, torch.uint8)
    channels = Q.quantize_per_channel.default(x, scales, points, 0, -127, 127, torch.int8)
    chosen, middle = Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    even, none = Q.choose_qparams_symmetric.tensor(x, -127, 127, 1e-5, torch.int8)
    each, middles = Q.choose_qparams_per_token_asymmetric.default(x, torch.int8)
    tokens = Q.quantize_per_token.default(x, each, middles, -128, 127, torch.int8)
    limits = torch.tensor(-128), torch.tensor(127)
    return {
        "codes": codes, "bytes": bytes_, "channels": channels, "tokens": tokens,
        "codes2": Q.quantize_per_tensor.tensor2(x, scale, point, *limits, torch.int8),
        "back": Q.dequantize_per_tensor.default(codes, 0.02, -3, -128, 127, torch.int8),
        "back_wide": Q.dequantize_per_tensor.default(codes, 0.02, -3000, -128, 127, torch.int8),
        "back_tensor": Q.dequantize_per_tensor.tensor(bytes_, scale, point + 100, 0, 255, torch.uint8),
        "back_tensor2": Q.dequantize_per_tensor.tensor2(codes, scale, point, *limits, torch.int8),
        "back_channels": Q.dequantize_per_channel.default(channels, scales, points, 0, -127, 127, torch.int8),
        "back_even": Q.dequantize_per_channel.default(channels, scales, None, 0, -127, 127, torch.int8),
        "back_tokens": Q.dequantize_per_token.default(tokens, each, middles, -128, 127, torch.int8, torch.float32),
        "chosen": chosen, "middle": middle, "even": even, "none": none, "each": each, "middles": middles,
        "unfused": Q.convert_element_type.no_fuse(codes, torch.float32),
    }  # fmt: skip


@case(floats(4, 3), floats(3), torch.tensor(3))
def graphs_that_run(x, row, count):
    chosen = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    steps = while_loop(lambda i, y: i < count, lambda i, y: (i + 1, y * 2), (torch.zeros_like(count), x))[1]
    last, rows = scan(lambda c, r: (c + r, c * r), row, x)
    return {"cond": chosen, "while": steps, "last": last, "rows": rows, "map": torch_map(lambda r, c: r * c, x, row)}


@case(
    floats(2, 4, 6), floats(2, 3, 5, 6), floats(2, 3, 4, 5, 4), floats(4, 3, 2, 2), floats(2, 4, 4, 5),
    floats(2, 12, 6),
)  # fmt: skip
def core_alone(x, image, volume, weight, d, columns):
    """Overloads of the core set that torch's own front avoids, and its decompositions replace."""
    ways = A.convolution_backward.default(d, image, weight, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3)
    return {
        "reflected_1": A.reflection_pad1d.default(x, [2, 1]),
        "reflected_2": A.reflection_pad2d.default(image, [2, 1, 1, 2]),
        "reflected_3": A.reflection_pad3d.default(volume, [2, 1, 1, 2, 1, 1]),
        "replicated_2": A.replication_pad2d.default(image, [2, 1, 1, 2]),
        "replicated_3": A.replication_pad3d.default(volume, [2, 1, 1, 2, 1, 1]),
        "adapted": A.adaptive_avg_pool1d.default(x, [4]),
        "averaged": A.avg_pool1d.default(x, [2], [2]),
        "folded": A.col2im.default(columns, [4, 6], [2, 2], [1, 1], [0, 0], [2, 2]),
        "filled": A.fill.Scalar(x, 2.5),
        "put_row": A.select_scatter.default(x, x[:, 0], 1, 2),
        "squeezed": A.squeeze.dim(x[:, :1], 1),
        "variance": A.var.dim(x, [1]),
        "of_image": ways[0], "of_weight": ways[1], "of_bias": ways[2],
    }  # fmt: skip

"""More cases of `aten_cases`: rearranging, making, indexing, convolution and pooling."""

import torch
from torch.nn import functional as F

from aten_cases import A, case, floats, ints


@case(floats(2, 3, 4), floats(2, 1, 4), floats(4))
def shapes(x, thin, vector):
    return {
        "view": x.view(6, 4),
        "reshape": x.transpose(0, 1).reshape(-1, 2),
        "as": x.view_as(x.transpose(0, 2)),
        "reshape_as": x.reshape_as(x.transpose(0, 1)),
        "flatten": x.flatten(1),
        "unflatten": x.unflatten(-1, (2, 2)),
        "ravel": A.ravel.default(x),
        "unsqueeze": x.unsqueeze(-2),
        "squeeze": thin.squeeze(),
        "squeeze_dim": thin.squeeze(1),
        "squeeze_dims": torch.squeeze(thin, (0, 1)),
        "unsafe_view": A._unsafe_view.default(x, [4, 6]),
        "expand": thin.expand(2, 5, 4),
        "expand_new": vector.expand(3, -1),
        "expand_as": thin.expand_as(x),
        "broadcast": torch.broadcast_to(vector, (2, 4)),
        "permute": x.permute(2, 0, 1),
        "transpose": x.transpose(-1, 0),
        "swap": A.swapaxes.default(x, 0, 1),
        "swapdims": A.swapdims.default(x, 0, 1),
        "t": x[0].t(),
        "T": A.numpy_T.default(x),
        "mT": x.mT,
        "adjoint": A.adjoint.default(x),
        "H": A.matrix_H.default(x[0]),
        "mH": A.mH.default(x),
        "movedim": torch.movedim(x, 0, -1),
        "movedims": torch.movedim(x, (0, 1), (1, 2)),
        "moveaxis": A.moveaxis.int(x, 0, 2),
        "moveaxes": A.moveaxis.intlist(x, [0], [1]),
        "repeat": x.repeat(2, 1, 3),
        "repeat_new": vector.repeat(2, 2),
        "tile": torch.tile(x, (2, 1)),
        "interleave": x.repeat_interleave(2, 1),
        "interleave_flat": x.repeat_interleave(3),
        "flip": x.flip(0, -1),
        "roll": x.roll(1, 2),
        "rolls": x.roll((1, -2), (0, 1)),
        "roll_flat": x.roll(5),
        "circular": F.pad(x, (1, 2, 3, 0), mode="circular"),
        "circular_once": F.pad(x, (4, 4), mode="circular"),
        "circular_cropped": F.pad(x, (-1, 2, 2, -1), mode="circular"),
        "circular_whole": F.pad(x, (0, 0), mode="circular"),
        "cat": torch.cat([x, thin], 1),
        "stack": torch.stack([x, x * 2], -1),
        "hstack": torch.hstack([x, x]),
        "cat_empty": torch.cat([torch.zeros(0), x], 0),
        "concat": A.concat.default([x, x], 1),
        "concatenate": A.concatenate.default([x, x]),
        "tril": x.tril(),
        "triu": x.triu(1),
        "tril_low": x.tril(-1),
        "rank0": vector.sum().transpose(0, 0),
        "rot90": torch.rot90(x),
        "pixel_shuffle": F.pixel_shuffle(x.repeat(2, 1, 1)[:, :2, :2].unsqueeze(0), 2),
        "meshgrid": torch.meshgrid(vector, vector, indexing="ij")[1],
    }


def assigned(x):
    y = x.clone()
    y[:, 1] = 0
    y[1:3].relu_()
    y[:, :, 2:4] += x[:, :, :2]
    return y


@case(floats(5, 6, 4))
def parts(x):
    split, chunks, unbound = x.split(2), x.chunk(4, 1), x.unbind(1)
    return {
        "slice": x[1:4],
        "strided": x[:, 1::2],
        "negative": x[-3:-1],
        "beyond": x[2:100, :3],
        "select": x[1],
        "last": x[:, -1],
        "none": x[None, ..., 2],
        "empty": x[3:3],
        "narrow": x.narrow(1, 2, 3),
        "narrow_back": torch.narrow(x, 0, -2, 2),
        "narrow_copy": A.narrow_copy.default(x, 0, 1, 2),
        "split0": split[0],
        "split2": split[2],
        "chunk": chunks[2],
        "sizes": x.split([1, 2, 3], 1)[2],
        "with_sizes": A.split_with_sizes.default(x, [4, 1])[1],
        "unbind": unbound[5] - unbound[0],
        "split_sizes": A.split.sizes(x, [4, 1])[0],
        "unsafe_split": A.unsafe_split.Tensor(x, 3)[1],
        "unsafe_chunk": A.unsafe_chunk.default(x, 2)[1],
        "unsafe_sizes": A.unsafe_split_with_sizes.default(x, [2, 3])[1],
        "sections": torch.tensor_split(x, 4)[1],
        "indices": torch.tensor_split(x, (1, 3))[2],
        "diagonal": torch.diagonal(x),
        "diagonal_off": torch.diagonal(x, 1, 1, 2),
        "diagonal_below": x[0].diagonal(-2),
        "slice_scatter": torch.slice_scatter(x, x[:2] * 2, 0, 1, 3),
        "slice_scatter_step": torch.slice_scatter(x, x[:2] * 2, 0, 0, 5, 3),
        "select_scatter": torch.select_scatter(x, x[0] * 2, 0, -1),
        "pad": F.pad(x, (1, 2)),
        "reflect": F.pad(x, (1, 1), mode="reflect"),
        "crop": F.pad(x, (-1, 1, 2, 0), value=0.5),
        "constant_pad": A.constant_pad_nd.default(x, [0, 0, 1, 1], 2.0),
        "pad_nothing": F.pad(x, (0, 0)),
        "trace": x[0].trace(),
        "unfold": x.unfold(1, 3, 2),
        "unfold_last": x.unfold(-1, 2, 1),
    }


@case(floats(5, 6, 4))
def written_in_place(x):
    """Alone: torch makes the whole program functional, which decomposes the other ops."""
    return {"in_place": assigned(x)}


@case(floats(3, 4), ints(3, 4))
def conversions(x, i):
    return {
        "long": x.long(),
        "bool": i.bool(),
        "float": i.float(),
        "as": i.type_as(x),
        "other": i.to(x),
        "dtype": x.to(torch.float64),
        "same": x.to(torch.float32) + 0,
        "device": x.to("cpu", torch.int32),
        "copy": A._to_copy.default(x, dtype=torch.int64),
        "clone": x.clone(),
        "contiguous": x.t().contiguous(),
        "detach": x.detach() * 1,
        "alias": A.alias.default(x) * 1,
        "lift": A.lift_fresh_copy.default(x),
        "positive": torch.positive(x) * 1,
        "prim": torch.ops.prims.convert_element_type.default(x, torch.int64),
        "dropout": F.dropout(x, 0.5, training=False),
        "native_dropout": A.native_dropout.default(x, 0.5, False)[0],
        "feature": F.feature_alpha_dropout(x, 0.5, False) + 0,
        "alpha": F.alpha_dropout(x, 0.5, False),
        "layout": A.to.dtype_layout(x, dtype=torch.float64, layout=torch.strided),
        "fresh": A.lift_fresh.default(x) * 1,
        "real_lift": A.lift.default(x) * 1,
        "feature_dropout": A.feature_dropout.default(x, 0.5, False),
        "resolve": A.resolve_conj.default(x) * 1,
        "resolve_neg": A.resolve_neg.default(x) * 1,
    }


@case(floats(3, 4), ints(3, 4))
def sources(x, i):
    return {
        "full": torch.full((2, 3), 1.5),
        "new_full": x.new_full((2,), 3),
        "full_like": torch.full_like(x, 2),
        "zeros": torch.zeros(2, 3),
        "zeros_like": torch.zeros_like(i),
        "new_zeros": x.new_zeros(3),
        "ones": torch.ones(2),
        "ones_like": torch.ones_like(x),
        "new_ones": i.new_ones(2, 2),
        "scalar": torch.scalar_tensor(2.5) + x,
        "arange": torch.arange(5),
        "from": torch.arange(2, 7),
        "step": torch.arange(1.0, 2.0, 0.25),
        "backwards": torch.arange(5, 0, -2),
        "floats": torch.arange(0, 3, dtype=torch.float32),
        "small": torch.arange(4, dtype=torch.int32),
        "eye": torch.eye(3),
        "eye_wide": torch.eye(2, 4),
        "fill": A.fill.Scalar(x, 3),
        "fill_tensor": A.fill.Tensor(x, torch.tensor(2.0)),
        "copy": A.copy.default(x, i),
        "zero": A.zero.default(x),
        # No number, not even a NaN, is above infinity: the content of unset memory has no effect.
        "empty": torch.empty(2, 3) > float("inf"),
        "empty_like": torch.empty_like(x) > float("inf"),
        "new_empty": x.new_empty(2) > float("inf"),
        "strided": A.empty_strided.default([2, 3], [3, 1]) > float("inf"),
        "permuted": A.empty_permuted.default([2, 3], [0, 1]) > float("inf"),
        "new_strided": A.new_empty_strided.default(x, [2], [1]) > float("inf"),
        "linspace": torch.linspace(0, 1, 5),
        "tensor": torch.tensor([1.0, 2.0]) + 1,
        "float_like": torch.full_like(i, 1.5, dtype=torch.float32),
        "bool_full": torch.full((2,), True),
        "one_hot": F.one_hot(i.abs(), 7),
    }


@case(floats(7, 4, 5), torch.tensor([0, 6, -7, 3]), torch.tensor([[1, -1], [0, 2]]), ints(3, 4, 5, low=0, high=3))
def indexing(x, rows, pairs, at):
    columns = torch.tensor([3, 0, -1, 1])
    return {
        "embedding": F.embedding(pairs.abs(), x[:, 0]),
        "padding": F.embedding(pairs.abs(), x[:, 0], padding_idx=0),
        "index": x[rows],
        "axis": x[:, pairs],
        "both": x[rows, columns],
        "grid": x[rows[:, None], columns],
        "split_sums": x[rows, :, columns],
        "last": x[..., columns],
        "last_two": x[:, columns, columns],
        "select": x.index_select(1, pairs[0].abs()),
        "select_one": x.index_select(0, torch.tensor(2)),
        "gather": x.gather(0, at),
        "gather_short": x.gather(1, at[:2, :, :3]),
        "along": torch.take_along_dim(x, at[:1, :1], 1),
        "all": x[rows, columns, columns],
        "unsafe": A._unsafe_index.Tensor(x, [rows]),
        "small": x[rows.int()],
        "list": x[[0, 2]],
        "rank0": x.sum().gather(0, torch.tensor(0)),
    }


@case(
    floats(2, 4, 9, 8),
    floats(6, 4, 3, 3),
    floats(6),
    floats(6, 2, 3, 2),
    floats(2, 4, 9),
    floats(5, 4, 3),
    floats(5),
    floats(2, 1, 2, 2, 2),
)
def convolutions(x, w, b, grouped, line, w1, b1, w3):
    return {
        "conv2d": F.conv2d(x, w, b),
        "strided": F.conv2d(x, w, None, 2, 1),
        "dilated": F.conv2d(x, w, b, (1, 2), (2, 0), (2, 1)),
        "groups": F.conv2d(x, grouped, groups=2),
        "same": F.conv2d(x, grouped, groups=2, padding="same"),
        "valid": F.conv2d(x, w, padding="valid"),
        "unbatched": F.conv2d(x[0], w),
        "conv1d": F.conv1d(line, w1, b1, padding=1),
        "conv3d": F.conv3d(x[:, None], w3),
        "same1d": F.conv1d(line, w1, padding="same"),
        "same3d": F.conv3d(x[:, None], w3, padding="same"),
        "core": A.convolution.default(x, w, b, [1], [1], [1], False, [0], 1),
    }


@case(floats(2, 3, 9, 8), floats(2, 3, 9), floats(1, 2, 4, 6, 6))
def pooling(x, line, volume):
    return {
        "max": F.max_pool2d(x, 2),
        "max_stride": F.max_pool2d(x, 3, 2, 1),
        "max_ceil": F.max_pool2d(x, 2, 2, ceil_mode=True),
        "max_dilated": F.max_pool2d(x, (3, 2), 1, dilation=(2, 1)),
        "max1": F.max_pool1d(line, 3, 2),
        "max3": F.max_pool3d(volume, 2),
        "max_unbatched": F.max_pool2d(x[0], 2),
        "avg": F.avg_pool2d(x, 2),
        "avg_pad": F.avg_pool2d(x, 3, 2, 1),
        "avg_inside": F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "avg_ceil": F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False),
        "avg_ceil_counted": F.avg_pool2d(x, 2, ceil_mode=True),
        "avg_larger": F.avg_pool2d(x, 50, ceil_mode=True),
        "divisor": F.avg_pool2d(x, 2, divisor_override=3),
        "avg1": F.avg_pool1d(line, 3),
        "avg3": F.avg_pool3d(volume, 2),
        "adaptive": F.adaptive_avg_pool2d(x, (3, 4)),
        "global": F.adaptive_avg_pool2d(x, 1),
        "adaptive1": F.adaptive_avg_pool1d(line, 3),
        "adaptive3": F.adaptive_avg_pool3d(volume, 2),
        "adaptive_max": F.adaptive_max_pool2d(x, (3, 2)),
        "adaptive_max1": F.adaptive_max_pool1d(line, 3),
        "adaptive_max3": F.adaptive_max_pool3d(volume, (2, 3, 3)),
        "indices": A.max_pool2d_with_indices.default(x, [2, 2])[0],
        "indices3": A.max_pool3d_with_indices.default(volume, [2, 2, 2])[0],
        "indices1": A.max_pool1d_with_indices.default(line, [2])[0],
        "core2": A._adaptive_avg_pool2d.default(x, [3, 2]),
        "core3": A._adaptive_avg_pool3d.default(volume, [2, 2, 2]),
    }


@case(floats(2, 4, 5, 6), floats(4, 3, 3, 2), floats(6), floats(2, 4, 7), floats(4, 2, 4))
def transposed_convolutions(x, w, b, line, w1):
    return {
        "plain": F.conv_transpose2d(x, w, b[:3]),
        "stride": F.conv_transpose2d(x, w, b[:3], (2, 3), (1, 0), (1, 2)),
        "groups": F.conv_transpose2d(x, w, b, 2, groups=2, dilation=(1, 2)),
        "unbatched": F.conv_transpose2d(x[0], w),
        "line": F.conv_transpose1d(line, w1, b[:2], 3, 1),
        "volume": F.conv_transpose3d(x[:, :, None], w[:, :, None], stride=(1, 2, 2)),
        "core": A.convolution.default(x, w, b[:3], [2], [1], [1], True, [0], 1),
    }


@case(floats(2, 3, 9, 8), floats(2, 3, 9), floats(1, 2, 4, 6, 6))
def upsampling(x, line, volume):
    return {
        "nearest": F.interpolate(x, scale_factor=2),
        "nearest1": F.interpolate(line, 18),
        "nearest3": F.interpolate(volume, scale_factor=2),
        "nearest_op": A.upsample_nearest2d.default(x, [18, 24]),
        "nearest_op1": A.upsample_nearest1d.default(line, [27]),
        "nearest_op3": A.upsample_nearest3d.default(volume, [4, 6, 12]),
        "fraction": F.interpolate(x, scale_factor=(1.7, 0.6)),
        "fraction_op": A.upsample_nearest2d.default(x, [15, 4], 1.7, 0.6),
        "size": F.interpolate(line, 5),
        "exact": F.interpolate(x, (5, 11), mode="nearest-exact"),
        "exact1": F.interpolate(line, scale_factor=1.5, mode="nearest-exact"),
        "exact3": F.interpolate(volume, 3, mode="nearest-exact"),
        "exact_op": A._upsample_nearest_exact2d.default(x, [5, 11]),
        "exact_op1": A._upsample_nearest_exact1d.default(line, [5]),
        "exact_op3": A._upsample_nearest_exact3d.default(volume, [3, 3, 3]),
    }


@case(floats(2, 3, 9, 8), floats(2, 3, 9), floats(1, 2, 4, 6, 6))
def interpolation(x, line, volume):
    return {
        "linear": F.interpolate(line, scale_factor=1.5, mode="linear"),
        "linear_corners": F.interpolate(line, 4, mode="linear", align_corners=True),
        "bilinear": F.interpolate(x, scale_factor=2, mode="bilinear"),
        "bilinear_scales": F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"),
        "bilinear_size": F.interpolate(x, (5, 13), mode="bilinear", recompute_scale_factor=False),
        "bilinear_corners": F.interpolate(x, (5, 13), mode="bilinear", align_corners=True),
        "bilinear_one": F.interpolate(x, (1, 8), mode="bilinear", align_corners=True),
        "trilinear": F.interpolate(volume, (3, 9, 6), mode="trilinear"),
        "bicubic": F.interpolate(x, scale_factor=1.5, mode="bicubic"),
        "bicubic_corners": F.interpolate(x, (5, 13), mode="bicubic", align_corners=True),
        "bilinear_aa": F.interpolate(x, (4, 13), mode="bilinear", antialias=True),
        "bicubic_aa": F.interpolate(x, (3, 5), mode="bicubic", antialias=True),
        "linear_op": A.upsample_linear1d.default(line, [12], False),
        "bilinear_op": A.upsample_bilinear2d.default(x, [12, 5], False, 1.4, None),
        "trilinear_op": A.upsample_trilinear3d.default(volume, [8, 5, 6], True),
        "bicubic_op": A.upsample_bicubic2d.default(x, [12, 5], False),
        "bilinear_aa_op": A._upsample_bilinear2d_aa.default(x, [4, 5], False),
        "bicubic_aa_op": A._upsample_bicubic2d_aa.default(x, [4, 5], True),
    }


@case(floats(2, 3, 5, 4), floats(2, 6, 3, 2), floats(1, 2, 4, 3, 5), floats(1, 3, 2, 4, 3))
def sampled(x, grid, volume, places):
    """Points beyond the borders too."""
    results = {
        f"{mode}_{padding}_{align}": F.grid_sample(x, grid, mode, padding, align)
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for align in (False, True)
    }
    return results | {
        "volume": F.grid_sample(volume, places, align_corners=False),
        "op": A.grid_sampler_2d.default(x, grid, 0, 1, True),
        "volume_op": A.grid_sampler_3d.default(volume, places, 1, 0, False),
    }


@case(floats(6, 3, 4), floats(4, 3, 5), floats(4, 3, 5), floats(20, 4), floats(20, 10), floats(20, 5), floats(20))
def recurrent(x, h, c, first, later, own, bias):
    """Weights of a layer and direction are those of the inputs, of the hidden state, and two biases."""
    one, two, state = [first, own], [first, own, bias, bias * 0.5], (h[:1], c[:1])
    deep = [*two, *two, later, own, bias, bias, later, own, bias, bias]
    narrow = [own[:, :2], bias, bias * 0.5, own[:2]]  # projected to 2
    shallow = [[first, *narrow], [first, *narrow], [later[:, :4], *narrow], [later[:, 4:8], *narrow]]
    projected = [part for weights in shallow for part in weights]
    gru, rnn = ([part[: 5 * gates] for part in deep] for gates in (3, 1))
    results = {
        "plain": A.lstm.input(x, state, one, False, 1, 0.0, False, False, False),
        "batch_first": A.lstm.input(x.transpose(0, 1), state, two, True, 1, 0.0, False, False, True),
        "deep": A.lstm.input(x, (h, c), deep, True, 2, 0.0, False, True, False),
        "projected": A.lstm.input(
            x, (h[:1, :, :2], c[:1]), [first, narrow[0], own[:2]], False, 1, 0.0, False, False, False
        ),
        "projected_deep": A.lstm.input(x, (h[:, :, :2], c), projected, True, 2, 0.0, False, True, False),
        "gru": A.gru.input(x, h[:1], gru[:2], False, 1, 0.0, False, False, False),
        "gru_deep": A.gru.input(x.transpose(0, 1), h, gru, True, 2, 0.0, False, True, True),
        "tanh": A.rnn_tanh.input(x, h, rnn, True, 2, 0.0, False, True, False),
        "relu": A.rnn_relu.input(x.transpose(0, 1), h[:1], rnn[:2], False, 1, 0.0, False, False, True),
    }
    return {f"{name}{i}": part for name, parts in results.items() for i, part in enumerate(parts)}

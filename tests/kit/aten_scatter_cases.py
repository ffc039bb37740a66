"""Cases as in `aten_cases`: elements put, added and pooled where indices and windows of many sizes say."""

import torch
from torch.nn import functional as F

from aten_cases import A, bools, case, floats, ints


@case(floats(4, 5, 3), floats(2, 5, 3), ints(2, 5, 3, low=0, high=4), floats(6), ints(9, low=0, high=6), floats(9))
def scatters(x, part, index, vector, places, additions):
    return {
        "src": x.scatter(0, index, part),
        "larger_src": x.scatter(0, index[:, :3], part),
        "value": x.scatter(0, index, 0.5),
        "add": x.scatter_add(0, index, part),
        "add_vector": vector.scatter_add(0, places, additions),
        "reduce_sum": vector.scatter_reduce(0, places, additions, "sum"),
        "reduce_prod": vector.scatter_reduce(0, places, additions, "prod"),
        "reduce_max": vector.scatter_reduce(0, places, additions, "amax"),
        "reduce_min": vector.scatter_reduce(0, places, additions, "amin"),
        "core": A.scatter.src(x, -3, index, part),
    }


@case(floats(4, 5, 3), floats(4, 7, 3), torch.tensor([0, 4, 1, 1, 0, 3, 2]), ints(4, 5, 3, low=-9, high=9))
def slices_put(x, source, index, whole):
    return {
        "add": x.index_add(1, index, source),
        "add_scaled": x.index_add(-2, index, source, alpha=0.5),
        "add_first": x.index_add(0, index[2:4], source[:2, :5]),
        "copy": x.index_copy(1, index[[0, 1, 2, 5]], source[:, :4]),
        "add_integers": whole.index_add(1, index, whole[:, [0, 1, 2, 3, 4, 0, 1]]),
        "rank0": x.sum().index_add(0, index[0], x.mean()),
    }


@case(floats(4, 5, 3), ints(6, low=-4, high=4), torch.tensor([[0], [3]]), floats(6, 3), bools(4, 5), bools(4, 5, 3))
def puts(x, rows, columns, source, some, mask):
    one = torch.tensor(2.5)
    return {
        "rows": x.index_put((columns[:, 0],), source[:2, None]),
        "rows_added": x.index_put((rows,), source[:, None], accumulate=True),
        "pairs": x.index_put((torch.arange(3), torch.arange(3)), source[:3]),
        "outer": x.index_put((columns, torch.arange(4)[None]), one),
        "last_two": A.index_put.default(x, [None, torch.arange(3), torch.arange(3)], source[:4]),
        "split_sums": A.index_put.default(x, [torch.arange(3), None, torch.arange(3)], source[:3, :1]),
        "unchecked": A._unsafe_index_put.default(x, [rows], source[:, None], True),
        "mask": x.index_put((mask,), one),
        "first_axes": x.index_put((some,), one),
        "written": x.masked_fill(mask, 1.0).index_put((rows % 4,), one),
    }


@case(floats(2, 12, 6), floats(2, 12, 20), floats(12, 20))
def folds(blocks, columns, single):
    return {
        "side_by_side": F.fold(blocks, (4, 6), (2, 2), stride=(2, 2)),
        "overlapping": F.fold(columns, (5, 6), (2, 2)),
        "split_sums": F.fold(blocks[:, :, :4], (7, 9), (2, 3), stride=(3, 4)),
        "padded": F.fold(columns[:, :, :16], (4, 6), (3, 2), padding=(1, 1), stride=(1, 2)),
        "dilated": F.fold(columns[:, :, :6], (6, 6), (2, 3), stride=(1, 2), dilation=(3, 2), padding=(0, 1)),
        "single": F.fold(single, (5, 6), (2, 2)),
    }


@case(floats(2, 3, 7), floats(2, 3, 5, 8), floats(1, 2, 3, 5, 4))
def windows_of_many_sizes(x, image, volume):
    return {
        "average_1d": F.adaptive_avg_pool1d(x, 4),
        "average_2d": F.adaptive_avg_pool2d(image, (3, 3)),
        "average_more": F.adaptive_avg_pool2d(image, (7, 8)),
        "average_3d": F.adaptive_avg_pool3d(volume, (2, 3, 4)),
        "maximum_1d": F.adaptive_max_pool1d(x, 3),
        "maximum_2d": F.adaptive_max_pool2d(image, (2, 5)),
        "places_1d": F.adaptive_max_pool1d(x, 3, return_indices=True)[1],
        "places_2d": F.adaptive_max_pool2d(image[0], (2, 5), return_indices=True)[1],
        "places_of_one_size": F.adaptive_max_pool2d(image, (1, 4), return_indices=True)[1],
        "places_3d": F.adaptive_max_pool3d(volume, (2, 3, 4), return_indices=True)[1],
    }


@case(floats(2, 3, 9), floats(2, 3, 7, 8))
def partial_windows(x, image):
    return {
        "counted": F.avg_pool2d(image, 3, 2, 1, ceil_mode=True),
        "counted_split": F.avg_pool2d(image, (2, 3), (3, 4), (1, 1), ceil_mode=True),
        "uncounted": F.avg_pool2d(image, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        "unpadded": F.avg_pool2d(image, 3, 2, ceil_mode=True),
        "divided": F.avg_pool2d(image, 3, 2, 1, ceil_mode=True, divisor_override=5),
        "divided_unpadded": F.avg_pool2d(image, 3, 2, ceil_mode=True, count_include_pad=False, divisor_override=4),
        "line": F.avg_pool1d(x, 4, 3, 2, ceil_mode=True),
        "volume": F.avg_pool3d(image[None], 3, 2, 1, ceil_mode=True),
    }


@case(floats(3, 4, 5), floats(4))
def batches_by_their_own_numbers(x, channel):
    given, no_mean, no_scale = torch.native_batch_norm(x, None, None, channel, channel.abs() + 1, False, 0.1, 1e-5)
    return {
        "plain": F.batch_norm(x, None, None, training=True),
        "affine": F.batch_norm(x, None, None, channel, channel * 2, training=True),
        "core": A._native_batch_norm_legit.no_stats(x, channel, None, True, 0.1, 1e-5)[0],
        "given": given,
        "no_mean": no_mean,
        "no_scale": no_scale,
    }

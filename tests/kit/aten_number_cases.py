"""Cases as in `aten_cases`: integers, bits of floats, counts in bins, segments, windows, and elements of memory."""

import torch
from torch.nn import functional as F
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

from aten_cases import A, case, floats, ints

INF, NAN = float("inf"), float("nan")
EDGES = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-40, -1e-45, 3.4e38, 1.1754944e-38, 6.5]


@case(ints(3, 5, low=-30, high=30), ints(5, low=-9, high=9), torch.tensor(EDGES), floats(4, 7).round())
def numbers(i, j, edges, repeated):
    values, places = torch.mode(repeated, 1)
    across, rows = torch.mode(i // 9, 0, keepdim=True)
    fraction, power = torch.frexp(edges)
    wide, wide_power = torch.frexp(edges.double() * 3)
    half, half_power = torch.frexp(torch.tensor([1e-7, 6e-5, -0.3, 1000.0]).half())
    return {
        "gcd": torch.gcd(i, j), "gcd_zero": torch.gcd(i, i * 0), "gcd_small": torch.gcd(i.to(torch.int8), j.int()),
        "lcm": torch.lcm(i, j), "lcm_zero": torch.lcm(i * 0, j),
        "up": torch.nextafter(edges, torch.tensor(INF)), "down": torch.nextafter(edges, torch.tensor(-INF)),
        "none": torch.nextafter(edges, edges), "far": torch.nextafter(edges.double(), edges.double().flip(0)),
        "nan": torch.nextafter(edges, torch.tensor(NAN)),
        "fraction": fraction, "power": power, "wide": wide, "wide_power": wide_power, "half": half,
        "half_power": half_power, "mode": values, "mode_places": places, "mode_across": across, "mode_rows": rows,
        "mode_scalar": torch.mode(edges[3])[1],
        "hash": torch.hash_tensor(edges), "hash_rows": torch.hash_tensor(repeated, dim=1, keepdim=True),
        "hash_one": torch.hash_tensor(edges[3]), "hash_integers": torch.hash_tensor(i, dim=(0, 1)),
        "hash_bytes": torch.hash_tensor(j.to(torch.uint8)), "hash_bools": torch.hash_tensor(j > 0),
        "hash_half": torch.hash_tensor(repeated.half(), dim=(0,)), "hash_wide": torch.hash_tensor(repeated.double()),
        "slopes": F.rrelu(edges), "slopes_wide": A.rrelu_with_noise_functional.default(edges, edges, 0.5, 1.0)[0],
    }  # fmt: skip


@case(floats(40, low=-1.0, high=3.0), floats(9, 2), torch.tensor([-1.0, 0.0, 0.5, 2.5]), floats(9, low=0.0))
def histograms(x, points, edges, weights):
    results = {
        "between": torch.histogram(x, edges), "even": torch.histogram(x, 7, range=(-0.5, 2.0)),
        "of_data": torch.histogram(x, 5), "one": torch.histogram(x[:1], 3), "none": torch.histogram(x[:0], 2),
        "share": torch.histogram(x, edges, density=True),
        "weighted": torch.histogram(points[:, 0], 4, range=(-2.0, 2.0), weight=weights, density=True),
    }  # fmt: skip
    counts, sides = torch.histogramdd(points, [3, 4])
    given, _ = torch.histogramdd(points, [edges, edges * 2], weight=weights)
    shares, _ = torch.histogramdd(points.reshape(3, 3, 2), [2, 3], range=[-1.0, 1.0, -2.0, 2.0], density=True)
    parts = {f"{name}{i}": part for name, pair in results.items() for i, part in enumerate(pair)}
    return parts | {"counts": counts, "sides": sides[1], "given": given, "shares": shares}


@case(floats(7, 3), torch.tensor([2, 0, 4, 1]), torch.tensor([[1, 2], [0, 3]]), floats(2, 3, 2))
def segments(x, lengths, inner, rows):
    results = {}
    for reduce in ("sum", "mean", "max", "min", "prod"):
        results[reduce] = torch.segment_reduce(x, reduce, lengths=lengths)
        results[f"{reduce}_begun"] = torch.segment_reduce(x, reduce, lengths=lengths, initial=2.0)
        results[f"{reduce}_inner"] = torch.segment_reduce(rows, reduce, lengths=inner, axis=1)
        offsets = torch.tensor([0, 2, 2, 7])
        results[f"{reduce}_offsets"] = torch.segment_reduce(x, reduce, offsets=offsets)
    return results


@case(floats(2, 3, 7, 6), floats(2, 3, 2, low=0.0, high=1.0), floats(1, 2, 5, 6, 4), floats(1, 2, 3, low=0.0, high=1.0))
def fractional_windows(image, samples, volume, places):
    flat, flat_at = A.fractional_max_pool2d.default(image, [2, 3], [4, 3], samples)
    one, one_at = A.fractional_max_pool2d.default(image[0], [3, 3], [1, 2], samples[:1])
    deep, deep_at = A.fractional_max_pool3d.default(volume, [2, 2, 1], [3, 4, 2], places)
    return {"flat": flat, "flat_at": flat_at, "one": one, "one_at": one_at, "deep": deep, "deep_at": deep_at}


@case(
    floats(4, 5), floats(2, 3), ints(3, 4, low=0, high=2), floats(6, 4), ints(6, low=0, high=5), floats(5, 4), floats(5)
)
def memory_and_losses(x, part, some, rows, classes, weight, bias):
    ignored = torch.where(classes == 2, -100, classes)
    shares = bias.abs()
    losses = {}
    for reduction in ("mean", "sum", "none"):
        options = {"reduction": reduction, "options": LinearCrossEntropyOptions(batch_chunk_size=4)}
        losses[reduction] = F.linear_cross_entropy(rows, weight, classes, linear_bias=bias, **options)
        losses[f"{reduction}_weighted"] = F.linear_cross_entropy(rows, weight, ignored, weight=shares, **options)
    return losses | {
        "strided": torch.as_strided_scatter(x, part, (2, 3), (7, 2), 1),
        "resized": A.resize.default(x, [3, 4]), "same": A.resize.default(x, [2, 10]),
        "larger": A.resize.default(part, [2, 4])[:, :3].sum() * 0,
        "static": torch.nonzero_static(some, size=20), "cut": torch.nonzero_static(some, size=2, fill_value=7),
        "static_deep": torch.nonzero_static(some.reshape(2, 3, 2) > 0, size=5, fill_value=-3),
        "static_none": torch.nonzero_static(some[:0], size=2),
    }  # fmt: skip

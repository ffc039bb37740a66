"""Cases as in `aten_cases`: complex numbers within, real ones at the border; spectra; and groups of rows."""

import torch
from torch.nn import functional as F
from transformers.integrations import moe  # noqa: F401  # declares an op

from aten_cases import A, case, floats

R = torch.view_as_real
_PLACES, _AXES = torch.tensor([4, 0, 1]), torch.tensor([0.0, 1.0, -1.0])


@case(floats(2, 6, 5), floats(2, 6, 5))
def complex_arithmetic(x, y):
    z, w = torch.complex(x, y), torch.complex(y + 3, x)
    results = {
        "add": z + w, "alpha": torch.add(z, w, alpha=2), "add_real": z + y, "real_add": x + z, "add_number": z + 1j,
        "sub": z - w, "sub_real": z - y, "real_sub": x - z, "sub_scalar": A.sub.Scalar(z, 2),
        "add_scalar": A.add.Scalar(z, 2), "mul": z * w, "mul_real": z * y, "real_mul": x * z, "number": x * (2 - 1j),
        "mul_scalar": A.mul.Scalar(z, 1j), "div": z / w, "div_real": z / (y + 3), "real_div": x / w,
        "div_scalar": A.div.Scalar(z, 2), "neg": -z, "exp": torch.exp(z), "polar": torch.polar(x.abs(), y),
        "conj": z.conj().resolve_conj(), "physical": torch.conj_physical(z),
        "sigmoid": torch.sigmoid(z), "silu": F.silu(w),
        "core_physical": A._conj_physical.default(z), "to": x.to(torch.complex64),
        "core_to": A._to_copy.default(x, dtype=torch.complex64),
        "converted": torch.ops.prims.convert_element_type.default(x, torch.complex64), "matmul": z @ w.transpose(1, 2),
        "real_matmul": z[0] @ w[0].T, "mixed_matmul": z.mH @ w, "bmm": torch.bmm(z, w.transpose(1, 2)),
        "mm": A.mm.default(z[0], w[1].t()), "layout": A.to.dtype_layout(x, dtype=torch.complex64, layout=torch.strided),
    }  # fmt: skip
    results = {name: R(each.resolve_conj()) for name, each in results.items()}
    parts = {"real": z.real, "imag": z.imag, "abs": z.abs(), "angle": z.angle(), "atan2": torch.atan2(x, y)}
    parts["atan2_axes"] = torch.atan2(x[0, 0, :3].square() * 0, _AXES)
    return results | parts


@case(floats(2, 6, 4))
def complex_moved(x):
    z = torch.view_as_complex(x.reshape(2, 6, 2, 2))
    row = z[:, :, :1]
    results = {
        "view": z.view(4, 6), "unsafe_view": A._unsafe_view.default(z, (4, 6)), "reshape": z.reshape(12, 2),
        "view_as": z.view_as(z), "flatten": z.flatten(1), "unsqueeze": z.unsqueeze(1), "squeeze": row.squeeze(),
        "squeeze_dim": row.squeeze(2), "squeeze_dims": A.squeeze.dims(row, [0, 2]), "expand": row.expand(2, 6, 3),
        "clone": z.clone(), "contiguous": z.mT.contiguous(), "detach": z.detach(), "alias": A.alias.default(z),
        "permute": z.permute(2, 0, 1), "transpose": z.transpose(0, 2), "t": z[0].t(), "slice": z[:, 1::2],
        "narrow": z.narrow(1, 2, 3), "split": z.split(2, 1)[1], "chunk": z.chunk(2, 1)[1], "unbind": z.unbind(1)[3],
        "sizes": z.split([2, 4], 1)[1], "repeat": z.repeat(1, 2, 2), "flip": z.flip(1), "roll": z.roll(1, 1),
        "pad": F.pad(z, (1, 2)), "index_select": z.index_select(1, _PLACES),
        "index": z[:, _PLACES], "sum": z.sum(), "sum_dim": z.sum(1), "mean": z.mean(),
        "mean_dim": z.mean(1), "cumsum": z.cumsum(1), "zeros": z + torch.zeros(2, 6, 2, dtype=torch.complex64),
        "zeros_like": z + torch.zeros_like(z), "cat": torch.cat([z, z * 2, x[..., :1]], 2),
        "stack": torch.stack([z, z], 1), "resolved": z.resolve_conj().resolve_neg(),
    }  # fmt: skip
    return {name: R(each) for name, each in results.items()} | {"dropped": A.to.dtype(z, torch.float32)}


@case(floats(3, 12, 10), floats(3, 12, 9))
def spectra(x, odd):
    """The angle of a bin whose imaginary part is 0 but for rounding is either half turn: taken where none is."""
    halves = {"fft": torch.fft.rfft(x), "odd": torch.fft.rfft(odd), "two": torch.fft.rfft2(x, norm="ortho")}
    results = {
        "whole": torch.fft.fft(x), "inverse": torch.fft.ifft2(x), "all": torch.fft.fftn(x),
        "cut": torch.fft.fft(x, n=8), "padded": torch.fft.fft(x, n=16, dim=1),
        "forward": torch.fft.fft2(odd, norm="forward"),
        "shifted": torch.fft.fftshift(torch.fft.fft(x)),
    } | halves  # fmt: skip
    results = {name: R(each) for name, each in results.items()}
    return results | {
        "back": torch.fft.irfft(halves["fft"]),
        "back_odd": torch.fft.irfft(halves["odd"], n=9),
        "back_two": torch.fft.irfft2(halves["two"], norm="ortho"),
        "hermitian": torch.fft.hfft(halves["fft"]),
        "phase": torch.angle(halves["odd"][..., 1:]),
        "convolved": torch.fft.irfft(torch.fft.rfft(x, n=18) * torch.fft.rfft(odd, n=18).conj(), n=18),
    }


@case(floats(3, 120), floats(16))
def frames(x, weights):
    """Short-time transforms there and back."""
    window = torch.hann_window(16)
    spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
    return {
        "spectrum": R(spectrum),
        "back": torch.istft(spectrum, 16, 4, window=window),
        "weighed": torch.stft(x, 16, 5, window=weights, return_complex=True).abs(),
        "narrow": torch.stft(x, 16, 4, 12, window[:12], return_complex=True).abs(),
        "narrow_alone": A.stft.default(x, 16, 4, 12, None, True, False, True).abs(),
        "no_batch": torch.stft(x[0], 16, window=window, center=False, return_complex=True).abs(),
        "as_real": A.stft.default(x, 16, 4, 16, window, False, True, False),
    }


_MATRICES = floats(4, 6, 5)
_WHOLE = F.pad(floats(4, 5, 6).round(), (0, 2)).bfloat16().mT  # columns adjacent and aligned, as torch's kernel asks


@case(floats(9, 6), floats(40, low=-1.0, high=3.0))
def groups(x, values):
    """Rows in groups, one of them empty and one row in none, and the counts that groups come from."""
    ends = torch.tensor([3, 3, 7, 8], dtype=torch.int32)
    return {
        "grouped": torch.ops.transformers.grouped_mm_fallback(x, _MATRICES, ends),
        "whole_numbers": A._grouped_mm.default(F.pad(x.round(), (0, 2)).bfloat16(), _WHOLE, ends).float()[:8],
        "counts": torch.histc(values, 8, -1, 3),
        "whole": torch.histc(values.round(), 3, 0, 2),
    }

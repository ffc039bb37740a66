"""What does not work: what torch itself cannot export, with its error, and what Ingot cannot do yet.

Name of the model -> way -> whose error it is, its type, and a piece of its message. A stale mark fails, and so does a
model that fails without one.
"""

from collections.abc import Iterable

from architecture import Mark

Marks = dict[str, Mark]

STATIC = ("static torch", "static onnx")
SYMBOLIC = ("symbolic torch", "symbolic onnx")
EVERY = (*STATIC, *SYMBOLIC)
ONNX = ("static onnx", "symbolic onnx")
TORCH = ("static torch", "symbolic torch")


def _torch(ways: Iterable[str], error: str, piece: str) -> Marks:
    """Torch's own error."""
    return dict.fromkeys(ways, Mark("torch", error, piece))


def _gap(ways: Iterable[str], piece: str) -> Marks:
    """A rule or a kernel that Ingot does not have."""
    return dict.fromkeys(ways, Mark("ingot", "UnsupportedError", piece))


_DEPENDS = ("GuardOnDataDependentSymNode", "Could not guard on data-dependent expression")
_COMPLEX = "got torch.complex64"

MARKS: dict[str, Marks] = {
    "EnCodec decoder": _torch(EVERY, *_DEPENDS),
    "EnCodec encoder": _torch(EVERY, *_DEPENDS),
    "FNet": _gap(TORCH, _COMPLEX),
    "Mamba-2": {"symbolic onnx": Mark("ingot", "LimitError", "a dim expression is too long")},
    "Mask2Former": _torch(ONNX, "ValueError", "Cannot view a tensor with shape"),
    "Mixtral": {
        **_gap(TORCH, "aten.histc.default"),
        **_torch(ONNX, "DispatchError", "No ONNX function found"),
    },
    "Nystromformer": {
        **_torch(STATIC, "RuntimeError", "Attempting to broadcast a dimension of length"),
        **_torch(SYMBOLIC, "RuntimeError", "The size of tensor a"),
    },
    "XLNet": _torch(ONNX, "RuntimeError", "Cannot find a compatible OpOverload for aten.sub"),
    "super-resolution": {
        "symbolic torch": Mark("ingot", "UnsupportedError", "no such dim, got TruncToInt"),
        "symbolic onnx": Mark("ingot", "UnsupportedError", "mode 'cubic'"),
    },
    "spectrogram net": _gap(TORCH, _COMPLEX),
}

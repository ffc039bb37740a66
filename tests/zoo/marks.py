"""What does not work: what torch itself cannot export, with its error.

Name of the model -> way -> whose error it is, its type, and a piece of its message. A stale mark fails, and so does a
model that fails without one. What Ingot cannot do has a place here too, and there is none.
"""

from collections.abc import Iterable

from architecture import Mark

Marks = dict[str, Mark]

STATIC = ("static torch", "static onnx")
SYMBOLIC = ("symbolic torch", "symbolic onnx")
EVERY = (*STATIC, *SYMBOLIC)
ONNX = ("static onnx", "symbolic onnx")


def _torch(ways: Iterable[str], error: str, piece: str) -> Marks:
    """Torch's own error."""
    return dict.fromkeys(ways, Mark("torch", error, piece))


_DEPENDS = ("GuardOnDataDependentSymNode", "Could not guard on data-dependent expression")

MARKS: dict[str, Marks] = {
    "EnCodec decoder": _torch(EVERY, *_DEPENDS),
    "EnCodec encoder": _torch(EVERY, *_DEPENDS),
    "Mask2Former": _torch(ONNX, "ValueError", "Cannot view a tensor with shape"),
    "Mixtral": _torch(ONNX, "DispatchError", "No ONNX function found"),
    "Nystromformer": {
        **_torch(STATIC, "RuntimeError", "Attempting to broadcast a dimension of length"),
        **_torch(SYMBOLIC, "RuntimeError", "The size of tensor a"),
    },
    "XLNet": _torch(ONNX, "RuntimeError", "Cannot find a compatible OpOverload for aten.sub"),
}

# Networks that have a program for each size under limits, with a piece of what a session says of it.
EACH: dict[str, str] = {
    "CLIP text tower": "dims computes from sizes only",
    "DETR": "cumsum computes from sizes only",
    "Deformable DETR": "cumsum computes from sizes only",
    "FNet": "expected one for each node",
    "Mamba-2": "trilu computes from sizes only",
    "Mask2Former": "add computes from sizes only",
    "PatchTSMixer": "reduce_sum computes from sizes only",
    "PatchTST": "reduce_sum computes from sizes only",
    "SigLIP vision tower": "matmul computes from sizes only",
    "Swin": "add computes from sizes only",
    "U-Net": "dims differ",
    "UnivNet": "dims computes from sizes only",
    "XLNet": "dims computes from sizes only",
    "style transfer": "dims computes from sizes only",
    "super-resolution": "dims computes from sizes only",
}

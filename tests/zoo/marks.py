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
    "CLIP text tower": "dims computes of sizes alone",
    "DETR": "cumsum computes of sizes alone",
    "Deformable DETR": "cumsum computes of sizes alone",
    "FNet": "expected one for each node",
    "Mamba-2": "trilu computes of sizes alone",
    "Mask2Former": "add computes of sizes alone",
    "PatchTSMixer": "reduce_sum computes of sizes alone",
    "PatchTST": "reduce_sum computes of sizes alone",
    "SigLIP vision tower": "matmul computes of sizes alone",
    "Swin": "add computes of sizes alone",
    "U-Net": "dims differ",
    "UnivNet": "dims computes of sizes alone",
    "XLNet": "dims computes of sizes alone",
    "style transfer": "dims computes of sizes alone",
    "super-resolution": "dims computes of sizes alone",
}

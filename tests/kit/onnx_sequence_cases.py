"""Cases of the ONNX rules over sequences: recurrent layers, transforms of signals."""

import numpy as np

from onnx_models import case

LENGTHS = np.array([6, 2, 4], np.int32)
WIDTH = {"LSTM": 20, "GRU": 15, "RNN": 5}
COUNT = {"LSTM": 3, "GRU": 2, "RNN": 2}


def recurrent(op: str, rest: str = "", directions: int = 1, **options):
    """A layer of 5 units over 6 steps of 3 sequences of 4 numbers."""
    width = WIDTH[op]
    weights = f"w[{directions},{width},4] r[{directions},{width},5]"
    return case(op, f"x[6,3,4] {weights} {rest}", COUNT[op], hidden_size=5, opset=14, **options)


RECURRENT = [
    *(recurrent(op) for op in WIDTH),
    *(recurrent(op, f"b[1,{2 * n}] @n h[1,3,5]", direction="reverse", n=LENGTHS) for op, n in WIDTH.items()),
    *(recurrent(op, f"b[2,{2 * n}] @n h[2,3,5]", 2, direction="bidirectional", n=LENGTHS) for op, n in WIDTH.items()),
    *(recurrent(op, f"b[2,{2 * n}]", 2, direction="bidirectional", clip=0.4) for op, n in WIDTH.items()),
    recurrent("LSTM", "b[1,40] none h[1,3,5] c[1,3,5] p[1,15]"),
    recurrent("LSTM", "b[1,40] @n h[1,3,5] c[1,3,5]", input_forget=1, n=LENGTHS),
    recurrent("GRU", "b[1,30] @n h[1,3,5]", linear_before_reset=1, n=LENGTHS),
    *(
        recurrent(op, f"b[2,{2 * n}] @n h[2,3,5]", 2, direction="bidirectional", n=np.array([0, 6, 0], np.int32))
        for op, n in WIDTH.items()
    ),
    recurrent("LSTM", "b[1,40] @n h[1,3,5] c[1,3,5]", n=np.array([0, 6, 0], np.int32)),
    recurrent("RNN", activations=["Affine"], activation_alpha=[0.5], activation_beta=[0.1]),
    *(
        recurrent("RNN", activations=[name], low=-0.5, high=0.5)
        for name in ("Relu", "Sigmoid", "Softsign", "Softplus", "LeakyRelu", "Elu", "HardSigmoid")
    ),
    recurrent("RNN", activations=["ThresholdedRelu"], activation_alpha=[0.3], low=-0.5, high=0.5),
    recurrent("RNN", activations=["ScaledTanh"], activation_alpha=[0.8], activation_beta=[0.6]),
    recurrent("GRU", "b[2,30]", 2, direction="bidirectional", activations=["HardSigmoid", "Tanh", "Sigmoid", "Elu"],
              activation_alpha=[0.3, 0.7], activation_beta=[0.4]),
    case("LSTM", "x[3,6,4] w[1,20,4] r[1,20,5]", 3, opset=14, hidden_size=5, layout=1, oracle="reference"),
    case("GRU", "x[3,6,4] w[1,15,4] r[1,15,5] b[1,30] none h[3,1,5]", 2, opset=14, hidden_size=5, layout=1,
         oracle="reference"),
    case("RNN", "x:f16[6,3,4] w:f16[1,5,4] r:f16[1,5,5]", 2, opset=14, hidden_size=5),
]  # fmt: skip

SIGNALS = [
    case("DFT", "x[2,9,1]", opset=17),
    case("DFT", "x[2,9,2]", opset=17, inverse=1),
    case("DFT", "x[2,9,3,1]", opset=17, axis=1, onesided=1),
    case("DFT", "x[2,9,2] @n", opset=17, n=np.array(6)),
    case("DFT", "x[2,9,1] @n", opset=17, n=np.array(12)),
    case("DFT", "x[2,3,8,1] none @a", opset=20, a=np.array(1), onesided=1, oracle="reference"),
    case("DFT", "x[2,3,8,2] none @a", opset=20, a=np.array(-2), inverse=1, oracle="reference"),
    case("DFT", "x:f64[2,8,1]", opset=20, oracle="reference"),
    case("DFT", "x[1,8192,1]", opset=17, onesided=1, oracle="reference"),
    case("DFT", "x[2,5,2]", opset=17, inverse=1, onesided=1, oracle="reference"),
    case("STFT", "x[2,20,1] @s w[6]", opset=17, s=np.array(3)),
    case("STFT", "x[2,20,1] @s none @n", opset=17, s=np.array(4), n=np.array(8), onesided=0),
    case("STFT", "x[1,20,2] @s w[6] @n", opset=17, s=np.array(2), n=np.array(6), onesided=0),
    case("MelWeightMatrix", "@a @b @c @d @e", opset=17, a=np.array(8), b=np.array(64), c=np.array(8192),
         d=np.array(0, np.float32), e=np.array(4096, np.float32)),
]  # fmt: skip

SEQUENCES = [*RECURRENT, *SIGNALS]

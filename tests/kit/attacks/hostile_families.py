"""Attacks on the rules of images, classical models and contributed ops."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attacks.hostile_onnx import IMAGE, Attack, one
from ingot.errors import LimitError, LoadError
from onnx_models import ints


def regions(**attributes: Any) -> Callable[[], Any]:
    constants = {"w": IMAGE, "r": np.zeros((1, 4), np.float32), "b": ints(0)}
    return one("RoiAlign", list(constants), constants, **attributes)


FAMILIES: list[Attack] = [
    ("bins of a region", regions(output_height=2**40), LimitError, "too many points"),
    ("points of a bin", regions(output_width=2, sampling_ratio=2**40), LimitError, "too many points"),
    ("mode of a region", regions(mode="most"), LoadError, "mode 'most'"),
]

"""What loading rules make of their own test cases.

`python tests/kit/built_by_rules.py --write` writes the tables anew.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import aten_complex_cases  # noqa: F401  # declares cases
import aten_data_cases  # noqa: F401  # declares cases
import aten_matrix_cases  # noqa: F401  # declares cases
import aten_number_cases  # noqa: F401  # declares cases
import aten_scatter_cases  # noqa: F401  # declares cases
import aten_shape_cases  # noqa: F401  # declares cases
import aten_special_cases  # noqa: F401  # declares cases
import ingot.load
from aten_cases import CASES, exported
from aten_random_cases import exported_draws
from ingot.emit.onnx import export_onnx
from ingot.load.aten import load_exported
from ingot.load.built_ops import BuiltOps, format_table, recording
from ingot.load.onnx import load_onnx
from onnx_cases import INTEGERS, INTEGERS_BY_REFERENCE, NODES, SYMBOLIC
from onnx_math_cases import MULTINOMIAL, RANDOM
from onnx_models import one_node, text_model
from onnx_training_cases import GRADIENTS, gradient_model
from onnx_value_cases import RANKS, VALUES, absent_optional, scan_with_batch

REWRITE = "`python tests/kit/built_by_rules.py --write` writes the tables anew"


def ops_of_aten() -> BuiltOps:
    """The table of every case as it is exported and in core ATen."""
    with recording() as made:
        for name in CASES:
            for decomposed in (False, True):
                load_exported(exported(name, decomposed))
        for decomposed in (False, True):
            load_exported(exported_draws(decomposed))
    return made


def ops_of_onnx() -> BuiltOps:
    """The table of every single node, of arithmetic on known and symbolic integers, and of models of other values."""
    with recording() as made:
        for case in [*NODES, *RANDOM, MULTINOMIAL]:
            load_onnx(one_node(case, np.random.default_rng(0))[0].SerializeToString())
        for body in (INTEGERS | INTEGERS_BY_REFERENCE).values():
            load_onnx(text_model(f"g () => (y) {{ {body} }}"))
        for body in [*SYMBOLIC.values(), *(body for body, _ in VALUES.values())]:
            load_onnx(text_model(body))
        for nodes, _ in GRADIENTS.values():
            load_onnx(gradient_model(nodes))
        load_onnx(scan_with_batch())
        load_onnx(absent_optional())
        for body, _ in RANKS.values():  # as they are written
            load_onnx(export_onnx(load_onnx(text_model(body))).SerializeToString())
    return made


BUILDERS: dict[str, Callable[[], BuiltOps]] = {"aten": ops_of_aten, "onnx": ops_of_onnx}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="write src/ingot/load/*/built_ops.txt")
    parser.parse_args()
    warnings.filterwarnings("ignore")  # of torch.export, hundreds
    for importer, make in BUILDERS.items():
        path = Path(*ingot.load.__path__) / importer / "built_ops.txt"
        path.write_text(format_table(make()), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Cases of the rules of ai.onnx.ml beyond tables: trees by ids, linear models, support vectors, encoders."""

import itertools
import random

import numpy as np

from onnx_models import Case
from onnx_type_cases import TEXTS, ml

F = np.float32
NAN = float("nan")
PLAIN = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def linear(labels: int, rows: int, transform: str, **rest: object) -> Case:
    return ml("LinearClassifier", "x[9,3]", 2, coefficients=numbers(rows * 3, 1), intercepts=numbers(rows, 2),
              post_transform=transform, classlabels_ints=[4, 7, 9][:labels], **rest)  # fmt: skip


def numbers(count: int, seed: int, low: float = -1.0, high: float = 1.0) -> list[float]:
    return np.random.default_rng(seed).uniform(low, high, count).astype(F).tolist()


def machine(classes: int, kernel: str, transform: str, *, platt: bool = False) -> Case:
    """A classifier of 3, 2, 1 ... support vectors of 3 features."""
    sizes = [classes - i for i in range(classes)]
    pairs = classes * (classes - 1) // 2
    attributes = {"prob_a": numbers(pairs, 5, -2, -0.5), "prob_b": numbers(pairs, 6, -0.3, 0.3)} if platt else {}
    return ml("SVMClassifier", "x[9,3]", 2, vectors_per_class=sizes, support_vectors=numbers(sum(sizes) * 3, 1),
              coefficients=numbers(sum(sizes) * (classes - 1), 2), rho=numbers(pairs, 3), kernel_type=kernel,
              kernel_params=[0.5, 0.3, 3.0], post_transform=transform, classlabels_ints=[4, 7, 9, 5][:classes],
              **attributes)  # fmt: skip


LINEAR = [
    *(linear(labels, labels, transform) for labels in (2, 3) for transform in PLAIN),
    *(linear(2, 1, transform) for transform in PLAIN),
    ml("LinearClassifier", "x:i64>-5<5[9,3]", 2, coefficients=numbers(9, 1), intercepts=numbers(3, 2),
       classlabels_strings=["a", "b", "c"]),
    *(
        ml("LinearRegressor", "x>0<1[3,4]", coefficients=numbers(8, 1, 0.01, 0.1), targets=2, intercepts=[0.4, 0.5],
           post_transform=transform)
        for transform in ("SOFTMAX_ZERO", "PROBIT")
    ),
]  # fmt: skip
MACHINES = [
    *(machine(classes, "RBF", transform) for classes in (2, 3) for transform in PLAIN[:3]),
    *(machine(3, kernel, "NONE") for kernel in ("LINEAR", "POLY", "SIGMOID")),
    *(machine(classes, "RBF", "NONE", platt=True) for classes in (2, 3, 4)),
    machine(3, "LINEAR", "SOFTMAX", platt=True),
    *(
        ml("SVMRegressor", "x[9,3]", support_vectors=numbers(12, 1), coefficients=numbers(4, 2), rho=[0.1],
           n_supports=4, kernel_type=kernel, kernel_params=[0.5, 0.3, 2.0], one_class=one_class)
        for kernel, one_class in (("RBF", 0), ("POLY", 0), ("LINEAR", 0), ("SIGMOID", 1))
    ),
    ml("SVMRegressor", "x[9,3]", coefficients=numbers(3, 2), rho=[0.1], kernel_params=[0.0] * 3),
]  # fmt: skip


def forest(seed: int, kind: str, targets: list[int], *, votes: int = 1, low: float = -1.0, modes: int = 1) -> dict:
    """Random trees over 3 features, whose leaves vote `votes` times, for targets out of a list."""
    chance = random.Random(seed)
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    names += ("missing_value_tracks_true",)
    nodes: dict[str, list] = {f"nodes_{name}": [] for name in names}
    leaves: dict[str, list] = {f"{kind}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    spelled = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"][:modes]
    for tree in range(chance.randint(2, 5)):
        inner = chance.randint(0, 5)
        for node in range(2 * inner + 1):
            is_leaf = node >= inner
            row = (tree, node, chance.randrange(3), "LEAF" if is_leaf else chance.choice(spelled),
                   round(chance.uniform(-1, 1), 1), 0 if is_leaf else 2 * node + 1, 0 if is_leaf else 2 * node + 2,
                   chance.randrange(2))  # fmt: skip
            for name, value in zip(names, row, strict=True):
                nodes[f"nodes_{name}"].append(value)
            for target in chance.sample(targets, votes) if is_leaf else []:
                vote = (tree, node, target, round(chance.uniform(low, 1), 3))
                for name, value in zip(("treeids", "nodeids", "ids", "weights"), vote, strict=True):
                    leaves[f"{kind}_{name}"].append(value)
    return nodes | leaves


SPARSE = np.array([[NAN, 0.3, -0.2], [0.1, NAN, 1], [0.5, -0.5, NAN], [0.1, 0.2, 0.3], [-1, -2, 3]], F)
FORESTS = [
    *(
        ml("TreeEnsembleRegressor", "x[9,3]", n_targets=count, aggregate_function=how, post_transform=transform,
           base_values=numbers(count, 7),
           **forest(seed, "target", list(range(count)), votes=count, modes=1 + seed % 2 * 3))
        for seed, (count, how, transform) in enumerate(
            [(1, "SUM", "NONE"), (1, "AVERAGE", "NONE"), (3, "SUM", "SOFTMAX"), (3, "AVERAGE", "LOGISTIC"),
             (2, "MIN", "NONE"), (2, "MAX", "NONE"), (3, "SUM", "SOFTMAX_ZERO")]
        )
    ),
    ml("TreeEnsembleRegressor", "@x", x=SPARSE, n_targets=1, **forest(20, "target", [0], modes=6)),
    ml("TreeEnsembleRegressor", "x:f64[9,3]", n_targets=1, **forest(21, "target", [0])),
    ml("TreeEnsembleClassifier", "x:i64>-3<3[9,3]", 2, classlabels_int64s=[4, 7], **forest(22, "class", [0])),
    *(
        ml("TreeEnsembleClassifier", "x[9,3]", 2, classlabels_int64s=[4, 7, 9], post_transform=transform,
           **forest(seed, "class", [0, 1, 2], votes=3), **rest)
        for seed, (transform, rest) in enumerate(
            itertools.product(PLAIN, ({}, {"base_values": [0.1, -0.2, 0.3]})), 30
        )
    ),
    *(
        ml("TreeEnsembleClassifier", "x[9,3]", 2, classlabels_int64s=[4, 7], post_transform=transform,
           **forest(seed, "class", [0], low=low), **rest)
        for seed, (transform, low, rest) in enumerate(
            itertools.product(PLAIN[:3], (-1.0, 0.0), ({}, {"base_values": [0.1]})), 40
        )
    ),
    *(
        ml("TreeEnsembleClassifier", "x[9,3]", 2, classlabels_strings=["no", "yes"], post_transform=transform,
           **forest(seed, "class", [1], low=low))
        for seed, (transform, low) in enumerate(itertools.product(PLAIN[:3], (-1.0, 0.0)), 60)
    ),
]  # fmt: skip

ENCODERS = [
    ml("CategoryMapper", "@x", x=TEXTS, cats_strings=["", "Monday", "x"], cats_int64s=[1, 2, 3]),
    ml("CategoryMapper", "x:i64<5[3,4]", cats_strings=["a", "b", "c"], cats_int64s=[1, 2, 3]),
    ml("OneHotEncoder", "x:i64<5[3,4]", cats_int64s=[1, 0, 3]),
    ml("OneHotEncoder", "x<5[3]", cats_int64s=[1, 0, 3]),
    ml("OneHotEncoder", "x:i64<3[3,4]", cats_int64s=[1, 0, 2], zeros=0),
    ml("OneHotEncoder", "@x", x=TEXTS, cats_strings=["", "Monday", "a.b..c"]),
    ml("Imputer", "@x", x=SPARSE, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=NAN),
    ml("Imputer", "@x", x=SPARSE, imputed_value_floats=[9.0], replaced_value_float=1.0),
    ml("Imputer", "x:i64<3[5,2]", imputed_value_int64s=[7, 8], replaced_value_int64=1),
    ml("FeatureVectorizer", "x[3,2] y[3,1]", inputdimensions=[2, 1]),
    ml("FeatureVectorizer", "x:i64[3,2]", inputdimensions=[2]),
]
CLASSICAL = [*LINEAR, *MACHINES, *FORESTS, *ENCODERS]

"""Models of scikit-learn as skl2onnx exports them, against ONNX Runtime and scikit-learn itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from ingot.emit.onnx import export_onnx
from ingot.emit.onnx.registry import GAPS
from ingot.errors import UnsupportedError
from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret
from ingot.session import InferenceSession
from onnx_models import run_oracle

OPSET = {"": 18, "ai.onnx.ml": 3}
ROWS = np.random.default_rng(0).standard_normal((120, 5)).astype(np.float32)
TWO = (ROWS[:, 0] + ROWS[:, 1] ** 2 > 0.5).astype(np.int64)
THREE = TWO + (ROWS[:, 2] > 0.8)
NUMBER = ROWS @ np.array([1, -2, 0.5, 0, 3], np.float32) + ROWS[:, 0] ** 2
NUMBERS = np.stack([NUMBER, -NUMBER + ROWS[:, 1]], 1)
HOLES = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.1, np.nan, ROWS).astype(np.float32)

Model = tuple[Any, Any, Any]  # estimator, rows, target

NUMERIC: dict[str, Callable[[], Model]] = {
    "scaled logistic": lambda: (make_pipeline(StandardScaler(), LogisticRegression()), ROWS, THREE),
    "logistic of two": lambda: (LogisticRegression(), ROWS, TWO),
    "words as labels": lambda: (LogisticRegression(), ROWS, np.array(["no", "yes", "maybe"], object)[THREE]),
    "linear": lambda: (LinearRegression(), ROWS, NUMBERS),
    "ridge": lambda: (make_pipeline(MinMaxScaler(), PolynomialFeatures(2), Ridge()), ROWS, NUMBER),
    "lasso of the best": lambda: (make_pipeline(SelectKBest(k=3), Lasso(0.01)), ROWS, NUMBER),
    "tree": lambda: (DecisionTreeClassifier(max_depth=4), ROWS, THREE),
    "tree of two numbers": lambda: (DecisionTreeRegressor(max_depth=4), ROWS, NUMBERS),
    "forest of two": lambda: (RandomForestClassifier(12, max_depth=5, random_state=0), ROWS, TWO),
    "forest": lambda: (RandomForestClassifier(12, max_depth=5, random_state=0), ROWS, THREE),
    "forest of numbers": lambda: (RandomForestRegressor(12, max_depth=5, random_state=0), ROWS, NUMBERS),
    "extra trees": lambda: (ExtraTreesRegressor(12, max_depth=5, random_state=0), ROWS, NUMBER),
    "boosted of two": lambda: (GradientBoostingClassifier(n_estimators=9), ROWS, TWO),
    "boosted": lambda: (GradientBoostingClassifier(n_estimators=9), ROWS, THREE),
    "boosted numbers": lambda: (GradientBoostingRegressor(n_estimators=9), ROWS, NUMBER),
    "adaptive": lambda: (AdaBoostClassifier(n_estimators=5), ROWS, THREE),
    "machine": lambda: (SVC(), ROWS, THREE),
    "machine of two": lambda: (SVC(kernel="poly"), ROWS, TWO),
    "machine of probabilities": lambda: (SVC(probability=True, random_state=0), ROWS, THREE),
    "machine of numbers": lambda: (SVR(), ROWS, NUMBER),
    "linear machine": lambda: (LinearSVC(), ROWS, THREE),
    "descent": lambda: (SGDClassifier(loss="log_loss", random_state=0), ROWS, THREE),
    "outliers": lambda: (OneClassSVM(nu=0.2), ROWS, None),
    "isolation": lambda: (IsolationForest(n_estimators=9, random_state=0), ROWS, None),
    "means": lambda: (KMeans(4, n_init=1, random_state=0), ROWS, None),
    "components": lambda: (make_pipeline(StandardScaler(), PCA(3)), ROWS, None),
    "perceptron": lambda: (MLPClassifier((9, 7), max_iter=20, random_state=0), ROWS, THREE),
    "perceptron of numbers": lambda: (
        MLPRegressor(hidden_layer_sizes=(9,), activation="tanh", max_iter=20),
        ROWS,
        NUMBERS,
    ),
    "neighbours": lambda: (KNeighborsClassifier(3), ROWS, THREE),
    "neighbours of numbers": lambda: (KNeighborsRegressor(3), ROWS, NUMBER),
    "bayes": lambda: (GaussianNB(), ROWS, THREE),
    "discriminant": lambda: (LinearDiscriminantAnalysis(), ROWS, THREE),
    "holes": lambda: (make_pipeline(SimpleImputer(), StandardScaler(), Ridge()), HOLES, NUMBER),
    "bins": lambda: (make_pipeline(KBinsDiscretizer(4, encode="onehot-dense"), LogisticRegression()), ROWS, TWO),
    "normal": lambda: (make_pipeline(Normalizer(), Binarizer(threshold=0.1)), ROWS, None),
}


def exported(estimator: Any, rows: Any, target: Any, **options: Any) -> Any:
    """The fitted estimator as ONNX, without dictionaries."""
    estimator.fit(rows, target) if target is not None else estimator.fit(rows)
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    given = (
        {"options": {id(last): {"zipmap": False}}} if hasattr(last, "predict_proba") or isinstance(last, SVC) else {}
    )
    return to_onnx(estimator, None if options else rows[:1], target_opset=OPSET, **given, **options)


def check(proto: Any, feeds: dict[str, np.ndarray]) -> list[Any]:
    """The results of a session and of the interpreter are ONNX Runtime's, and so are those of the way back to ONNX."""
    expected = run_oracle("ort", proto, feeds)
    results = InferenceSession(proto.SerializeToString()).run(None, feeds)
    graph = load_onnx(proto.SerializeToString())
    ways = [results, list(interpret(graph, feeds).values())]
    if all(node.op.name not in GAPS for node in graph.nodes):
        ways.append(run_oracle("ort", export_onnx(graph), feeds))
    for found in ways:
        for got, wanted in zip(found, expected, strict=True):
            if got.dtype == object:
                assert got.tolist() == wanted.tolist()
            else:
                np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)
    return results


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NUMERIC)
def test_export(name: str) -> None:
    estimator, rows, target = NUMERIC[name]()
    proto = exported(estimator, rows, target)
    results = check(proto, {"X": rows})
    if hasattr(estimator, "predict"):
        wanted = estimator.predict(rows)
        found = results[0].reshape(wanted.shape)
        same = found == wanted if wanted.dtype.kind in "iOU" else np.isclose(found, wanted, rtol=1e-3, atol=1e-3)
        assert same.mean() > 0.98  # f32 falls on the other side of a threshold now and then


@pytest.mark.filterwarnings("ignore")
def test_columns_of_words_and_numbers() -> None:
    words = np.random.default_rng(2).choice(["red", "green", "blue"], (120, 2)).astype(object)
    columns = ColumnTransformer(
        [
            ("numbers", StandardScaler(), [0, 1]),
            ("words", OneHotEncoder(handle_unknown="ignore"), [2]),
            ("order", OrdinalEncoder(), [3]),
        ]
    )
    model = make_pipeline(columns, LogisticRegression())
    table = np.concatenate([ROWS[:, :2].astype(object), words], 1)
    types = [("numbers", FloatTensorType([None, 2])), ("words", StringTensorType([None, 2]))]
    proto = exported(model, table, TWO, initial_types=types)
    check(proto, {"numbers": ROWS[:, :2], "words": words})


def test_dictionaries_are_refused_with_what_to_do() -> None:
    model = LogisticRegression().fit(ROWS, TWO)
    proto = to_onnx(model, ROWS[:1], target_opset=OPSET)
    with pytest.raises(UnsupportedError, match="'zipmap': False"):
        load_onnx(proto.SerializeToString())

"""Models of scikit-learn as skl2onnx exports them, against ONNX Runtime and scikit-learn itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
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

import ingot
import ingot.integrations.onnx_backend
from ingot.emit.onnx import export_onnx
from ingot.emit.onnx.registry import GAPS
from ingot.errors import InputError, ReferenceWarning, ShapeError, UnsupportedError
from ingot.ir.text import parse
from ingot.load.onnx import load_onnx
from ingot.ort import OrtValue
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from onnx_models import model, run_oracle

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


def same_dictionaries(found: list[dict], expected: list[dict]) -> bool:
    kinds = [{(type(key), type(value)) for row in rows for key, value in row.items()} for rows in (found, expected)]
    close = all(row == pytest.approx(wanted, rel=2e-4, abs=2e-5) for row, wanted in zip(found, expected, strict=True))
    return close and kinds[0] == kinds[1]


@pytest.mark.parametrize("name", ["scaled logistic", "words as labels", "forest of two", "machine of probabilities"])
@pytest.mark.filterwarnings("ignore")
def test_default_output_of_skl2onnx(name: str, tmp_path: Path) -> None:
    """Dictionaries of probabilities: all but the last step is native, whichever way the model is run."""
    estimator, rows, target = NUMERIC[name]()
    proto = to_onnx(estimator.fit(rows, target), rows[:1], target_opset=OPSET)
    content, feeds = proto.SerializeToString(), {"X": rows}
    labels, dictionaries = run_oracle("ort", proto, feeds)
    session = InferenceSession(content, dims={"X_0": len(rows)})
    assert "zip_map 'output_probability'" in session.program.fallback and session.program.native
    session.save(tmp_path / "saved")
    ways = {
        "session": session.run(None, feeds),
        "interpreter": [*interpret(load_onnx(content), feeds).values()],
        "saved": InferenceSession(tmp_path / "saved").run(None, feeds),
        "backend": [*ingot.integrations.onnx_backend.run_model(proto, [rows])],
    }
    graph = load_onnx(content)
    if all(node.op.name not in GAPS for node in graph.nodes):
        ways["written"] = run_oracle("ort", export_onnx(graph), feeds)
    for way, (found, probabilities) in ways.items():
        assert np.asarray(found).tolist() == labels.tolist(), way
        assert same_dictionaries(probabilities, dictionaries), way
    exact = estimator.predict_proba(rows)
    wrong = np.abs([list(row.values()) for row in dictionaries] - exact)
    assert [*dictionaries[0]] == estimator.classes_.tolist() and np.median(wrong) < 1e-5
    types = [argument.type for argument in onnxruntime.InferenceSession(content).get_outputs()]
    assert [argument.type for argument in session.get_outputs()] == types


def test_dictionaries_are_a_step_of_the_reference() -> None:
    content = to_onnx(LogisticRegression().fit(ROWS, TWO), ROWS[:1], target_opset=OPSET).SerializeToString()
    with pytest.raises(UnsupportedError, match="strict: no kernel, got zip_map 'output_probability'"):
        InferenceSession(content, dims={"X_0": len(ROWS)}, strict=True)
    session = InferenceSession(content)
    with pytest.warns(ReferenceWarning, match="zip_map"):
        session.run(None, {"X": ROWS})
    assert session.explain("output_probability").fallback == ("zip_map 'output_probability'",)
    binding = session.io_binding()
    binding.bind_input("X", ROWS)
    binding.bind_output("output_probability", np.empty(len(ROWS), np.float32))
    with pytest.raises(InputError, match="'output_probability': no array, got a list"):
        binding.run()
    feeds = {"X": OrtValue.ortvalue_from_numpy(ROWS)}
    (value,) = ingot.InferenceSession(content).run_with_ort_values(["output_probability"], feeds)
    assert value.data_type() == "seq(map(int64,tensor(float)))" and not value.is_tensor_sequence()


def test_what_no_constants_are_of_is_not_written() -> None:
    graph = parse("graph g\ninput x: f32[2, 3]\ninput n: i64[3]\nm = zip_map(x, n)\noutput m = m\n")
    assert str(graph.values["m"].type) == "sequence<map<i64, f32>>"
    with pytest.raises(UnsupportedError, match=r"a map of .* by labels i64\[3\] is not"):
        export_onnx(graph)


def test_declared_dictionaries_are_compared_with_results() -> None:
    proto = to_onnx(LogisticRegression().fit(ROWS, TWO), ROWS[:1], target_opset=OPSET)
    (output,) = [each for each in proto.graph.output if each.type.HasField("sequence_type")]
    output.type.sequence_type.elem_type.map_type.key_type = onnx.TensorProto.STRING
    with pytest.raises(ShapeError, match=r"'output_probability': declared dtype contradicts .*map\(string"):
        load_onnx(proto.SerializeToString())


def test_dictionaries_are_not_read() -> None:
    kind = onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(1, []))
    node = onnx.helper.make_node("DictVectorizer", ["d"], ["y"], domain="ai.onnx.ml", int64_vocabulary=[1, 2])
    ports = [onnx.helper.make_value_info("d", kind)], [onnx.ValueInfoProto(name="y")]
    with pytest.raises(UnsupportedError, match=r"'d' is a map, as op .*DictVectorizer reads a dictionary"):
        load_onnx(model(onnx.helper.make_graph([node], "g", *ports), **{"ai.onnx.ml": 3}).SerializeToString())

"""What objects print of themselves: repr() is one readable line, str() is the same line or more."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
import ingot.llm
import ingot.ort
import ingot.quantize
import ingot.training
from ingot.load.hub import SHIPPED
from ingot.ort.tables import REFUSED
from ingot.quantize.report import Loss

DIGITS = Path(ingot.__file__).parent / "data" / "digits.onnx"
IMAGES = np.zeros((2, 1, 8, 8), np.float32)
MAX_LINE = 170  # characters

# Each name with what its repr() begins with.
SESSION = {
    "session": "<InferenceSession 'digits.onnx': native, f32, 1 thread>",
    "closed": "<InferenceSession 'digits.onnx': native, f32, 1 thread, closed>",
    "of_bytes": "<InferenceSession of bytes: ",
    "context": "<Context: native, 1 program>",
    "plan": "<PlanReport: arena 61440 bytes, lower bound 61440 bytes>",
    "explanation": "<Explanation: 9 nodes with a kernel, 0 on the reference>",
    "bindings": "<BindingReport: 1 of 16 programs, 0 hits, 1 miss>",
    "profile": "<Profile: 9 steps, ",
    "step": "<StepTime div_f32 'div': ",
    "total": "StepTotal(count=1, ",
    "binding": "<IOBinding: 1 input, 1 output>",
    "plain_binding": "<IOBinding: 1 input, 1 output>",
    "argument": "NodeArg(name='image', shape=['batch', 1, 8, 8], type='tensor(float)')",
    "metadata": "<ModelMetadata 'main_graph': producer 'pytorch', version ",
    "options": "SessionOptions(intra_op_num_threads=1)",
    "run_options": "RunOptions()",
    "value": "<OrtValue tensor(float) [2, 1, 8, 8]>",
    "values": "<OrtValue seq(tensor(float)) of 1>",
    "nothing": "<OrtValue: nothing>",
    "device": "<OrtDevice cpu>",
    "level": "<GraphOptimizationLevel.ORT_ENABLE_ALL: 99>",
}
GRAPH = {
    "graph": "<Graph 'main_graph': 26 nodes, 1 input, 1 output>",
    "node": "<div = div(image, scalar_tensor_default)>",
    "tensor": "<Value image: f32[batch, 1, 8, 8], input>",
    "weight": "<Value classifier.features.0.weight: f32[16, 1, 3, 3], constant>",
    "type": "<TensorType f32[batch, 1, 8, 8]>",
    "dim": "batch",
    "dtype": "f32",
    "op": "<Op div>",
    "limit": "Limit(size=4)",
    "kernel": "ExternalKernel(library='a.so', symbol='f', dtypes=('f32',))",
    "wgsl": "<WgslKernel: 3 lines, f32>",
}
LANGUAGE = {
    "llm": "<LLM 'tiny-lm': decoder, f32, 2 sequences of 64 positions>",
    "completion": "<Completion ",
    "logprobs": "<LogProbs of token ",
    "usage": "Usage(prompt_tokens=",
    "generation": "<Generation: prompt of 2 tokens, 0 of at most 3 drawn, going on>",
    "memory": "<Memory: ",
    "mode": "ModeMemory(arena=",
    "sampling": "Sampling(temperature=1.0, ",
    "tokenizer": "<Tokenizer: ",
}
TRAINING = {
    "trainer": "<Trainer: 0 steps, 1 parameter, SGD(lr=0.1, momentum=0.0, weight_decay=0.0)>",
    "sgd": "SGD(lr=0.1, momentum=0.0, weight_decay=0.0)",
    "adamw": "AdamW(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01)",
    "loss": "CrossEntropy(ignore_index=-100, label_smoothing=0.0)",
    "linear": "Linear(lr=0.1, steps=10, warmup=0, floor=0.0)",
    "cosine": "Cosine(lr=0.1, steps=10, warmup=0, floor=0.0)",
    "lora": "Lora(r=8, alpha=16.0, targets=None, seed=0)",
    "trade": "Trade(nbytes=",
    "written": "Written(coded=1, kept=2, before=3, after=4, widened=())",
    "calibrated": "Calibrated(coded=1, kept=2)",
    "quantize_plan": "Plan(format='int4', group=None, zero_points=False, vocabulary='int8', int8=(), keep=())",
    "report": "<Report: 1 matrix, 10 bytes>",
}
# What is printed in more than a line.
TABLES = {
    "session", "of_bytes", "explanation", "profile", "binding", "plain_binding", "metadata", "options", "run_options",
    "value", "values", "nothing", "graph", "llm", "logprobs", "memory", "trainer", "report",
}  # fmt: skip
# Classes of which users get no objects: what they hand to a function, or what is raised.
WITHOUT_OBJECTS = {"ExecutionMode", "ExecutionOrder"} | {name for name in REFUSED[""] if name[0].isupper()}


@pytest.fixture(scope="module")
def session_objects() -> dict[str, Any]:
    options = ingot.SessionOptions()
    options.intra_op_num_threads = 1
    session, closed = (ingot.InferenceSession(DIGITS, options) for _ in range(2))
    binding, plain = session.io_binding(), ingot.session.io_binding.IOBinding(session.context())
    for each in (binding, plain):
        each.bind_input("image", IMAGES)
        each.bind_output("probabilities", np.empty((2, 10), np.float32))
    binding.run()
    with closed:
        pass
    profile = session.profile({"image": IMAGES})
    context = session.context()
    context.run(None, {"image": IMAGES})
    return {
        "session": session, "closed": closed, "of_bytes": ingot.InferenceSession(DIGITS.read_bytes()),
        "context": context, "plan": session.plan, "explanation": session.explain(),
        "bindings": context.bindings, "profile": profile, "step": profile.steps[0],
        "total": next(iter(profile.totals().values())), "binding": binding, "plain_binding": plain,
        "argument": session.get_inputs()[0], "metadata": session.get_modelmeta(), "options": options,
        "run_options": ingot.RunOptions(), "value": ingot.OrtValue(IMAGES), "values": ingot.OrtValue([IMAGES]),
        "nothing": ingot.OrtValue(None), "device": ingot.OrtDevice(),
        "level": ingot.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }  # fmt: skip


@pytest.fixture(scope="module")
def graph_objects() -> dict[str, Any]:
    graph = ingot.InferenceSession(DIGITS, passes=()).graph
    type = graph.type("image")
    return {
        "graph": graph, "node": next(iter(graph.nodes)), "tensor": graph.values["image"],
        "weight": graph.values["classifier.features.0.weight"], "type": type, "dim": type.shape[0],
        "dtype": type.dtype, "op": next(iter(graph.nodes)).op, "limit": ingot.at_most(4),
        "kernel": ingot.ExternalKernel("a.so", "f"), "wgsl": ingot.WgslKernel("fn work(i: i32) {\n\n}"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def language_objects() -> dict[str, Any]:
    llm = ingot.LLM(SHIPPED["tiny-lm"], precision="f32", context=64, sequences=2, threads=1)
    completion = llm.complete("def f(x):\n    ", max_tokens=3, logprobs=2)
    return {
        "llm": llm, "completion": completion, "logprobs": completion.logprobs[0], "usage": completion.usage,
        "generation": llm.generation([1, 2], max_tokens=3), "memory": llm.memory,
        "mode": llm.memory.modes["decode"], "sampling": ingot.llm.Sampling(), "tokenizer": llm.tokenizer,
    }  # fmt: skip


@pytest.fixture(scope="module")
def training_objects() -> dict[str, Any]:
    graph = ingot.ir.graph.Graph()
    graph.add_input("x", ingot.TensorType(ingot.ir.dtype.f32, (2, 3)))
    graph.add_weight("w", np.ones((3, 4), np.float32))
    graph.add("matmul", ["x", "w"], "y")
    graph.set_output("y", "y")
    example, sgd = (np.zeros((2, 3), np.float32), np.zeros(2, np.int64)), ingot.SGD(lr=0.1)
    trainer = ingot.Trainer(graph, example_inputs=example, optimizer=sgd, memory="1GB", threads=1)
    loss = Loss("w", "int4", 10, 0.01, None, (0.001, 10))
    return {
        "trainer": trainer, "sgd": sgd, "adamw": ingot.AdamW(), "loss": ingot.CrossEntropy(),
        "linear": ingot.Linear(lr=0.1, steps=10), "cosine": ingot.Cosine(lr=0.1, steps=10), "lora": ingot.lora(),
        "written": ingot.quantize.Written(1, 2, 3, 4), "calibrated": ingot.quantize.Calibrated(1, 2),
        "trade": trainer.trade, "quantize_plan": ingot.quantize.Plan("int4"), "report": ingot.quantize.Report([loss]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def objects(session_objects, graph_objects, language_objects, training_objects) -> dict[str, Any]:
    return session_objects | graph_objects | language_objects | training_objects


@pytest.mark.parametrize(("name", "begin"), [*(SESSION | GRAPH | LANGUAGE | TRAINING).items()])
def test_a_line(objects: dict[str, Any], name: str, begin: str) -> None:
    line, text = repr(objects[name]), str(objects[name])
    assert line.startswith(begin) and len(line) <= MAX_LINE
    assert line.isprintable() and not re.search(r" at 0x|np\.\w+\(", line + text)
    assert ("\n" in text) == (name in TABLES) or name == "completion"


def public_classes() -> Iterator[tuple[str, type]]:
    for module in (ingot, ingot.ort, ingot.llm, ingot.training, ingot.quantize):
        for name in module.__all__:
            if isinstance(found := getattr(module, name), type):
                yield name, found


def test_every_public_class_is_in_the_table(objects: dict[str, Any]) -> None:
    shown = {type(each) for each in objects.values()}
    missing = {name for name, cls in public_classes() if cls not in shown and not issubclass(cls, Exception)}
    assert missing == WITHOUT_OBJECTS


def test_names_of_models_stay_in_their_line() -> None:
    graph = ingot.ir.graph.Graph("a\nb")
    graph.add_input("x\ny", ingot.TensorType(ingot.ir.dtype.f32, (2,)))
    graph.set_output("z", graph.add("relu", ["x\ny"], "a\x1bb").output)
    shown = [graph, next(iter(graph.nodes)), *graph.values.values()]
    assert all(repr(each).isprintable() for each in shown)
    assert len(str(graph).splitlines()) == 3
    assert len(str(ingot.InferenceSession(graph)).splitlines()) == 3


def test_a_table_has_a_row_for_each_input_and_output(objects: dict[str, Any]) -> None:
    assert str(objects["session"]).splitlines()[1:] == [
        "  input   image          tensor(float)  [batch, 1, 8, 8]",
        "  output  probabilities  tensor(float)  [batch, 10]",
    ]
    assert str(objects["trainer"]).splitlines()[1:] == ["  w  f32[3, 4]"]
    assert str(objects["binding"]).splitlines()[1:] == [
        "  input   image          float32[2, 1, 8, 8]",
        "  output  probabilities  float32[2, 10]",
    ]

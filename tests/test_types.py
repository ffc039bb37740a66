"""What mypy and pyright say of users' scripts: nothing of right ones, and each mistake of wrong ones."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import ingot
import ingot.ort.session
import ingot.session.inference
from ingot.llm.keywords import ChatKeywords, DrawKeywords, ModelKeywords, StepKeywords, TextKeywords, TokenKeywords
from ingot.llm.sampling import Sampling
from ingot.ort.options import RUN_OPTIONS, SESSION_OPTIONS
from ingot.ort.tables import ACCEPTED, REFUSED
from ingot.session.source import SessionKeywords

ROOT = Path(__file__).parents[1]

RIGHT = """\
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ingot
import ingot as ort

x = np.zeros((2, 1, 8, 8), np.float32)
labels = np.zeros(2, np.int64)

dims = {"batch": ingot.at_most(4)}
session = ingot.InferenceSession("model.onnx", threads=2, precision="bf16", dims=dims, cache=False)
outputs: list[Any] = session.run(None, {"image": x})
array = session(x)
print(session.plan, session.explain("y"), session.profile({"image": x}, runs=3), session.bindings.hits)
print([(each.name, each.shape, each.type) for each in session.get_inputs()])
with ingot.InferenceSession(Path("model.onnx"), fuse=False, passes=["fold"]) as other:
    other.save("folder")
binding = session.io_binding()
binding.bind_input("image", x)
binding.bind_output("y")
binding.run()
values: list[ort.OrtValue] = binding.get_outputs()


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


module = ingot.InferenceSession(Net(), example_inputs=(torch.zeros(1, 2),))
export: bytes = ingot.export_onnx(module.graph).SerializeToString()

options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.add_session_config_entry("session.load_model_format", "ONNX")
known = ort.InferenceSession("model.onnx", options, ["CPUExecutionProvider"], strict=True)
known.disable_fallback()
result = known.run(["y"], {"image": x}, ort.RunOptions())
value = ort.OrtValue.ortvalue_from_numpy(x)
print(known.run_with_ort_values(None, {"image": value})[0].numpy().shape, ort.get_available_providers(), ort.version)
meta: Mapping[str, str] = known.get_modelmeta().custom_metadata_map
is_sparse = isinstance(x, ort.SparseTensor)
ort.set_default_logger_severity(3)
ort.set_seed(1)

llm = ingot.LLM("folder", context=512, precision="int8", threads=2)
text: str = llm.generate("def", max_tokens=3, stop=["\\n"], temperature=0.5, seed=1)
texts: list[str] = llm.generate(["a", "b"], max_tokens=3)
for piece in llm.stream("def", regex="[a-z]+"):
    sys.stdout.write(piece)
messages = [{"role": "user", "content": "hi"}]
answer: str = llm.chat(messages, tools=[{"name": "f"}], template_options={"enable_thinking": False})
completion = llm.complete("def", logprobs=3)
print(completion.text, completion.usage.decode_tokens_per_second, completion.logprobs[0].top[0])
ids: list[int] = list(llm.generate_tokens([1, 2], max_tokens=3, top_k=4))
rows: np.ndarray = llm.embed(["a", "b"], pooling="last")

trainer = ingot.Trainer(
    Net(),
    loss=ingot.CrossEntropy(label_smoothing=0.1),
    example_inputs=(x, labels),
    optimizer=ingot.AdamW(lr=ingot.Cosine(lr=1e-3, steps=100)),
    trainable=ingot.lora(r=4),
    memory="1GB",
)
loss: float = trainer.step(x, labels)
trainer.session().run(None, {"x": x})
state: dict[str, np.ndarray] = trainer.state_dict()
"""

# Each line behind the first three has one mistake.
WRONG = """\
import ingot
session = ingot.InferenceSession("model.onnx")
llm = ingot.LLM("folder")
ingot.InferenceSession("model.onnx", thread=2)
ingot.InferenceSesion("model.onnx")
ingot.InferenceSession(3)
ingot.InferenceSession("model.onnx", (1, 2))
ingot.InferenceSession("model.onnx", threads="2")
ingot.LLM("folder", thread=2)
llm.generate("def", max_token=3)
llm.generate("def", temperature="hot")
llm.stream("def", max_token=3)
llm.chat([{"role": "user", "content": "hi"}], temprature=0)
llm.complete("def", template_options={})
llm.generate_tokens([1], max_token=3)
ingot.Trainer(session.graph, example_inputs=(1, 2), optimizer=ingot.SGD(lr=0.1), seeds=1)
ingot.AdamW(beta=(0.9, 0.99))
ingot.SessionOptions().intra_op_num_thread = 2
session.explan()
ingot.ort.OrtValues
number: int = llm.generate("def")
"""


def mypy(folder: Path) -> set[tuple[str, int]]:
    """The files and lines with an error. With the settings and in the folder of `make lint`, whose cache it reads."""
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", *folder.glob("*.py")]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode in (0, 1) and not run.stderr, run.stdout + run.stderr
    return {(name, int(line)) for name, line in re.findall(r"(\w+\.py):(\d+): error: ", run.stdout)}


def pyright(folder: Path) -> set[tuple[str, int]]:
    """The files and lines with an error."""
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    errors = [each for each in json.loads(run.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}


@pytest.mark.parametrize("check", [mypy, pyright])
def test_users_scripts(check: Callable[[Path], set[tuple[str, int]]], tmp_path: Path) -> None:
    """One run for both scripts, because a checker takes most of its time for the packages that they import."""
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    assert check(tmp_path) == {("wrong.py", line) for line in range(4, len(WRONG.splitlines()) + 1)}


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_options_that_are_handed_on() -> None:
    assert set(SessionKeywords.__annotations__) == keywords(ingot.session.inference.InferenceSession.__init__)
    model = set(ModelKeywords.__annotations__) | {"sequences"}
    assert model | set(StepKeywords.__annotations__) == keywords(ingot.LLM.__init__)
    assert model | {"budget", "cache_positions", "checkpoints"} == keywords(ingot.llm.memory_of)
    sampling, limits = {field.name for field in fields(Sampling)}, {"schema", "regex", "grammar", "timeout"}
    assert set(DrawKeywords.__annotations__) == (sampling | limits) - {"temperature"}
    assert set(TokenKeywords.__annotations__) - set(DrawKeywords.__annotations__) == {"temperature", "max_tokens"}
    assert set(TextKeywords.__annotations__) - set(TokenKeywords.__annotations__) == {"stop"}
    assert set(ChatKeywords.__annotations__) - set(TextKeywords.__annotations__) == {"tools", "template_options"}


def test_every_name_of_ort_is_declared() -> None:
    """The tables make methods and attributes at run time; the classes declare them for type checkers."""
    for scope in (set(ACCEPTED) | set(REFUSED)) - {""}:
        declared = {name: str(hint) for name, hint in getattr(ingot.ort, scope).__annotations__.items()}
        kinds = dict.fromkeys(ACCEPTED.get(scope, {}), "Accepts") | dict.fromkeys(REFUSED.get(scope, {}), "Refuses")
        assert {name: hint for name, hint in declared.items() if hint in ("Accepts", "Refuses")} == kinds
    for cls, options in ((ingot.SessionOptions, SESSION_OPTIONS), (ingot.RunOptions, RUN_OPTIONS)):
        hints = get_type_hints(cls)
        assert options.keys() <= hints.keys()
        for name, option in options.items():
            assert hints[name] is type(option.default), name
    assert set(ingot.ort.__all__) >= {*ACCEPTED[""], *REFUSED[""]}
    assert all(hasattr(ingot, name) for name in ingot.ort.__all__)

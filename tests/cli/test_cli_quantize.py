"""`ingot quantize` and `ingot perplexity`."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_cli import process

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.emit.onnx import export_onnx
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.llm.perplexity import perplexity
from ingot.load.hf import read_folder

TEXT = "def is_empty(self):\n    return not self.items\n\n\nimport os\nimport sys\n" * 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / "latin").write_bytes("ä".encode("latin-1"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "few").mkdir()
    shutil.copytree(FOLDER, tmp_path / "no-tokenizer", ignore=shutil.ignore_patterns("tokenizer*"))
    shutil.copytree(FOLDER, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dtypes(path: str) -> dict[str, str]:
    """The dtype of each stored tensor that is no vector."""
    return {name: str(tensor.dtype) for name, tensor in read_folder(path).tensors.items() if len(tensor.shape) > 1}


def test_quantize_writes_a_folder_that_generates(call, folder):
    code, out, err = call("quantize", FOLDER, "--format", "int4", "-o", "out")
    assert (code, err) == (0, "") and "36 weights quantized, 11 unchanged" in out and "5.3 MiB became 1.8 MiB" in out
    assert call("generate", "out", "import os\n", "--max-tokens", 4)[0] == 0
    assert {p.name for p in Path("out").iterdir()} == {p.name for p in Path(FOLDER).iterdir()}
    found = dtypes("out")
    assert found["model.embed_tokens.weight.codes"] == "i8" and "model.norm.weight" not in found
    assert found["model.layers.0.mlp.up_proj.weight.codes"] == "u8"
    assert set(found.values()) == {"i8", "u8", "f16"}


def test_quantize_takes_a_choice_for_each_weight(call, folder):
    options = (
        "--group",
        64,
        "--zero-points",
        "--vocabulary",
        "keep",
        "--int8",
        "*.v_proj.weight",
        "--keep",
        "*.o_proj.*",
    )
    code, out, _ = call("quantize", FOLDER, "--format", "int4", "-o", "out", *options, "--json")
    facts, found = json.loads(out), dtypes("out")
    assert code == 0 and facts["coded"] == 30 and facts["output"] == "out" and facts["after"] < facts["before"]
    assert found["model.embed_tokens.weight"] == found["model.layers.2.self_attn.o_proj.weight"] == "bf16"
    assert found["model.layers.2.self_attn.v_proj.weight.codes"] == "i8"
    assert found["model.layers.2.self_attn.q_proj.weight.zeros"] == "u8"
    assert read_folder("out").tensors["model.layers.2.self_attn.q_proj.weight.scales"].shape == (192, 3)


def test_report_writes_nothing(call, folder):
    before = sorted(os.listdir())
    code, out, _ = call("quantize", FOLDER, "--format", "int4", "--report", "--budget", "100kB", "--json")
    facts = json.loads(out)
    assert code == 0 and len(facts["weights"]) == 36 and len(facts["layers"]) == 6 and sorted(os.listdir()) == before
    assert set(facts["int8"]) < {row["name"] for row in facts["weights"] if row["format"] == "int4"}
    code, out, _ = call("quantize", FOLDER, "--format", "int4", "--report", "--budget", "100kB")
    assert code == 0 and out.rstrip().endswith(" ".join(f"--int8 {name}" for name in facts["int8"]))
    assert "of outputs" not in out  # there is no text to run over
    row = next(line for line in out.splitlines() if "model.layers.0.mlp.up_proj.weight" in line).split()
    assert row[1] == "int4" and row[-1] == "%" and 1 < float(row[-2]) < 20
    code, out, _ = call("quantize", FOLDER, "--format", "int8", "--report", "--budget", "1MB")
    assert code == 0 and out.endswith("every quantized weight is int8 already\n")


def test_perplexity_is_that_of_the_model(call, folder):
    llm = ingot.LLM(FOLDER, precision="f32", context=64)
    expected = perplexity(llm, TEXT, stride=20)
    options = ("--precision", "f32", "--context", 64, "--stride", 20)
    code, out, err = call("perplexity", FOLDER, "text", *options)
    assert (code, err) == (0, "")
    assert out == (
        f"{expected.tokens} tokens, {expected.nats:.4f} nats a token, perplexity {expected.perplexity:.4f}\n"
    )
    child = process("perplexity", FOLDER, "-", *options, "--json", stdin=-1)
    facts = json.loads(child.communicate(TEXT)[0])
    assert facts == {
        "tokens": expected.tokens, "nats": expected.nats, "perplexity": expected.perplexity, "context": 64,
        "precision": "f32",
    }  # fmt: skip


def test_quantize_calibrates_models(call, folder):
    """One file of inputs, or a folder of such; the model written runs on integers."""
    graph = Graph("model")
    graph.add_input("x", TensorType(f32, (1, 16, 5, 5)))
    weight = graph.add_weight("w", np.random.default_rng(0).standard_normal((32, 16, 3, 3), np.float32))
    window = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1}
    graph.set_output("y", graph.add("conv", ["x", weight], **window).output)
    export_onnx(graph, "model.onnx")
    samples = [np.random.default_rng(i).standard_normal((1, 16, 5, 5), np.float32) for i in range(3)]
    os.mkdir("samples")
    for i, sample in enumerate(samples):
        np.savez(f"samples/{i}.npz", x=sample)
    given = ("quantize", "model.onnx", "--format", "int8", "--calibrate")
    code, out, err = call(*given, "samples", "-o", "out.onnx")
    assert (code, out) == (0, "out.onnx: 1 products of integers, 0 unchanged\n"), err
    session = ingot.InferenceSession("out.onnx")
    (y,), (exact,) = (each.run(None, {"x": samples[0]}) for each in (session, ingot.InferenceSession("model.onnx")))
    assert "integer_packed" in str(session.explain()) and abs(y - exact).max() < 0.05 * abs(exact).max()
    code, out, _ = call(*given, "samples/0.npz", "-o", "one.onnx", "--json")
    assert (code, json.loads(out)) == (0, {"coded": 1, "kept": 0, "output": "one.onnx"})
    np.save("array.npy", samples[0])
    for wrong, code, text in (
        (("text", "-o", "new.onnx"), 65, "text: not an .npz file, it begins with b'def is_e', expected b'PK"),
        (("array.npy", "-o", "new.onnx"), 65, "array.npy: one array, got .npy, expected .npz"),
        (("absent", "-o", "new.onnx"), 66, "absent"),
        (("few", "-o", "new.onnx"), 65, "few: no input files, got no *.npz, expected one or more in this folder"),
        (("samples", "-o", "one.onnx"), 73, "one.onnx: exists, expected a free name"),
        (("samples", "--group", "32", "-o", "new.onnx"), 2, "option for model folders only, got --group, expected"),
        (("samples", "--keep", "w", "-o", "new.onnx"), 2, "option for model folders only, got --keep, expected"),
        (("samples", "--report"), 2, "option for model folders only, got --report, expected"),
        (
            ("samples", "--format", "int4", "-o", "new.onnx"),
            2,
            "option for model folders only, got --format int4, expected",
        ),
    ):  # of two --format the last counts
        got, out, err = call(*given, *wrong)
        assert (got, out) == (code, "") and text in err and not Path("new.onnx").exists(), err


FAILURES = [
    (("quantize", FOLDER, "-o", "out"), 2, "--format"),
    (("quantize", FOLDER, "--format", "int4"), 2, "expected either -o or --report"),
    (("quantize", FOLDER, "--format", "int4", "-o", "out", "--report"), 2, "expected either -o or --report"),
    (("quantize", FOLDER, "--format", "int4", "-o", "out", "--budget", "1MB"), 2, "--budget: got no --report"),
    (("quantize", FOLDER, "--format", "int5", "-o", "out"), 65, "option format: unknown value, got 'int5'"),
    (("quantize", FOLDER, "--format", "int4", "--group", "48", "-o", "out"), 65, "option group: unknown value, got 48"),
    (("quantize", FOLDER, "--format", "int4", "--group", "128", "-o", "out"), 65, "does not divide the 192 columns"),
    (("quantize", FOLDER, "--format", "int8", "--zero-points", "-o", "out"), 65, "option zero_points: for int4 only"),
    (("quantize", FOLDER, "--format", "int4", "-o", "few"), 73, "few: exists, expected a free name"),
    (("quantize", FOLDER, "--format", "int4", "-o", "text/out"), 73, "text"),
    (("quantize", FOLDER, "--format", "int4", "-o", "out", "--calibrate", "absent"), 66, "absent"),
    (("quantize", FOLDER, "--format", "int4", "-o", "out", "--calibrate", "latin"), 65, "latin: not UTF-8"),
    (("quantize", FOLDER, "--format", "int4", "-o", "out", "--calibrate", "text"), 65, "text: too short to calibrate"),
    (("quantize", "no-tokenizer", "--format", "int4", "-o", "out", "--calibrate", "text"), 65, "tokenizer.json"),
    (("quantize", "absent", "--format", "int4", "-o", "out"), 66, "absent"),
    (("quantize", "few", "--format", "int4", "-o", "out", "--calibrate", "latin"), 65, "few: not a model folder"),
    (("quantize", "m.gguf", "--format", "int4", "-o", "out"), 65, "m.gguf: cannot be quantized, got a GGUF file"),
    (("quantize", "text", "--format", "int8", "-o", "out"), 2, "text: no calibration inputs, got no --calibrate"),
    (("quantize", FOLDER, "--format", "int8", "-o", ""), 2, "'--output': an empty name"),
    (("emit-onnx", FOLDER, "-o", ""), 2, "'--output': an empty name"),
    (("emit-c", FOLDER, "-o", ""), 2, "'--output': an empty name"),
    (("emit-web", FOLDER, "-o", ""), 2, "'--output': an empty name"),
    (("run", FOLDER, "--output", ""), 2, "'--output': an empty name"),
    (("dot", FOLDER, "-o", ""), 2, "'--output': an empty name"),
    (("quantize", FOLDER, "--format", "int4", "--report", "--budget", "-1"), 2, "option budget: got '-1'"),
    (("quantize", FOLDER, "--format", "int4", "--report", "--budget", "1ZB"), 2, "option budget: got '1ZB'"),
    (("quantize", "cut", "--format", "int4", "-o", "out"), 65, "model.safetensors"),
    (("perplexity", FOLDER, "absent"), 66, "absent"),
    (("perplexity", FOLDER, "latin"), 65, "latin: not UTF-8"),
    (("perplexity", "no-tokenizer", "text"), 65, "tokenizer.json"),
    (("perplexity", FOLDER, "text", "--stride", "0"), 2, "--stride"),
    (("perplexity", FOLDER, "text", "--context", "16", "--stride", "16"), 65, "option stride: out of range, got 16"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), FAILURES, ids=lambda v: v if isinstance(v, int) else None)
def test_failures_have_their_code_say_why_and_leave_nothing(call, folder, arguments, code, text):
    before = sorted(os.listdir())
    got, out, err = call(*arguments)
    assert (got, out) == (code, "") and text in err and "Traceback" not in err, err
    assert sorted(os.listdir()) == before


def test_nothing_is_quantized_twice(call, folder):
    assert call("quantize", FOLDER, "--format", "int8", "-o", "out")[0] == 0
    code, _, err = call("quantize", "out", "--format", "int4", "-o", "again")
    assert code == 65 and "out: quantized already" in err and not Path("again").exists()

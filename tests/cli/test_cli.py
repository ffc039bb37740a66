"""The command line: exit codes, files, JSON, and names that would drive the terminal."""

import contextlib
import importlib.resources
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.cli import commands
from ingot.cli.terminal import _print_folded_table, human_bytes, human_time, print_table, printable
from ingot.inspect.drawing import quoted
from ingot.support.files import written
from onnx_models import text_model

DATA = Path(str(importlib.resources.files("ingot") / "data"))
DIGITS = str(DATA / "digits.onnx")
HOSTILE = "\x1b[31m[bold]x[/bold]\u202e\r"


def process(*arguments, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", "from ingot.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def save_model(path: Path, *nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> Path:
    """An ONNX file: x f32[2, 3] and the given nodes."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in outputs],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.fixture
def digits(tmp_path) -> tuple[Path, np.ndarray, np.ndarray]:
    """A .npy file of held-out digits, f32[360, 1, 8, 8], with the array and the labels."""
    with np.load(DATA / "digits.npz", allow_pickle=False) as held_out:
        images, labels = held_out["images"][:, None].astype(np.float32), held_out["labels"]
    np.save(tmp_path / "digits.npy", images)
    return tmp_path / "digits.npy", images, labels


def test_help_names_every_command(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("--help")
    assert code == 0 and "..." not in out.partition("Commands:")[2]  # no line of help is cut
    names = "run generate chat memory perplexity quantize "
    names += "explain demo inspect list-nodes ops knobs doctor cache emit-c emit-web emit-onnx bench dot "
    names += (
        "inspect-node inspect-tensor trace-node validate contract serve batch compare explain-tensor plan-diff report "
    )
    names += "profile bisect"
    for name in names.split():
        assert name in commands.commands and name in out


def test_no_option_is_declared_twice():
    for name, command in commands.commands.items():
        given = [word for parameter in command.params for word in parameter.opts]
        assert len(given) == len(set(given)), f"{name}: {sorted(given)}"


def test_version(call):
    assert call("--version") == (0, f"{ingot.__version__}\n", "")


def test_run_writes_what_the_session_computes(call, digits, tmp_path):
    source, images, labels = digits
    code, _, err = call("run", DIGITS, "--input", f"image={source}", "--output", tmp_path / "y.npy")
    assert (code, err) == (0, "")
    result = np.load(tmp_path / "y.npy")
    (expected,) = ingot.InferenceSession(DIGITS).run(None, {"image": images})
    assert np.array_equal(result, expected)
    assert (result.argmax(-1) == labels).mean() >= 0.97
    np.testing.assert_allclose(result.sum(-1), 1, atol=1e-5)


def test_run_agrees_with_the_interpreter(call, digits, tmp_path):
    for executor in ("native", "interpret"):
        arguments = ("--input", digits[0], "--output", tmp_path / f"{executor}.npy", "--executor", executor)
        assert call("run", DIGITS, *arguments)[0] == 0
    native, reference = (np.load(tmp_path / f"{name}.npy") for name in ("native", "interpret"))
    np.testing.assert_allclose(native, reference, atol=2e-5)


def test_run_into_a_folder_numbers_the_files(call, tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["../up"]), helper.make_node("Neg", ["x"], [HOSTILE])]
    model = save_model(tmp_path / "two.onnx", *nodes, outputs=("../up", HOSTILE))
    x = np.array([[-1, 0, 2], [3, -4, 5]], np.float32)
    np.save(tmp_path / "x.npy", x)
    assert call("run", model, "--input", tmp_path / "x.npy", "--output", tmp_path / "out")[0] == 0
    index = json.loads((tmp_path / "out/outputs.json").read_text())
    assert index == {"0.npy": "../up", "1.npy": HOSTILE}
    assert np.array_equal(np.load(tmp_path / "out/0.npy"), np.maximum(x, 0))
    assert np.array_equal(np.load(tmp_path / "out/1.npy"), -x)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0.npy", "1.npy", "outputs.json"]


def test_results_that_are_no_arrays(call, tmp_path, monkeypatch):
    """Strings become numpy's, and lists of dictionaries JSON."""
    text = """g (float[2, 3] x) => (s, m) {
        m = ai.onnx.ml.ZipMap<classlabels_strings=["a", "b", "c"]>(x)  i = ArgMax<axis=1, keepdims=0>(x)
        s = ai.onnx.ml.LabelEncoder<keys_int64s=[0, 1, 2], values_strings=["a", "b", "c"]>(i)
    }"""
    (tmp_path / "m.onnx").write_bytes(text_model(text))
    x = np.array([[1, 2, np.inf], [-4, 3.5, 0]], np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ("run", tmp_path / "m.onnx", "--input", tmp_path / "x.npy")
    code, out, _ = call(*arguments, "--json")
    strings, rows = json.loads(out)
    assert code == 0 and strings == {"output": "s", "dtype": "string", "shape": [2], **NO_RANGE}
    assert rows["dtype"] == "seq(map(string,tensor(float)))" and rows["shape"] == [2]
    assert (rows["min"], rows["max"], rows["mean"]) == (-4.0, "inf", "inf")
    assert call(*arguments, "--output", tmp_path / "out")[0] == 0
    assert json.loads((tmp_path / "out/outputs.json").read_text()) == {"0.npy": "s", "1.json": "m"}
    assert np.load(tmp_path / "out/0.npy").tolist() == ["c", "b"]
    rows = json.loads((tmp_path / "out/1.json").read_text())
    assert rows == [{"a": 1.0, "b": 2.0, "c": "inf"}, {"a": -4.0, "b": 3.5, "c": 0.0}]
    (tmp_path / "one.onnx").write_bytes(text_model(text.replace("(s, m)", "(m)")))
    code, _, err = call("run", tmp_path / "one.onnx", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    assert code == 2 and "'m' is seq(map(string,tensor(float))), no array, expected a folder" in err
    monkeypatch.setenv("INGOT_DEBUG", "5")
    _, _, err = call(*arguments)
    assert "s: object[2]" in err and "m: a list of 2" in err
    monkeypatch.delenv("INGOT_DEBUG")
    assert call("emit-c", tmp_path / "m.onnx", "-o", tmp_path / "c")[0] == 69


NO_RANGE = {"min": None, "max": None, "mean": None}


@pytest.fixture
def folder(tmp_path, digits) -> Path:
    """Files that make commands fail."""
    (tmp_path / "garbage.onnx").write_bytes(b"\x00garbage" * 40)
    (tmp_path / "truncated.onnx").write_bytes(Path(DIGITS).read_bytes()[:5000])
    (tmp_path / "garbage.npy").write_bytes(b"not numpy")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "wrong.npy", np.zeros((2, 1, 8, 9), np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    node = helper.make_node("Unheard", ["x"], ["y"])
    save_model(tmp_path / "unsupported.onnx", node)
    return tmp_path


FAILURES = [
    (("run", "absent.onnx"), 66, "absent.onnx"),
    (("run", DIGITS, "--input", "absent.npy"), 66, "absent.npy"),
    (("explain", "garbage.onnx"), 65, "garbage"),
    (("explain", "truncated.onnx"), 65, "truncated"),
    (("run", DIGITS, "--input", "objects.npy"), 65, "objects.npy"),
    (("run", DIGITS, "--input", "garbage.npy"), 65, "not an .npy file, it begins with b'not nump'"),
    (("run", DIGITS, "--input", "picture=digits.npy"), 2, "no such input, got 'picture', expected 'image'"),
    (("run", DIGITS, "--input", "image="), 2, "no path"),
    (("inspect", "empty"), 65, "no config.json and no graph.ingot"),
    (("inspect", ""), 65, "path of a model: empty"),
    (("generate", DIGITS, "x"), 65, "no language model, got a file"),
    (("run", "tiny-lm"), 65, "ingot generate"),
    (("run", DIGITS, "--input", "wrong.npy"), 65, "expected 8"),
    (("explain", "unsupported.onnx"), 69, "Unheard"),
    (("run", DIGITS), 2, "expected 1: image"),
    (("run", DIGITS, "--input", "digits.npy", "--input", "digits.npy"), 2, "got 2"),
    (("run", DIGITS, "--input", "image=digits.npy", "--input", "image=digits.npy"), 2, "twice"),
    (("run", DIGITS, "--dim", "batch"), 2, "NAME=N"),
    (("run", DIGITS, "--dim", "batch=..0"), 2, "NAME=..N"),
    (("explain", DIGITS, "--dim", "bach=..2"), 65, "batch"),
    (("run", DIGITS, "--no-such-option"), 2, "no-such-option"),
    (("no-such-command",), 2, "no-such-command"),
    (("explain", DIGITS, "--dim", "bach=2"), 65, "batch"),
    (("explain", DIGITS, "no_such_node", "--dim", "batch=1"), 65, "no_such_node"),
    (("run", DIGITS, "--input", "digits.npy", "--output", "absent/y.npy"), 73, "absent/y.npy"),
    (("run", DIGITS, "--input", "digits.npy", "--output", "digits.npy/y"), 73, "digits.npy"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), FAILURES, ids=lambda v: v if isinstance(v, int) else None)
def test_failures_have_their_code_and_say_why(call, folder, monkeypatch, arguments, code, text):
    monkeypatch.chdir(folder)
    got, out, err = call(*arguments)
    assert (got, out) == (code, "")
    assert text in err and "Traceback" not in err


def test_a_wrong_knob_is_a_usage_error(call, monkeypatch):
    monkeypatch.setenv("INGOT_ISA", "mmx")
    code, _, err = call("knobs")
    assert code == 2 and "mmx" in err and "avx2" in err


def test_a_missing_library_is_a_lack_of_resources(call, monkeypatch, tmp_path):
    monkeypatch.setenv("INGOT_LIBRARY", str(tmp_path / "absent.so"))
    child = process("explain", DIGITS, "--dim", "batch=1")
    _, err = child.communicate()
    assert child.returncode == 75 and "absent.so" in err


JSON_COMMANDS = [
    ("knobs",),
    ("doctor",),
    ("cache",),
    ("ops",),
    ("ops", "--foreign"),
    ("demo",),
    ("explain", DIGITS, "--dim", "batch=2"),
    ("explain", DIGITS, "--dim", "batch=..2"),
    ("inspect", DIGITS),
    ("inspect", DIGITS, "--stage", "lowered", "--dim", "batch=2"),
    ("inspect", DIGITS, "--stage", "plan", "--dim", "batch=2"),
    ("list-nodes", DIGITS),
    ("dot", DIGITS),
    ("validate", DIGITS),
    ("bench", DIGITS, "--seconds", "0.05"),
]


@pytest.mark.parametrize("arguments", JSON_COMMANDS, ids=" ".join)
def test_commands_print_text_and_json(call, arguments):
    code, out, _ = call(*arguments)
    assert code == 0 and out.strip() and "\x1b" not in out
    code, out, _ = call(*arguments, "--json")
    assert code == 0 and json.loads(out)


def test_inspect_prints_a_graph_that_parses(call):
    from ingot.ir.text import dump, parse

    graph = ingot.InferenceSession(DIGITS).graph
    _, out, _ = call("inspect", DIGITS, "--stage", "optimized", "--full")
    assert dump(parse(out)) == dump(graph) == out


def test_inspect_leaves_long_constants_out(call):
    _, out, _ = call("inspect", DIGITS, "--stage", "optimized", "--text")
    _, full, _ = call("inspect", DIGITS, "--stage", "optimized", "--full")
    assert "constant classifier.features.0.weight: f32[16, 1, 3, 3] = ...\n" in out
    assert "constant scalar_tensor_default: f32[] = [1.6e+01]\n" in out
    assert [line.partition(" = ")[0] for line in out.splitlines()] == [
        line.partition(" = ")[0] for line in full.splitlines() if not line.startswith("source ")
    ]


def test_a_fused_node_is_explained_by_what_it_is_fused_into(call):
    _, out, _ = call("explain", DIGITS, "linear.matmul", "--dim", "batch=2", "--json")
    explained = json.loads(out)
    assert explained["fused_into"] == ["gelu_2"] == [node["node"] for node in explained["nodes"]]
    _, out, _ = call("explain", DIGITS, "linear.matmul", "--dim", "batch=2")
    assert "fused into gelu_2\n" in out
    _, out, _ = call("explain", DIGITS, "gelu_2", "--dim", "batch=2", "--json")
    assert "fused_into" not in json.loads(out)


def test_a_module_is_the_command_line():
    assert subprocess.check_output([sys.executable, "-m", "ingot", "--version"], text=True) == f"{ingot.__version__}\n"


def test_the_package_lists_what_it_has():
    assert set(ingot.__all__) < set(dir(ingot))
    assert all(hasattr(ingot, name) for name in dir(ingot))


def test_shells_complete_commands():
    asked = os.environ | {"_INGOT_COMPLETE": "bash_complete", "COMP_WORDS": "ingot expl", "COMP_CWORD": "1"}
    asker = process(env=asked)
    out, err = asker.communicate(timeout=60)
    assert (out, err, asker.returncode) == ("plain,explain\nplain,explain-tensor\n", "", 0)


@pytest.mark.parametrize(("columns", "is_cut"), [(None, False), ("60", True)])
def test_tables_in_a_pipe_are_as_wide_as_columns_say(columns, is_cut):
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    out, _ = process(
        "list-nodes", DIGITS, "--stage", "optimized", env=env | ({"COLUMNS": columns} if columns else {})
    ).communicate(timeout=60)
    assert (max(map(len, out.splitlines())) <= 60) == is_cut
    assert ("gelu, classifier.features.2.weight, classifier.features.2.bias " in out) != is_cut


def test_run_prints_its_outputs(call, digits, tmp_path):
    _, out, _ = call("run", DIGITS, "--input", digits[0], "--json")
    (row,) = json.loads(out)
    assert row["shape"] == [360, 10] and row["mean"] == pytest.approx(0.1) and 0 < row["min"] < row["max"] < 1
    _, out, _ = call("run", DIGITS, "--input", digits[0], "--output", tmp_path / "y.npy")
    assert out == f"{tmp_path}/y.npy: probabilities float32[360, 10]\n"


def test_warnings_are_one_line(tmp_path):
    for file in (DATA.parent / "models" / "tiny-lm").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 50256}')
    out, err = process("generate", tmp_path, "a", "--max-tokens", "1").communicate(timeout=60)
    where = f"{tmp_path}/generation_config.json: eos_token_id"
    assert out and err.startswith(f"ingot: warning: {where}: left out, got 50256, expected 0 to ")
    assert len(err.splitlines()) == 1


def test_plan_json_is_the_layout(call):
    _, out, _ = call("inspect", DIGITS, "--stage", "plan", "--dim", "batch=2", "--json", "--full")
    document = json.loads(out)
    memory = document["memory"]
    tensors = [t for t in document["values"] if t.get("region", "").startswith("arena")]
    assert tensors and max(t["offset"] + t["bytes"] for t in tensors) <= memory["arena_bytes"]
    assert memory["lower_bound_bytes"] <= memory["arena_bytes"] <= 1.1 * memory["lower_bound_bytes"]


def test_demo_knows_its_digits(call):
    facts = json.loads(call("demo", "--json")[1])
    assert facts["right"] >= 0.97 * facts["digits"]
    assert facts["nodes_after"] < facts["nodes_before"]
    assert facts["fallback"] == []
    assert facts["arena_bytes"] < facts["activation_bytes"]
    _, out, _ = call("demo")
    assert f"{facts['right']} of {facts['digits']}" in out
    language = facts["language_model"]
    assert all(completion["prompt"] + completion["answer"] in out for completion in language["completions"])
    assert language["prefill_tokens_per_second"] > 0 and language["decode_tokens_per_second"] > 0
    assert list(language["memory"]) == ["weights", "KV", "prefill", "decode"] and all(language["memory"].values())


def test_ops_matrix_covers_every_op(call):
    rows = {row["op"]: row for row in json.loads(call("ops", "--json")[1])}
    assert set(rows) == set(ingot.ir.graph.OPS)
    assert rows["matmul"]["kernels"] and rows["matmul"]["aten"] and rows["matmul"]["onnx"]
    assert rows["reshape"]["without one"] == "a view"


@pytest.mark.parametrize("command", ["explain", "inspect", "list-nodes", "run"])
def test_hostile_names_do_not_reach_the_terminal(call, tmp_path, command):
    nodes = [helper.make_node("Relu", ["x"], [HOSTILE]), helper.make_node("Exp", [HOSTILE], ["y" + HOSTILE])]
    model = save_model(tmp_path / "m.onnx", *nodes, outputs=("y" + HOSTILE,))
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    extra = ("--input", tmp_path / "x.npy") if command == "run" else ()
    code, out, err = call(command, model, *extra)
    assert code == 0
    assert not set("\x1b\u202e\r") & set(out + err)
    if command != "explain":
        assert "[bold]" in out


def test_hostile_names_in_errors(call, tmp_path):
    save_model(tmp_path / "m.onnx", helper.make_node("Unheard" + HOSTILE, ["x"], ["y"]))
    code, out, err = call("explain", tmp_path / "m.onnx")
    assert code in (65, 69) and not set("\x1b\u202e\r") & set(out + err)


def test_dot_is_one_digraph_with_quoted_names(call, tmp_path):
    name = 'a"];evil[label="\\'
    model = save_model(
        tmp_path / "m.onnx", helper.make_node("Relu", ["x"], [name]), helper.make_node("Exp", [name], ["y"])
    )
    code, out, _ = call("dot", model)
    assert code == 0 and out.startswith("digraph ") and out.rstrip().endswith("}")
    assert quoted(name) == '"a\\"];evil[label=\\"\\\\"'
    assert 'relu\\na\\"];evil[label=\\"\\\\"' in out
    code, silent, _ = call("dot", model, "-o", tmp_path / "m.dot")
    assert (code, silent) == (0, "") and (tmp_path / "m.dot").read_text() == out
    assert call("dot", model, "-o", tmp_path / "m.json", "--json")[:2] == (0, "")
    assert json.loads((tmp_path / "m.json").read_text())["dot"] == out


def test_a_closed_pipe_is_quiet():
    child = process("ops", "--json")
    child.stdout.close()
    child.wait()
    assert (child.returncode, child.stderr.read()) == (0, "")


def test_an_interrupt_ends_with_130():
    environment = os.environ | {"INGOT_DEBUG": "2", "PYTHONPATH": ":".join(sys.path)}
    child = process("bench", DIGITS, "--seconds", "600", env=environment)
    child.stderr.readline()  # the first run was made
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    assert child.returncode == 130 and err.rstrip().endswith("interrupted")


def test_a_file_is_whole_or_absent(tmp_path):
    with pytest.raises(ZeroDivisionError), written(tmp_path / "y.npy") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain", "plain"), ("a\x1bb", "a\\x1bb"), ("a\u202eb", "a\\u202eb"), ("a\nb", "a\nb"), ("é漢", "é漢")],
)
def test_printable(text, expected):
    assert printable(text) == expected


def test_a_table_that_fits_equals_that_of_rich(capsys):
    """But for spaces at the ends of lines."""
    columns = ["name", "bytes", "日"]
    rows = [["x", 7, "[bold]é"], ["f32[2, 3]", 1234567, ""], ["東京", "", "\x1b[31m"]]
    print_table(columns, rows, right=["bytes"])
    plain = capsys.readouterr().out.splitlines()
    _print_folded_table(columns, [[printable(str(cell)) for cell in row] for row in rows], ["bytes"], [])
    assert plain == [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_units():
    assert [human_bytes(n) for n in (0, 1023, 1024, 1536, 200 * 1024, 3 << 30)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "200 KiB", "3.0 GiB",
    ]  # fmt: skip
    assert [human_time(s) for s in (1.5e-6, 0.0123, 2.0)] == ["1.5 us", "12.3 ms", "2 s"]


def test_ops_in_a_pipe_are_a_line_each(call, monkeypatch) -> None:
    rows = json.loads(call("ops", "--json")[1])
    for columns, width in (("", 80), ("120", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        head, *lines = call("ops")[1].splitlines()
        assert head.split() == ["op", "aten", "onnx", "without", "one", "to", "onnx", "kernels"]
        assert len(lines) == len(rows) and max(map(len, lines)) <= width
        for row, line in zip(rows, lines, strict=True):
            *_, kernels = re.split(r"  +", line)
            names, _, more = kernels.partition(" +")
            shown = [] if kernels == "-" or kernels.isdigit() else names.split(", ")
            left = int(kernels if kernels.isdigit() else more or 0)
            assert line.split()[0] == row["op"] and line == line.rstrip() and "…" not in line
            assert shown == row["kernels"][: len(shown)] and len(shown) + left == len(row["kernels"])


@pytest.mark.parametrize(("pattern", "names"), [("conv*", ["conv", "conv_"]), ("*pool", ["_pool"]), ("CONV", ["conv"])])
def test_ops_takes_a_pattern(call, pattern: str, names: list[str]) -> None:
    rows = json.loads(call("ops", pattern, "--json")[1])
    _, *lines = call("ops", pattern)[1].splitlines()
    assert [row["op"] for row in rows] == [line.split()[0] for line in lines]
    assert 1 < len(rows) < 20 and all(any(name in row["op"] for name in names) for row in rows)


def test_ops_of_one_name_has_all_its_kernels(call) -> None:
    (row,) = json.loads(call("ops", "matmul", "--json")[1])
    assert row["op"] == "matmul" and len(row["kernels"]) > 100
    printed = call("ops", "matmul")[1].replace(",", " ").split()
    assert set(row["kernels"]) <= set(printed)
    code, _, err = call("ops", "no_such_op")
    assert code == 65 and "nothing fits, got 'no_such_op'" in err
    found = json.loads(call("ops", "--foreign", "conv", "--json")[1])
    assert "Conv" in found["onnx"] and all("conv" in name.lower() for names in found.values() for name in names)


def in_a_terminal(*arguments: str, columns: int) -> str:
    """What a command prints on a terminal."""
    reader, writer = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "PYTHONPATH": ":".join(sys.path), "TERM": "xterm"}
    command = [sys.executable, "-m", "ingot", *arguments]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL, env=environment) as child:
        os.close(writer)
        parts = []
        with contextlib.suppress(OSError):  # Linux's way to say that nobody writes any more
            while part := os.read(reader, 1 << 16):
                parts.append(part)
    os.close(reader)
    assert child.returncode == 0
    return re.sub("\x1b\\[[0-9;]*m", "", b"".join(parts).decode())


def test_ops_fit_a_terminal(monkeypatch) -> None:
    """With the rule of a table, and no line that is folded."""
    shown = in_a_terminal("ops", "max*", columns=70)
    assert "─" in shown and max(map(len, shown.splitlines())) <= 70 and "max_pool " in shown


def test_run_on_random_inputs(call, tmp_path) -> None:
    code, out, _ = call("run", DIGITS, "--random", "--seed", "3", "--output", tmp_path / "y.npy")
    assert code == 0 and "random input image: float32[1, 1, 8, 8], seed 3" in out
    first = np.load(tmp_path / "y.npy")
    call("run", DIGITS, "--random", "--seed", "3", "--output", tmp_path / "y.npy")
    assert np.array_equal(first, np.load(tmp_path / "y.npy"))
    call("run", DIGITS, "--random", "--output", tmp_path / "y.npy")
    assert not np.array_equal(first, np.load(tmp_path / "y.npy"))
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8), np.float32))
    code, out, _ = call("run", DIGITS, "--random", "--input", tmp_path / "x.npy")
    assert code == 0 and "random input" not in out and "[2, 10]" in out
    code, _, err = call("run", DIGITS)
    assert code == 2 and "use --random for random arrays" in err
    code, _, err = call("run", DIGITS, "--seed", "3")
    assert code == 2 and "--seed: got no --random" in err

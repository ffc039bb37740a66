"""Run the examples of docs/emit-c.md unchanged."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ingot

ROOT = Path(__file__).parents[2]
DATA = Path(ingot.__file__).parent / "data"


def shown(language: str, heading: str = "") -> str:
    """The first block of a language behind a heading."""
    _, _, text = (ROOT / "docs" / "emit-c.md").read_text().partition(f"\n{heading}\n")
    block, *_ = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(block)


def wrapped(block: str, parameters: str) -> str:
    """Statements that are shown behind an #include, as a function `shown`."""
    included, _, statements = block.partition("\n\n")
    return f"{included}\nvoid shown({parameters}) {{\n{statements}}}\n"


def command(words: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A folder in which the commands have been run, and the model's result for the image in it."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copy(DATA / "digits.onnx", folder)
    with np.load(DATA / "digits.npz", allow_pickle=False) as held_out:
        image = held_out["images"][:1, None].astype(np.float32)
    np.save(folder / "digit.npy", image)
    (folder / "ingot").write_text(f"#!{sys.executable}\nimport ingot.cli\ningot.cli.main()\n")
    (folder / "ingot").chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": ":".join(sys.path), "MAKEFLAGS": "CFLAGS=-O0"}
    command(["sh", "-ec", shown("sh")], folder, **path)
    session = ingot.InferenceSession(str(DATA / "digits.onnx"), dims={"batch": 1})
    (expected,) = session.run(None, {"image": image})
    assert np.array_equal(np.load(folder / "answer.npy"), expected)
    return folder, expected


def test_c(digits: tuple[Path, np.ndarray]) -> None:
    folder, _ = digits
    (folder / "program.c").write_text(shown("c"))
    command(["cc", "-Wall", "-Wextra", "-Werror", "-Iout", "program.c", "out/digits.o", "-lm", "-o", "program"], folder)
    assert 0 <= float(command(["./program"], folder)) <= 1


def test_cpp(digits: tuple[Path, np.ndarray]) -> None:
    folder, _ = digits
    (folder / "program.cpp").write_text(shown("cpp"))
    strict = ["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command(["c++", *strict, "-Iout", "program.cpp", "out/libdigits.a", "-o", "cpp"], folder)
    assert 0 <= float(command(["./cpp"], folder)) <= 1


def test_cmake(digits: tuple[Path, np.ndarray]) -> None:
    folder, _ = digits
    cmake, ctest = (str(Path(sys.executable).with_name(tool)) for tool in ("cmake", "ctest"))
    command([cmake, "-S", "out", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug"], folder)
    command([cmake, "--build", "build"], folder)
    assert "100% tests passed" in command([ctest], folder / "build")


def test_python(digits: tuple[Path, np.ndarray]) -> None:
    folder, expected = digits
    (folder / "program.py").write_text(shown("python"))
    assert int(command([sys.executable, "program.py"], folder)) == expected.argmax()


def test_rust(digits: tuple[Path, np.ndarray]) -> None:
    """Where there is a compiler, it runs; everywhere, it declares what the header does."""
    folder, _ = digits
    text, header = shown("rust"), (folder / "out" / "digits.h").read_text()
    for function, arguments in re.findall(r"fn (digits_\w+)\((.*?)\)", text):
        (declared,) = re.findall(rf"^\w[^;/]*?\b{function}\((.*?)\);", header, re.DOTALL | re.MULTILINE)
        names = re.findall(r"(\w+)(?:,|$)", declared.replace("void", ""))
        assert re.findall(r"(\w+):", arguments) == names
    if shutil.which("rustc"):
        (folder / "main.rs").write_text(text)
        command(["rustc", "main.rs", "-L", "out", "-l", "static=digits"], folder)
        assert 0 <= float(command(["./main"], folder)) <= 1


def test_cargo(digits: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    """A package whose build script finds the library; without Cargo, the names in the script are those of files."""
    folder, _ = digits
    script = shown(
        "rust",
        "A Cargo package finds the library by `build.rs`; in this example the folder `out` is next to `Cargo.toml`:",
    )
    assert 'rustc-link-lib=static=digits"' in script and (folder / "out" / "libdigits.a").exists()
    if shutil.which("cargo"):
        (tmp_path / "src").mkdir()
        (tmp_path / "out").symlink_to(folder / "out")
        (tmp_path / "src" / "main.rs").write_text(shown("rust"))
        (tmp_path / "build.rs").write_text(script)
        (tmp_path / "Cargo.toml").write_text('[package]\nname = "reads"\nversion = "0.1.0"\nedition = "2021"\n')
        assert 0 <= float(command(["cargo", "run", "--quiet", "--offline"], tmp_path)) <= 1


DEVICE = """\
#include <stdio.h>
int main(void) {{
  const float image[64] = {{{image}}};
  float probabilities[10];
  shown(image, probabilities);
  for (int i = 0; i < 10; i++) printf("%a\\n", (double)probabilities[i]);
}}
"""


def test_what_a_microcontroller_runs(digits: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    """On this machine, with the bits of a session."""
    folder, expected = digits
    words = ["--dim", "batch=1", "--prefix", "digits", "--freestanding", "-o", str(tmp_path)]
    command([str(folder / "ingot"), "emit-c", "digits.onnx", *words], folder, PYTHONPATH=":".join(sys.path))
    text = wrapped(shown("c", "### Microcontroller"), "const float *image, float *probabilities")
    image = ", ".join(map(str, np.load(folder / "digit.npy").reshape(-1).tolist()))
    (tmp_path / "program.c").write_text(text + DEVICE.format(image=image))
    strict = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-variable"]
    command(["cc", *strict, "program.c", "digits.c", "digits-weights.c", "-lm", "-o", "program"], tmp_path)
    assert [float.fromhex(line) for line in command(["./program"], tmp_path).split()] == expected.reshape(-1).tolist()


def test_what_trains(digits: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    """It calls what the header declares."""
    folder, _ = digits
    words = ["--mode", "train", "--dim", "batch=2", "--prediction", "linear_1", "-o", str(tmp_path)]
    command([str(folder / "ingot"), "emit-c", "digits.onnx", *words], folder, PYTHONPATH=":".join(sys.path))
    parameters = "void *memory, const void *weights, const float *images, const int64_t *labels, float *logits"
    (tmp_path / "program.c").write_text(wrapped(shown("c", "## Training as C"), parameters))
    command(["cc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "program.c"], tmp_path)

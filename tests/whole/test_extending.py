"""The examples of docs/extending.md run unchanged."""

import re
import subprocess
from pathlib import Path

import pytest

from adapters import NAMES
from registered import registering

assert registering

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.mark.usefixtures("registering")
def test_the_page_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == [*["python"] * 4, "c", "python", "cpp", "python", "wgsl", *["python"] * 5]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for kind, block in blocks:
        flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC"]
        if kind == "c":
            Path("twice.c").write_text(block)
            subprocess.run(["cc", "-std=c11", *flags, "twice.c", "-o", "libtwice.so"], check=True)
        elif kind == "cpp":
            Path("bounded.cpp").write_text(block)
            subprocess.run(["c++", "-std=c++11", *flags, "bounded.cpp", "-o", "libbounded.so"], check=True)
        elif kind == "wgsl":
            Path("smeared.wgsl").write_text(block)
        elif NAMES or 'executor="webgpu"' not in block:
            exec(compile(block, str(PAGE), "exec"), names)

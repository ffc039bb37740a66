"""docs/extending.md runs as it stands."""

import re
import subprocess
from pathlib import Path

import pytest

from registered import registering

assert registering

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.mark.usefixtures("registering")
def test_the_page_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python"] * 3 + ["c"] + ["python"] * 5
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for kind, block in blocks:
        if kind == "c":
            Path("twice.c").write_text(block)
            flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
            subprocess.run(["cc", *flags, "twice.c", "-o", "libtwice.so"], check=True)
        else:
            exec(compile(block, str(PAGE), "exec"), names)

"""Random ONNX models agree with ONNX Runtime, or with ONNX's reference; `make soak` runs many more."""

import subprocess
import sys

from places import KIT

COUNT = 200


def test_random_models() -> None:
    script = str(KIT / "onnx_differential.py")
    command = [sys.executable, script, "--count", str(COUNT), "--jobs", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{COUNT} models" in result.stdout

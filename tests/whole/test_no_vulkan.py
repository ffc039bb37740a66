"""The tests themselves, on a machine that has drivers of Vulkan, as Chromium brings one, and no loader for them."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = [str(TESTS / "run" / "test_webgpu_saved.py"), str(TESTS / "run" / "test_webgpu_features.py")]


def test_one_reason_for_all_that_is_skipped(tmp_path: Path) -> None:
    """No test fails there, and one skip gives the reason for all that need an adapter."""
    (tmp_path / "libvulkan.so.1").write_text("no library")
    own = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    own |= {"LD_LIBRARY_PATH": str(tmp_path)}
    words = [*FILES, "-q", "-rs", "-p", "no:cacheprovider", "-m", ""]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], env=own, capture_output=True, text=True, cwd=TESTS)
    assert done.returncode == 0, done.stdout
    reasons = re.findall(r"^SKIPPED \[1\] (.*)$", done.stdout, re.MULTILINE)
    assert done.stdout.count("SKIPPED") == len(reasons) == 1, done.stdout
    assert "no driver of Vulkan in software, or no loader for it" in reasons[0], done.stdout

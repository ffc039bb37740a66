"""The adapters of WebGPU in software that a machine has: Mesa's lavapipe, and the SwiftShader that Chromium brings.

It is to be imported before wgpu looks for drivers: one that is no part of the system has to be named by then.
"""

import os
from pathlib import Path

import pytest

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
LAVAPIPE_NAME, SWIFTSHADER_NAME = "llvmpipe", "SwiftShader"

if SWIFTSHADER.exists():
    os.environ["VK_ADD_DRIVER_FILES"] = str(SWIFTSHADER)
NAMES = [LAVAPIPE_NAME, *([SWIFTSHADER_NAME] if SWIFTSHADER.exists() else [])]
# A test that is quick enough to run on each.
quick_on_each = pytest.mark.parametrize("adapter", NAMES, indirect=True)


@pytest.fixture(params=[NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has a test run on each adapter; on all but the first it is slow."""
    monkeypatch.setenv("INGOT_WGPU_ADAPTER", request.param)
    return str(request.param)

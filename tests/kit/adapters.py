"""The adapters of WebGPU in software that a machine has: Mesa's lavapipe, and the SwiftShader that Chromium brings.

It is to be imported before wgpu looks for drivers: one that is no part of the system has to be named by then.
"""

import os
from pathlib import Path

import pytest

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
SWIFTSHADER_NAME = "SwiftShader"
NAMES = ["llvmpipe"] if list(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")) else []

if SWIFTSHADER.exists():
    NAMES.append(SWIFTSHADER_NAME)
    os.environ["VK_ADD_DRIVER_FILES"] = str(SWIFTSHADER)
# Ops of which the lanes of a workgroup make something together.
BY_SUBGROUPS = {
    "append_keys", "attention", "cached_attention", "group_norm", "layer_norm", "log_softmax", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "rms_norm", "softmax",
}  # fmt: skip
# A test that is quick enough to run on each.
quick_on_each = pytest.mark.parametrize("adapter", NAMES or [""], indirect=True)


@pytest.fixture(params=[*(NAMES or [""])[:1], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has a test run on each adapter; on all but the first it is slow. CI has both."""
    if not request.param and not os.environ.get("CI"):
        pytest.skip("no driver of Vulkan in software is installed: WebGPU is not tried; .ci/run installs one")
    monkeypatch.setenv("INGOT_WGPU_ADAPTER", request.param)
    return str(request.param)

"""The adapters of WebGPU in software that a machine has: Mesa's lavapipe, and the SwiftShader that Chromium brings.

It is to be imported before wgpu looks for drivers: one that is no part of the system has to be named by then.
"""

import os
from pathlib import Path

import pytest

from ingot.errors import ResourceError
from ingot.run.device import adapters

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
SWIFTSHADER_NAME = "SwiftShader"

if SWIFTSHADER.exists():
    os.environ["VK_ADD_DRIVER_FILES"] = str(SWIFTSHADER)


def _found() -> list[str]:
    """The names that an adapter has: the file of a driver does not say that there is a loader, or that it works."""
    try:
        there = " ".join(adapter.name for adapter in adapters())
    except ResourceError:
        return []
    return [name for name in ("llvmpipe", SWIFTSHADER_NAME) if name in there]


NAMES = _found()
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
        pytest.skip("no driver of Vulkan in software, or no loader for it: WebGPU is not tried; .ci/run installs both")
    monkeypatch.setenv("INGOT_WGPU_ADAPTER", request.param)
    return str(request.param)

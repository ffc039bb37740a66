"""Every INGOT_* knob, declared once. `ingot knobs` prints this table; no other module reads the environment."""

import os
from dataclasses import dataclass

from ingot.support import abi


@dataclass(frozen=True, slots=True)
class Knob:
    """An environment variable: its type is the type of its default."""

    name: str
    default: int | str
    help: str
    choices: tuple[str, ...] = ()
    is_folder: bool = False  # or a keyword: one of _YES reads as "on", one of _NO as empty


_YES, _NO = ("on", "yes", "true", "1"), ("off", "no", "false", "0")


# Sets of kernels, of one kind of processor from slow to fast.
ISAS = tuple(name for name, each in abi.instruction_sets().items() if each.kind != "WITHIN")

KNOBS = {
    knob.name: knob
    for knob in (
        Knob("INGOT_DEBUG", 0, "1 chosen kernels, 2 time per step, 3 pass diffs, 4 emitted source, 5 tensor checksums"),
        Knob(
            "INGOT_CHECK", 0, "1 validate at stage borders, 2 and after each pass, 3 canaries, NaN-poison, guard pages"
        ),
        Knob(
            "INGOT_ISA",
            "",
            "force a kernel set; empty means the best of this CPU",
            ("", *ISAS),
        ),
        Knob("INGOT_AMX", 1, "0: products of integers run without AMX; the bits are the same"),
        Knob("INGOT_THREADS", 0, "threads of a run; 0 means from affinity and the cgroup quota"),
        Knob(
            "INGOT_CACHE",
            "",
            "cache of compiled ONNX files: on (yes, true, 1) for the user's cache folder, or a folder with a / in it or"
            " a leading . or ~; empty or off (no, false, 0) for none",
            is_folder=True,
        ),
        Knob("INGOT_WGPU_ADAPTER", "", "part of the name of the adapter that webgpu uses; empty means the first"),
        Knob(
            "INGOT_WGPU_BINDING_BYTES",
            128 << 20,
            "bytes of a memory region in webgpu programs; every device can bind the default",
        ),
        Knob(
            "INGOT_WGPU_FEATURES",
            "",
            "optional device features that webgpu programs may use, such as subgroups,shader-f16; empty means none",
        ),
        Knob("INGOT_LIBRARY", "", "path of another build of the native library (sanitizer builds use it)"),
    )
}


def knob(name: str) -> int | str:
    """Return the value of a declared knob. Raises ValueError when the environment has an invalid value."""
    declared = KNOBS[name]
    text = os.environ.get(name, "")
    if not text:
        return declared.default
    if isinstance(declared.default, int):
        if not text.isdigit():
            raise ValueError(f"{name}: not a number, got {text!r}, expected digits")
        return int(text)
    if declared.choices and text not in declared.choices:
        raise ValueError(f"{name}: unknown value, got {text!r}, expected one of {', '.join(declared.choices[1:])}")
    return _folder(name, text) if declared.is_folder else text


def _folder(name: str, text: str) -> str:
    if text.lower() in _YES:
        return "on"
    if text.lower() in _NO:
        return ""
    if os.sep not in text and not text.startswith((".", "~")):
        raise ValueError(f"{name}: unknown value, got {text!r}, expected on, off or a folder such as ./{text}")
    return os.path.expanduser(text)


def debug() -> int:
    """Return the debug level, 0 to 5."""
    return int(knob("INGOT_DEBUG"))


def check() -> int:
    """Return the check level, 0 to 3."""
    return int(knob("INGOT_CHECK"))

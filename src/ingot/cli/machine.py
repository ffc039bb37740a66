"""`ingot doctor`, `ingot knobs` and `ingot cache`: facts on the machine, the installation and the settings."""

from __future__ import annotations

import os
import platform
import time

import click

from ingot import __version__
from ingot.cli.model import as_json
from ingot.cli.terminal import human_bytes, print_facts, print_json, print_table, print_text
from ingot.errors import ResourceError
from ingot.support.config import KNOBS, knob

DEPENDENCIES = ("numpy", "onnx", "onnx-ir", "cffi", "torch", "transformers", "onnxruntime")


@click.command()
@as_json
def knobs(as_json: bool) -> None:
    """List the INGOT_* environment variables and their values."""
    rows = [
        {"name": k.name, "value": knob(k.name), "default": k.default, "set": k.name in os.environ, "help": k.help}
        for k in KNOBS.values()
    ]
    if as_json:
        print_json(rows)
        return
    print_table(["knob", "value", "meaning"], ([r["name"], r["value"], r["help"]] for r in rows))


@click.command()
@as_json
def doctor(as_json: bool) -> None:
    """Print facts on this machine and installation.

    Prints CPU, instruction set, number of threads with its reason, native library, WebGPU adapters and versions.
    """
    from ingot.run.library import load
    from ingot.session.compile_cache import folder_of
    from ingot.support.machine import cpu_name, memory_bytes, threads

    facts: dict[str, object] = {
        "ingot": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "memory": memory_bytes(),
        "threads": threads(),
        "threads_why": reason_for_threads(),
    }
    library_error: ResourceError | None = None
    try:
        library = load()
        facts |= {"library": str(library.path), "kernels": len(library.kernels)}
        facts |= {"isas": list(library.isas()), "isa": library.isa(), "amx": library.amx}
    except ResourceError as error:
        library_error = error
        facts["library"] = str(error)
    facts["adapters"] = adapters_found()
    facts["cache"] = str(folder_of(None) or "none; INGOT_CACHE is empty")
    facts["versions"] = {name: version_of(name) for name in DEPENDENCIES}
    if as_json:
        print_json(facts)
    else:
        print_facts([row for name, value in facts.items() for row in rows_of(name.replace("_", " "), value)])
    if library_error is not None:
        raise library_error


@click.command()
@click.option("--clear", is_flag=True, help="Remove every entry.")
@as_json
def cache(clear: bool, as_json: bool) -> None:
    """Show or clear the compiled models in INGOT_CACHE."""
    from ingot.session import compile_cache

    root = compile_cache.folder_of(None) or compile_cache.folder_of(True)
    assert root is not None
    if clear:
        compile_cache.clear(root)
    rows = compile_cache.entries(root)
    if as_json:
        print_json({"folder": str(root), "used": compile_cache.folder_of(None) is not None, "entries": rows})
        return
    state = "" if compile_cache.folder_of(None) else ", not in use: INGOT_CACHE is empty"
    print_text(f"{root}{state}")
    days = ((r["model"], human_bytes(int(str(r["bytes"]))), f"{age_days(r['used']):.1f}") for r in rows)
    print_table(["model", "size", "days unused"], days)


def adapters_found() -> list[str]:
    """Return a line for each WebGPU adapter with its limits and features, or the reason why there is none."""
    from ingot.run.device import adapters

    try:
        found = adapters()
    except ResourceError as error:
        return [str(error)]
    lines = []
    for each in found:
        limits = ", ".join(f"{name} {n}" for name, n in each.limits.items())
        features = ", ".join(each.features) or "no features"
        lines.append(f"{each.name} ({each.kind}, {each.backend}; {limits}; {features})")
    return lines or ["webgpu: no adapter"]


def age_days(seconds: object) -> float:
    """Return the days since a time; the time is in seconds since 1970."""
    return (time.time() - float(str(seconds))) / 86400


def reason_for_threads() -> str:
    """Return why a run uses this number of threads."""
    from ingot.support.machine import usable_threads

    affinity = len(os.sched_getaffinity(0))
    if knob("INGOT_THREADS"):
        return "INGOT_THREADS is set"
    if usable_threads() < affinity:
        return f"the cgroup quota allows {usable_threads()} of {affinity} CPUs"
    return f"{affinity} of {os.cpu_count()} CPUs are in the affinity mask"


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def rows_of(name: str, value: object) -> list[tuple[str, str]]:
    """Return a fact as rows of (label, text)."""
    if isinstance(value, list) and name == "adapters":
        return [("" if number else name, line) for number, line in enumerate(value)]
    if isinstance(value, dict):
        return [(name, ", ".join(f"{each} {version}" for each, version in value.items() if version is not None))]
    if isinstance(value, list):
        return [(name, ", ".join(map(str, value)))]
    return [(name, human_bytes(value) if name == "memory" and isinstance(value, int) else str(value))]


COMMANDS = [cache, doctor, knobs]

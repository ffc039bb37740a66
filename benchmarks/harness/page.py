"""The options that questions share, and the page that each reports."""

from __future__ import annotations

import argparse
import importlib
import platform
import re
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness import packages
from benchmarks.harness.report import machine
from ingot.support.columns import counted

THREADS = 2
_BEGAN = time.monotonic()  # of the process


def options(
    package: str, *, rounds: int = 0, threads: int = 0, engines: Iterable[str] = (), only: bool = False
) -> argparse.ArgumentParser:
    """A parser with --write and those options that are given a default, or `only`.

    package: of the question, whose docstring is the help.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {package.rpartition('.')[2]}",
        description=about(package),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help="also write the page in the folder of the question")
    if only:
        parser.add_argument("--only", default="", metavar="REGEX", help="measure those whose name it matches")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, metavar="N", help=f"{rounds} by default")
    if threads:
        parser.add_argument("--threads", type=int, default=threads, metavar="N", help=f"{threads} by default")
    if engines:
        listed = ",".join(engines)
        parser.add_argument("--engines", type=engine_list, default=listed, metavar="A,B", help=f"by default {listed}")
    return parser


def engine_list(text: str) -> list[str]:
    """The engines of `--engines`. Ends the program where one is not installed."""
    engines = text.split(",")
    packages.require(*engines, instead=", and `--engines A,B` names those to measure")
    return engines


def about(package: str) -> str:
    """The docstring of a question: what is asked, and how it is measured."""
    return str(importlib.import_module(package).__doc__).strip()


def chosen(names: Iterable[str], only: str) -> list[str]:
    """The names that a pattern matches."""
    return [name for name in names if re.search(only, name)]


def publish(
    package: str, asked: argparse.Namespace, title: str, engines: Iterable[str], *parts: str, file: str = "results.md"
) -> None:
    """Print a page: its title, where it was measured and of which versions, the question, and parts.

    With --write, write it to a file in the folder of the question.
    """
    name = package.rpartition(".")[2]
    measured = [time.strftime("%Y-%m-%d")]
    measured += [f"{vars(asked)[key]} {key}" for key in ("rounds", "threads") if key in vars(asked)]
    measured.append(counted(round((time.monotonic() - _BEGAN) / 60), "minute"))
    where = f"Written by `python -m benchmarks {name} --write`. {machine()}. Python {platform.python_version()}, "
    where += f"{packages.versions(engines)}. {', '.join(measured)}."
    text = "\n\n".join([f"# {title}", where, about(package), *parts]) + "\n"
    print(text, end="")
    if asked.write:
        (Path(importlib.import_module(package).__path__[0]) / file).write_text(text)

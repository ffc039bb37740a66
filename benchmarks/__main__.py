"""The one entry: `python -m benchmarks QUESTION [options]`; `--help` lists the questions."""

from __future__ import annotations

import argparse
import ast
import runpy
import sys

from benchmarks import ROOT


def questions() -> dict[str, str]:
    """Return each question by the name of its folder: the first line of the package's docstring."""
    found = {}
    for path in sorted((ROOT / "benchmarks").glob("*/__main__.py")):
        words = ast.get_docstring(ast.parse(path.with_name("__init__.py").read_text()))
        assert words, f"{path.parent.name} asks nothing"
        found[path.parent.name] = words.splitlines()[0]
    return found


def main() -> None:
    """Run a question's program with the rest of the command line."""
    known = questions()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Ingot, mostly compared with other engines. benchmarks/README.md lists the durations.",
        epilog="questions:\n" + "\n".join(f"  {name:<17}{question}" for name, question in known.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("question", choices=known, metavar="QUESTION", help="a name of the list below")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of the question; QUESTION --help lists them")
    asked = parser.parse_args()
    sys.argv[1:] = asked.options
    runpy.run_module(f"benchmarks.{asked.question}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""The files around an emitted model, as jinja2 templates: programs, and the build by make, CMake and pkg-config.

`Makefile` and `CMakeLists.txt` are the same in every folder: they include the rules of each model in it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ingot
from ingot.emit.interface import Interface, wrapped

if TYPE_CHECKING:
    import jinja2

SHARED = ("Makefile", "CMakeLists.txt")


@dataclass(frozen=True, slots=True)
class Project:
    """The build of a model.

    sources: C files of the library; headers: that they include, of which `public` are installed; programs: the C files
    of each program besides the library, by name; data: files that a user's program reads; check: arguments of the first
    program that run the test vector, with the folder as `{folder}`; "" for none.
    """

    face: Interface
    sources: Sequence[str]
    headers: Sequence[str]
    public: Sequence[str]
    programs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    data: Sequence[str] = ()
    check: str = ""
    freestanding: bool = False


def project_files(project: Project) -> dict[str, str]:
    """Return the files by name; a freestanding platform has a Makefile only."""
    face = project.face
    templates = {"Makefile": "Makefile", face.file("model.mk"): "model.mk"}
    if not project.freestanding:
        templates |= {"CMakeLists.txt": "CMakeLists.txt", face.file("model.cmake"): "model.cmake"}
        templates |= {f"{face.prefix}.pc": "model.pc"}
    values = {
        "project": project, "mk": face.file("model.mk"), "threads": face.threads > 1, "version": ingot.__version__
    }  # fmt: skip
    return {file: filled(template, face.prefix, **values) for file, template in templates.items()}


def library_sources(face: Interface) -> list[str]:
    """Return the C files of the library."""
    return [f"{face.prefix}.c", *([f"{face.prefix}_pool.c"] if face.threads > 1 else [])]


def library_headers(face: Interface) -> list[str]:
    """Return the headers of the library, installed ones first."""
    names = [f"{face.prefix}.h", f"{face.prefix}_check.h"]
    return [*names, *([f"{face.prefix}_pool.h"] if face.threads > 1 else [])]


def filled(template: str, name: str, **values: Any) -> str:
    """Return a file of an emitted folder: its template with the prefix and other values.

    Values that come from a model are C identifiers, numbers, or texts that C quotes.
    """
    return _environment().get_template(f"{template}.jinja").render(values, name=name, NAME=name.upper())


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # imported on demand: most sessions emit nothing

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"lines": _lines, "objects": _objects, "wrapped": _rows}
    return environment


def _objects(sources: Sequence[str]) -> list[str]:
    return [source.replace(".c", ".o") for source in sources]


def _lines(items: Sequence[str], separator: str = " ") -> str:
    """Return a list of a Makefile or macro, wrapped at LINE columns."""
    return wrapped(items, separator, "  ").lstrip().replace("\n", " \\\n")


def _rows(items: Iterable[str]) -> str:
    """Return the lines of a C initialiser."""
    return wrapped(items, ", ", "  ")

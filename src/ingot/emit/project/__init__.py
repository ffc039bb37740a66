"""The build files of an emitted model: rules for make and CMake, and a pkg-config file.

`Makefile` and `CMakeLists.txt` are the same in every folder: they include the rules of each model in it.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import ingot
from ingot.emit.interface import Interface, wrapped

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
    return {name: _filled(template, project) for name, template in templates.items()}


def library_sources(face: Interface) -> list[str]:
    """Return the C files of the library."""
    return [f"{face.prefix}.c", *([f"{face.prefix}_pool.c"] if face.threads > 1 else [])]


def library_headers(face: Interface) -> list[str]:
    """Return the headers of the library, installed ones first."""
    names = [f"{face.prefix}.h", f"{face.prefix}_check.h"]
    return [*names, *([f"{face.prefix}_pool.h"] if face.threads > 1 else [])]


def _filled(template: str, project: Project) -> str:
    """Render a template with a project's names, which are all identifiers with file extensions."""
    import jinja2

    folder = importlib.resources.files("ingot.emit.project")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"lines": _lines, "objects": _objects}
    face = project.face
    return environment.from_string((folder / f"{template}.jinja").read_text("utf-8")).render(
        project=project, name=face.prefix, mk=face.file("model.mk"), threads=face.threads > 1, version=ingot.__version__
    )


def _objects(sources: Sequence[str]) -> list[str]:
    return [source.replace(".c", ".o") for source in sources]


def _lines(files: Sequence[str]) -> str:
    """Return a list of a Makefile, wrapped at LINE columns."""
    return wrapped(files, " ", "  ").lstrip().replace("\n", " \\\n")

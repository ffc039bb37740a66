"""The files that build an emitted model: rules for make and CMake, and what pkg-config reads.

`Makefile` and `CMakeLists.txt` are the same in every folder: they include the rules of each model that lies there.
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
    """What is built of a model. sources: C files of the library; headers: what they include, of which `public` are
    installed; programs: the C files of each beside the library, by name; data: files that a program of a user reads;
    check: what the first program is told to run the test vector, with the folder of files as `{place}`; "" for none.
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
    """The files by name; without a system there is a Makefile alone."""
    face = project.face
    templates = {"Makefile": "Makefile", face.file("model.mk"): "model.mk"}
    if not project.freestanding:
        templates |= {"CMakeLists.txt": "CMakeLists.txt", face.file("model.cmake"): "model.cmake"}
        templates |= {f"{face.prefix}.pc": "model.pc"}
    return {name: _filled(template, project) for name, template in templates.items()}


def library_sources(face: Interface) -> list[str]:
    """The C files of a model itself."""
    return [f"{face.prefix}.c", *([f"{face.prefix}_pool.c"] if face.threads > 1 else [])]


def library_headers(face: Interface) -> list[str]:
    """The headers of a model itself, those that are installed first."""
    names = [f"{face.prefix}.h", f"{face.prefix}_check.h"]
    return [*names, *([f"{face.prefix}_pool.h"] if face.threads > 1 else [])]


def _filled(template: str, project: Project) -> str:
    """A template with a project's names, of which all are identifiers with endings."""
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
    """A list in a Makefile, in lines of a readable length."""
    return wrapped(files, " ", "  ").lstrip().replace("\n", " \\\n")

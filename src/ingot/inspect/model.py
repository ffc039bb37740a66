"""A model of any format, opened for inspection: its graph as loaded and after the passes, and its program.

Each stage is computed on first use. No weights are packed; the passes read only small weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from ingot.compile import Compiled, Mode, compile_at_most, compile_mode
from ingot.errors import InputError, bounded
from ingot.inspect.provenance import became_of
from ingot.inspect.view import View, view_of_graph, view_of_program
from ingot.ir.dim import AtMost, Limit
from ingot.ir.graph import Graph
from ingot.load import ShapeDependentModel, is_saved_program, load_headers
from ingot.load.gguf import GgufModel, is_gguf
from ingot.load.gguf.metadata import Entry
from ingot.load.hf import Folder, LanguageModel, kind_of, load_language_model, read_folder
from ingot.load.language import read_model
from ingot.lower import Target
from ingot.passes import optimize
from ingot.passes.precision import F32, STEP_PRECISIONS, Precision, precision_of
from ingot.run.library import load
from ingot.run.store import WeightStore
from ingot.session.dynamic_shapes import MAX_BINDINGS, GraphPerShape, bindings_of, exact_and_limits, unbound
from ingot.session.reports import BindingReport, Explanation
from ingot.session.saved_program import read_headers
from ingot.support.machine import usable_threads


class InspectedModel:
    """A model at a path, of any format that sessions and language models accept.

    format: "onnx", "pt2", "folder", "gguf" or "program". facts: the model's own metadata as plain data. absent: the
    reasons why data of weights is missing, by name. unused: the bytes of weights of the file that nothing reads, by
    name. dims: as for `InferenceSession`. precision: None for the default of
    a session or language model. mode: of a language model, "prefill" by default; "train" is a training step of any
    model, with cross entropy and AdamW, for a language model over `batch` windows of `length` tokens. threads: 0 means
    as many as the machine allows. assumed: the value of dims without one, in programs; None makes them an error.
    executor: of the programs. template: see `Folder`. sequences: of a language model, the
    number that its cache holds; mode "batch" computes a row of each of several.

    Raises FileNotFoundError, LoadError, UnsupportedError or LimitError for a model that cannot be loaded, InputError
    for options that do not apply to the model.
    """

    def __init__(
        self,
        path: str,
        *,
        dims: Mapping[str, int | Limit] | None = None,
        precision: str | None = None,
        threads: int = 0,
        mode: str | None = None,
        assumed: int | None = None,
        executor: str = "native",
        template: str | None = None,
        sequences: int = 1,
    ):
        self.path, self._executor, self._template = path, executor, template
        self._assumed, self._sequences = assumed, sequences
        self._dims, self._precision, self._threads, self._mode = dict(dims or {}), precision, threads, mode
        self.absent: Mapping[str, str] = {}
        self.unused: Mapping[str, int] = {}
        self.facts: Mapping[str, Any] = {}
        self.language: LanguageModel | None = None
        self._file_bytes = 0  # set if the loader reports its files
        with bounded(path):
            self.folder = _language_folder(path, template)
            if mode == "train":
                self._open_step()
                return
            if self.folder is not None and kind_of(self.folder) == "decoder":
                self._open_language_model(self.folder)
                return
            if mode is not None:
                raise InputError(f"{path}: option mode: no modes, got {mode}, expected a language model")
            self._open_model()

    def _open_language_model(self, folder: Folder) -> None:
        if self._dims:
            raise InputError(f"{self.path}: a language model accepts no --dim, got {', '.join(self._dims)}")
        from ingot.llm.options import Options  # imported late: most models do not need it

        self.format = "gguf" if isinstance(folder, GgufModel) else "folder"
        self.facts = _gguf_facts(folder) if isinstance(folder, GgufModel) else _folder_facts(folder)
        self.options = Options.of(
            folder, context=None, precision=self._precision, threads=self._threads, cache_dtype=None,
            sequences=self._sequences, executor="webgpu" if self._executor == "webgpu" else "native",
        )  # fmt: skip
        self.language = self.options.load(folder, has_windows=True)
        self.loaded = self.language.graph

    def _open_model(self) -> None:
        model: Graph | ShapeDependentModel
        wanted = None if self._precision is None else precision_of(self._precision)
        self.precision: Precision = wanted or F32
        if self.folder is not None:
            self.format, self.facts = "folder", _folder_facts(self.folder)
            model = load_language_model(self.folder, context=None).graph
        elif is_saved_program(self.path):
            model, self.precision = read_headers(self.path)
            if wanted not in (None, self.precision):
                raise InputError(f"option precision: not what was saved, got {wanted}, expected {self.precision.name}")
            self.format, self.facts = "program", {"producer": "ingot", "precision": self.precision.name}
        else:
            found = load_headers(self.path)
            self.format = "pt2" if self.path.endswith(".pt2") else "onnx"
            model, self.facts, self.absent, self.unused = found.graph, found.facts, found.absent, found.unused
            self._file_bytes = sum(found.files[location][_SIZE] for location in found.files)
        exact, self._limits = exact_and_limits(self._dims)
        bindings = bindings_of(model, exact, self._limits, self.precision, None, WeightStore(1))
        if isinstance(bindings, GraphPerShape):
            if self._assumed is None:
                raise unbound(bindings.interface.symbols)
            exact |= dict.fromkeys(bindings.interface.symbols, self._assumed)
            bindings = bindings_of(model, exact, {}, self.precision, None, WeightStore(1))
        self.loaded = bindings.graph
        self._exact = exact

    def _open_step(self) -> None:
        from ingot.training.graph import written_step  # imported late: most inspections do not need it
        from ingot.training.optimizers import AdamW
        from ingot.training.sources import load_for_inspection

        if self._executor != "native":
            raise InputError(f"{self.path}: training needs the native executor, got {self._executor}, expected native")
        name = self._precision or F32.name
        if name not in STEP_PRECISIONS:
            expected = f"one of {', '.join(STEP_PRECISIONS)}"
            raise InputError(f"{self.path}: no precision of training steps, got {name}, expected {expected}")
        self.precision, self._limits, self._exact = precision_of(name), {}, {}
        sizes = {name: size for name, size in self._dims.items() if isinstance(size, int)}
        if len(sizes) < len(self._dims):
            limits = sorted(self._dims)
            raise InputError(f"{self.path}: a training step has no limits of dims, got {limits}, expected exact dims")
        folder = self.folder
        self.format = "onnx" if folder is None else "gguf" if isinstance(folder, GgufModel) else "folder"
        forward, trained = load_for_inspection(self.path, folder, sizes)
        self.loaded = written_step(forward, "cross_entropy", AdamW(lr=1e-3), trained)

    def with_sizes(self, sizes: Mapping[str, int]) -> InspectedModel:
        """Return this model, which is no language model, with other sizes of some dims. Raises as the constructor."""
        return InspectedModel(
            self.path, dims={**self._dims, **sizes}, precision=self._precision, threads=self._threads, mode=self._mode,
            assumed=self._assumed, executor=self._executor, template=self._template,
        )  # fmt: skip

    @cached_property
    def target(self) -> Target:
        """The target of programs: this machine or any WebGPU device. Raises InputError for an unsupported precision."""
        if self.language is not None:
            return self.options.target
        if self._executor == "webgpu":
            from ingot.lower.wgpu import webgpu_target

            return webgpu_target(self.precision)
        library = load()
        isa = library.isa()
        rounded = self.precision.rounded(library.dots(isa))
        return Target(isa, self._threads or usable_threads(), rounded=rounded, split_sums=self.precision.split_sums)

    @cached_property
    def _passed(self) -> Graph:
        """The graph after the passes, with its symbols."""
        graph = self.loaded.copy()
        if self.is_step:
            from ingot.training.graph import finished

            with bounded(self.path):
                return finished(graph, self.precision)
        if self.format != "program":  # the passes of a saved program have run
            with bounded(self.path):
                optimize(graph)
        return graph

    @cached_property
    def _mode_of_program(self) -> Mode:
        """The mode with the values of symbols. Raises InputError for symbols without a value."""
        if self.language is not None:
            from ingot.llm.engine import mode_of

            return mode_of(self._mode or "prefill", self.language.context, self._sequences)
        if self._free and self._assumed is None:
            raise unbound(self._free)
        if self.is_step:
            return Mode("train")  # the graph contains the rounding of its products
        sizes: dict[str, int] = {name: AtMost(limit, name) for name, limit in self._limits.items()}
        return Mode(sizes=sizes | self.assumed, precision=self.precision)

    @property
    def _free(self) -> list[str]:
        return [symbol for symbol in self._passed.symbols if symbol not in self._limits]

    @property
    def assumed(self) -> dict[str, int]:
        """The dims without a given value, with their assumed value."""
        if self.language is not None or self._assumed is None:
            return {}
        bound = [name for name in self._exact if name not in self._dims]
        return dict.fromkeys([*bound, *self._free], self._assumed)

    @property
    def has_program(self) -> bool:
        """Whether all dims have values."""
        return self.language is not None or self._assumed is not None or not self._free

    @cached_property
    def optimized(self) -> Graph:
        """The graph after the passes; for a language model, of its mode."""
        return self._passed if self.language is None else self._mode_of_program.graph(self._passed)

    @cached_property
    def compiled(self) -> Compiled:
        """The program. Raises InputError for dims without values, and the errors of compilation."""
        return self._compiled_for(self.target)

    @property
    def uninterrupted(self) -> Compiled:
        """The program with runs that end between steps only, as emitted C has it. Raises the errors of `compiled`."""
        if self.target.chunk_nanoseconds is None:
            return self.compiled
        return self._compiled_for(replace(self.target, chunk_nanoseconds=None))

    def _compiled_for(self, target: Target) -> Compiled:
        mode = self._mode_of_program
        is_planned = self.language is None and bool(self._limits)
        with bounded(self.path):
            return (compile_at_most if is_planned else compile_mode)(self._passed, target, mode)

    def view(self, stage: str) -> View:
        """Return the model at a stage, one of STAGES. The last two stages raise the errors of `compiled`."""
        if stage == "graph":
            return view_of_graph(self.loaded)
        if stage == "optimized":
            return view_of_graph(self.optimized)
        return view_of_program(self.compiled, is_planned=stage == "plan")

    def explain(self, node: str | None) -> Explanation:
        """Return which kernels were chosen, and why; for a node of the loaded graph, those of the nodes it became.

        Raises InputError for an unknown node, and the errors of `compiled`.
        """
        loaded = None if node is None else self.loaded.values.get(node)
        if loaded is None or loaded.producer is None or loaded.name in self.optimized.values:
            return self._explain(node)
        found = [self._explain(row["name"]) for row in became_of(self.optimized, self.loaded, loaded.producer)]
        if not found:
            return self._explain(node)
        choices = {choice.node: choice for each in found for choice in each.choices}
        return replace(found[0], choices=tuple(choices.values()), fused=tuple(choices))

    def _explain(self, node: str | None) -> Explanation:
        programs = [segment for segment in self.compiled.segments if segment.native is not None]
        sizes: tuple[str, ...] = ()
        if self.language is None:
            sizes = BindingReport(self._limits, "", "", 0, 0, 1, MAX_BINDINGS, 0, 0).plans()
        return Explanation.of(programs, self.compiled.fallback, sizes, node, self.compiled.external)

    @property
    def is_step(self) -> bool:
        """Whether this is a training step, whose parameters are states."""
        return self._mode == "train"

    @property
    def nbytes(self) -> int:
        """The bytes of the file with its external data, or of all files of the folder."""
        if self._file_bytes:
            return self._file_bytes
        if not os.path.isdir(self.path):
            return os.path.getsize(self.path)
        with os.scandir(self.path) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())


_SIZE = 2  # index of the size in the result of `files.identity`


def _language_folder(path: str, template: str | None) -> Folder | None:
    """Read configuration and headers of a Hugging Face folder or GGUF file; return None for other models."""
    if os.path.isfile(os.path.join(path, "config.json")):
        return read_folder(path, template)
    if is_gguf(path):
        return read_model(path, template)
    if template is not None:
        raise InputError(f"{path}: option template: not a language model, got {template}, expected none")
    return None


def is_language_model(path: str, template: str | None = None) -> bool:
    """Return whether a path is a decoder: a GGUF file, or a folder, of which only config.json and template are read.

    Raises LoadError, UnsupportedError.
    """
    if os.path.isfile(os.path.join(path, "config.json")):
        return kind_of(Folder(path, template)) == "decoder"
    return is_gguf(path)


def _folder_facts(folder: Folder) -> dict[str, Any]:
    config = folder.config
    version = config.get("transformers_version")
    facts: dict[str, Any] = {"producer": f"transformers {version}"} if isinstance(version, str) else {}
    metadata = {key: value for key, value in config.items() if not isinstance(value, dict) and value is not None}
    quantized = config.get("quantization_config")
    if isinstance(quantized, dict):
        facts["quantization"] = {key: value for key, value in quantized.items() if isinstance(value, (str, int, float))}
    return facts | {"metadata": metadata}


_FIRST_ELEMENTS = 4  # elements shown of an array of metadata


def _gguf_facts(model: GgufModel) -> dict[str, Any]:
    file = model.file
    types: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        row = types.setdefault(tensor.type, {"tensors": 0, "bytes": 0})
        row["tensors"] += 1
        row["bytes"] += tensor.nbytes
    metadata = {key: _entry(entry) for key, entry in file.metadata.entries.items()}
    stored = [
        {"name": t.name, "type": t.type, "shape": list(t.shape), "offset": t.offset, "bytes": t.nbytes}
        for t in file.tensors.values()
    ]
    facts = {"gguf_version": file.version, "bits_per_weight": file.bits_per_weight, "types": types}
    return facts | {"metadata": metadata, "tensors": stored}


def _entry(entry: Entry) -> Any:
    """Return a value of metadata; for an array its type, length and first elements."""
    if not entry.is_array:
        return _plain(entry.value)
    first = [_plain(each) for each in entry.value[:_FIRST_ELEMENTS]]
    return {"type": entry.type, "count": len(entry.value), "first": first}


def _plain(value: Any) -> Any:
    """Return a value in JSON types; bytes that are not text are escaped."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.item() if hasattr(value, "item") else value

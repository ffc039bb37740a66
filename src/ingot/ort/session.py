"""InferenceSession with the options of both Ingot and ONNX Runtime. `ingot.InferenceSession` is this class."""

from __future__ import annotations

import functools
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Unpack

import ingot.session.inference
from ingot.errors import IngotError, InputError, KindError
from ingot.load import is_onnx_file
from ingot.ort import PROVIDERS, get_available_providers
from ingot.ort.binding import IOBinding
from ingot.ort.options import RunOptions, SessionOptions
from ingot.ort.tables import Accepts, Refuses, completed, unused
from ingot.ort.trace import ProfileFile
from ingot.ort.values import OrtValue
from ingot.session.source import NodeArg, SessionKeywords, Shared
from ingot.session.trace import Trace
from ingot.support.columns import table

if TYPE_CHECKING:
    from ingot.load import ModelSource

Provider = str | tuple[str, Mapping[Any, Any]]  # with its options
_NO_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of an ONNX file; empty for other models."""

    graph_name: str = ""
    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = _NO_VERSION
    custom_metadata_map: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<ModelMetadata {self.graph_name!r}: producer {self.producer_name!r}, version {self.version}>"

    def __str__(self) -> str:
        named = [(each.name, str(getattr(self, each.name))) for each in fields(self)[:-1]]
        return table("ModelMetadata", [*named, *self.custom_metadata_map.items()])

    @staticmethod
    def of(proto: Any) -> ModelMetadata:
        """Return the metadata in the message of an ONNX model."""
        return ModelMetadata(
            proto.graph.name, proto.producer_name, proto.domain, proto.doc_string, proto.graph.doc_string,
            proto.model_version if proto.HasField("model_version") else _NO_VERSION,
            {each.key: each.value for each in proto.metadata_props},
        )  # fmt: skip


@completed
class InferenceSession(ingot.session.inference.InferenceSession):
    """A loaded model, ready to run: `ingot.session`'s `InferenceSession` with ONNX Runtime's options added.

    source: also as `path_or_bytes`. sess_options: `options.SESSION_OPTIONS` lists the options with an effect; Ingot's
    own options take precedence. providers: the first available one selects the executor, native or WebGPU; an
    unavailable one is skipped with a warning. provider_options: without effect.

    Raises the errors of `ingot.session.inference.InferenceSession`, and InputError for invalid providers.
    """

    disable_fallback: Accepts
    enable_fallback: Accepts
    release_captured_graph: Accepts
    set_ep_dynamic_options: Accepts
    get_input_epdevices: Refuses
    get_input_memory_infos: Refuses
    get_output_memory_infos: Refuses
    get_provider_graph_assignment_info: Refuses
    get_tuning_results: Refuses
    run_with_ortvaluevector: Refuses
    set_tuning_results: Refuses

    def __init__(
        self,
        source: ModelSource | Shared | None = None,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        path_or_bytes: ModelSource | None = None,
        enable_fallback: Any = None,
        read_config_from_model: Any = None,
        disabled_optimizers: Any = None,
        **options: Unpack[SessionKeywords],
    ):
        given = source if path_or_bytes is None else path_or_bytes
        if given is None or (source is not None and path_or_bytes is not None):
            got = "none" if given is None else "source and path_or_bytes"
            raise InputError(f"source: got {got}, expected one source: a path, bytes or a module")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            expected = "SessionOptions; a module's inputs go by name, InferenceSession(module, example_inputs=(x,))"
            raise InputError(f"sess_options: got {type(sess_options).__name__}, expected {expected}")
        without_effect = {
            "enable_fallback": enable_fallback,
            "read_config_from_model": read_config_from_model,
            "disabled_optimizers": disabled_optimizers,
        }
        for name, value in without_effect.items():
            if value is not None:
                unused(f"InferenceSession({name}=)")
        chosen = _executor_of(providers, provider_options)
        self._sess_options = sess_options or SessionOptions()
        own = vars(self._sess_options)
        super().__init__(given, **(self._sess_options.options() | chosen | options))
        self._given = bytes(given) if isinstance(given, (bytearray, memoryview)) else given
        self._model_path = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None  # optimum reads it
        self._profile_file = ProfileFile(own["profile_file_prefix"]) if own["enable_profiling"] else None
        if own["optimized_model_filepath"]:
            from ingot.emit.onnx import export_onnx

            export_onnx(self.graph, own["optimized_model_filepath"])

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """Run once; returns an array for each name, or for each output if there are no names.

        Raises the errors of `ingot.session`'s `InferenceSession.run`, and IngotError if the options set `terminate`.
        """
        if run_options is None and self._profile_file is None:
            return self._context.run(output_names, input_feed)
        if run_options is not None:
            run_options.expect_not_terminated("run")
        if self._profile_file is None:
            outputs = self._context.run(output_names, input_feed)
        else:
            outputs = self._run_profiled(self._profile_file, output_names, input_feed)
        if run_options is not None:
            run_options.expect_not_terminated("run")
        return outputs

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in a new thread, which then calls `callback(results, user_data, error)`; error is "" on success, and
        results are empty on failure. Raises KindError if callback is not callable.
        """
        if not callable(callback):
            raise KindError(f"run_async: callback: not callable, got {callback!r}, expected a function of 3 arguments")

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except IngotError as failure:
                results, error = [], str(failure)
            callback(results, user_data, error)

        threading.Thread(target=work, name="ingot-run-async").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As `run`, with values as inputs and outputs. Raises KindError for inputs of another type."""
        for name, each in input_dict_ort_values.items():
            if not isinstance(each, OrtValue):
                expected = "expected OrtValue.ortvalue_from_numpy(array), or `run` for arrays"
                raise KindError(f"input {name!r}: no OrtValue, got {type(each).__name__}, {expected}")
        feeds = {name: each.value for name, each in input_dict_ort_values.items()}
        return [OrtValue(each) for each in self.run(output_names, feeds, run_options)]

    def io_binding(self) -> IOBinding:  # type: ignore[override]
        """Return a binding: buffers bound once, for runs without checks or allocation."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:  # type: ignore[override]
        """Run once on the buffers of a binding; raises the errors of `IOBinding.run`."""
        iobinding.run(run_options)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """As `OrtValue.ortvalue_from_shape_and_type`."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata, read on first use. Raises the errors of loading."""
        header = self._header
        return ModelMetadata(graph_name=self._executable.interface.name) if header is None else ModelMetadata.of(header)

    @functools.cached_property
    def _header(self) -> Any:
        """The message of an ONNX model without its weights; None for other models."""
        if not isinstance(self._given, bytes) and not is_onnx_file(self._given):
            return None
        from ingot.load.onnx.parse import read_header

        return read_header(self._given)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs in order; a dim computed from others has the name given in the ONNX file, or None."""
        return list(self._named_outputs)

    @functools.cached_property
    def _named_outputs(self) -> list[NodeArg]:
        outputs = super().get_outputs()
        computed = any(isinstance(dim, str) and not dim.isidentifier() for each in outputs for dim in each.shape)
        if not computed or self._header is None:
            return outputs
        declared = {each.name: each.type.tensor_type.shape.dim for each in self._header.graph.output}
        return [replace(each, shape=_named(each.shape, declared[each.name])) for each in outputs]

    def get_session_options(self) -> SessionOptions:
        """Return the options given to the session, or new ones."""
        return self._sess_options

    def get_providers(self) -> list[str]:
        """Return the CPU's provider, after WebGPU's if that is the executor: the CPU runs ops without GPU kernels."""
        cpu = PROVIDERS["native"]
        return [PROVIDERS["webgpu"], cpu] if self.executor == "webgpu" else [cpu]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return empty options for each provider."""
        return {name: {} for name in self.get_providers()}

    def set_providers(self, providers: Sequence[Provider] | None = None, provider_options: Any = None) -> None:
        """Has no effect; providers that differ from the session's cause a warning."""
        wanted = _executor_of(providers, provider_options).get("executor", "native")
        if providers and (wanted == "webgpu") != (self.executor == "webgpu"):
            warnings.warn(
                f"providers are fixed when a session is created, this one uses {self.get_providers()}", stacklevel=2
            )

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: weights cannot be overridden."""
        return []

    def end_profiling(self) -> str:
        """Write the times of all runs as events of Chrome's trace viewer; returns the file's name.

        Raises InputError if `enable_profiling` is not set, OutputError for a file that cannot be written.
        """
        return self._profiling("end_profiling").write()

    def get_profiling_start_time_ns(self) -> int:
        """Return the session's start time by `time.monotonic_ns`. Raises InputError without `enable_profiling`."""
        return self._profiling("get_profiling_start_time_ns").start_ns

    def _run_profiled(self, file: ProfileFile, names: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """Run once; add the run to the profile, with its steps if the model is a single native segment."""
        begin, trace = time.monotonic_ns(), None
        outputs = None
        if self.executor == "native":
            program, inputs, sizes = self._context.prepare(feed)
            if program.single is not None:
                found, times = program.single.trace(inputs, 1, sizes)
                outputs, trace = self._context.selected(found, names), Trace.of_native(program.single, times)
        if outputs is None:
            outputs = self._context.run(names, feed)
        file.add(begin, time.monotonic_ns(), trace)
        return outputs

    def _profiling(self, call: str) -> ProfileFile:
        if self._profile_file is None:
            raise InputError(f"{call}: got no profile, expected SessionOptions.enable_profiling")
        return self._profile_file


def _executor_of(names: Sequence[Provider] | None, options: Sequence[Any] | None) -> SessionKeywords:
    """Return the executor of the first available provider as an option; empty for the CPU's.

    Warns of unavailable providers. Raises InputError for values that are not names, or names with options.
    """
    if isinstance(names, str) or (names is not None and not isinstance(names, Sequence)):
        raise InputError(f"providers: got {names!r}, expected a list of names")
    if options is not None and len(options) != len(names or ()):
        raise InputError(f"provider_options: got {len(options)}, expected one for each of {len(names or ())} providers")
    found: list[str] = []
    for each in names or ():
        name = each[0] if isinstance(each, tuple) and len(each) == 2 else each
        if not isinstance(name, str):
            raise InputError(f"providers: got {each!r}, expected a name, or a name and a dict of options")
        if name == PROVIDERS["native"] or (name == PROVIDERS["webgpu"] and name in get_available_providers()):
            found.append(name)
        else:
            available = ", ".join(get_available_providers())
            warnings.warn(f"provider {name!r} is not available, expected one of {available}", stacklevel=3)
    return {"executor": "webgpu"} if found[:1] == [PROVIDERS["webgpu"]] else {}


def _named(shape: Sequence[int | str | None], declared: Sequence[Any]) -> list[int | str | None]:
    """Return a shape whose computed dims have the names of the ONNX file's dims, or None."""
    names = [dim.dim_param or None for dim in declared] if len(declared) == len(shape) else [None] * len(shape)
    pairs = zip(shape, names, strict=True)
    return [name if isinstance(dim, str) and not dim.isidentifier() else dim for dim, name in pairs]

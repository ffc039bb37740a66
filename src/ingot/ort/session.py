"""InferenceSession under both sets of options, Ingot's and ONNX Runtime's. `ingot.InferenceSession` is this one."""

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
from ingot.ort.trace import Trace
from ingot.ort.values import OrtValue
from ingot.session.reports import Profile
from ingot.session.source import NodeArg, SessionKeywords, Shared
from ingot.support.columns import table

if TYPE_CHECKING:
    from ingot.load import ModelSource

Provider = str | tuple[str, Mapping[Any, Any]]  # with its options
_NO_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What an ONNX file says of itself; empty for what is no ONNX."""

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
        """Of the message of an ONNX model."""
        return ModelMetadata(
            proto.graph.name, proto.producer_name, proto.domain, proto.doc_string, proto.graph.doc_string,
            proto.model_version if proto.HasField("model_version") else _NO_VERSION,
            {each.key: each.value for each in proto.metadata_props},
        )  # fmt: skip


@completed
class InferenceSession(ingot.session.inference.InferenceSession):
    """A loaded model, ready to run: the plain `InferenceSession`, with ONNX Runtime's options added.

    source: also as `path_or_bytes`. sess_options: what of it has an effect says `options.SESSION_OPTIONS`; an option of
    Ingot's goes before. providers: the first that is available says the executor, native or WebGPU; one that is not is
    passed over with a warning. provider_options: without effect.

    Raises what `ingot.session.inference.InferenceSession` raises, InputError for providers that are none.
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
            raise InputError(f"source: expected one, a path, bytes or a module, got {got}")
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
        self._trace = Trace(own["profile_file_prefix"]) if own["enable_profiling"] else None
        if own["optimized_model_filepath"]:
            from ingot.emit.onnx import export_onnx

            export_onnx(self.graph, own["optimized_model_filepath"])

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """Runs once: an array for each name, or for each output where there is no name.

        Raises what the plain `InferenceSession.run` raises, and IngotError where the options say `terminate`.
        """
        if run_options is None and self._trace is None:
            return self._context.run(output_names, input_feed)
        if run_options is not None:
            run_options.expect_going("run")
        begin = time.monotonic_ns()
        outputs = self._context.run(output_names, input_feed)
        if self._trace is not None:
            self._trace.add(begin, time.monotonic_ns(), self._profile_of(input_feed))
        if run_options is not None:
            run_options.expect_going("run")
        return outputs

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs in a thread of its own, which then calls `callback(results, user_data, error)`: "" where there was none,
        else no results. Raises KindError for what cannot be called.
        """
        if not callable(callback):
            raise KindError(f"run_async: callback: cannot be called, got {callback!r}, expected a function of three")

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
        """As `run`, with values in and out. Raises KindError for what is no value."""
        for name, each in input_dict_ort_values.items():
            if not isinstance(each, OrtValue):
                expected = "expected OrtValue.ortvalue_from_numpy(array), or `run` for arrays"
                raise KindError(f"input {name!r}: no OrtValue, got {type(each).__name__}, {expected}")
        feeds = {name: each.value for name, each in input_dict_ort_values.items()}
        return [OrtValue(each) for each in self.run(output_names, feeds, run_options)]

    def io_binding(self) -> IOBinding:  # type: ignore[override]
        """Buffers bound once, for runs without checks or allocation."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:  # type: ignore[override]
        """Runs once on the buffers of a binding; raises what `IOBinding.run` does."""
        iobinding.run(run_options)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """As `OrtValue.ortvalue_from_shape_and_type`."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself, read when it is first asked for. Raises what loading it raises."""
        header = self._header
        return ModelMetadata(graph_name=self._bindings.interface.name) if header is None else ModelMetadata.of(header)

    @functools.cached_property
    def _header(self) -> Any:
        """The message of an ONNX model without its weights; None for what is no ONNX."""
        if not isinstance(self._given, bytes) and not is_onnx_file(self._given):
            return None
        from ingot.load.onnx.parse import read_header

        return read_header(self._given)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in order; a dim that is computed of others has the name that an ONNX file gives it, or None."""
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
        """Those that were given, or new ones."""
        return self._sess_options

    def get_providers(self) -> list[str]:
        """The CPU's; before it WebGPU's where that is the executor, which leaves the CPU what it has no kernel for."""
        cpu = PROVIDERS["native"]
        return [PROVIDERS["webgpu"], cpu] if self.executor == "webgpu" else [cpu]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """None of any."""
        return {name: {} for name in self.get_providers()}

    def set_providers(self, providers: Sequence[Provider] | None = None, provider_options: Any = None) -> None:
        """Nothing changes; others than the session was made with are passed over with a warning."""
        wanted = _executor_of(providers, provider_options).get("executor", "native")
        if providers and (wanted == "webgpu") != (self.executor == "webgpu"):
            warnings.warn(
                f"providers are chosen when a session is made, this one keeps {self.get_providers()}", stacklevel=2
            )

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: weights are the model's."""
        return []

    def end_profiling(self) -> str:
        """Writes the times of all runs since the session began, as events of Chrome's trace viewer; the file's name.

        Raises InputError where `enable_profiling` is not set, OutputError for a file that cannot be written.
        """
        return self._tracing("end_profiling").write()

    def get_profiling_start_time_ns(self) -> int:
        """When the session began, by `time.monotonic_ns`. Raises InputError where `enable_profiling` is not set."""
        return self._tracing("get_profiling_start_time_ns").start_ns

    def _profile_of(self, feed: Mapping[str, Any]) -> Profile | None:
        """The times of the steps; None for a model that is not one native segment."""
        if self.executor != "native" or self._context.current().single is None:
            return None
        return self.profile(feed)

    def _tracing(self, call: str) -> Trace:
        if self._trace is None:
            raise InputError(f"{call}: nothing is profiled, expected SessionOptions.enable_profiling")
        return self._trace


def _executor_of(names: Sequence[Provider] | None, options: Sequence[Any] | None) -> SessionKeywords:
    """The executor that the first of these that is available stands for, as an option; none for the CPU's. Warns of
    what is not there. Raises InputError for what is no list of names, or of names with options."""
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
            there = ", ".join(get_available_providers())
            warnings.warn(f"provider {name!r} is not available, got none of that name, expected {there}", stacklevel=3)
    return {"executor": "webgpu"} if found[:1] == [PROVIDERS["webgpu"]] else {}


def _named(shape: Sequence[int | str | None], declared: Sequence[Any]) -> list[int | str | None]:
    """A shape whose computed dims have the names of ONNX's dims, or none."""
    names = [dim.dim_param or None for dim in declared] if len(declared) == len(shape) else [None] * len(shape)
    pairs = zip(shape, names, strict=True)
    return [name if isinstance(dim, str) and not dim.isidentifier() else dim for dim, name in pairs]

"""Options of sessions and of runs, with the effect of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from ingot.errors import IngotError, InputError
from ingot.ort.tables import AbsentError, Accepts, Refuses, completed, unused
from ingot.support.columns import table

if TYPE_CHECKING:
    from ingot.session.source import SessionKeywords


class GraphOptimizationLevel(IntEnum):
    """ORT_DISABLE_ALL runs no pass; every other level runs them all."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Steps run in the plan's order, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order of steps is chosen for memory."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(frozen=True, slots=True)
class Option:
    """An attribute of options: its default value, and its effect; "" if it has none."""

    default: Any
    effect: str = ""


SESSION_OPTIONS: dict[str, Option] = {
    "enable_cpu_mem_arena": Option(True),
    "enable_mem_pattern": Option(True),
    "enable_mem_reuse": Option(True),
    "enable_profiling": Option(False, "times each step of every run on each thread; `end_profiling` writes them"),
    "execution_mode": Option(ExecutionMode.ORT_SEQUENTIAL),
    "execution_order": Option(ExecutionOrder.DEFAULT),
    "graph_optimization_level": Option(
        GraphOptimizationLevel.ORT_ENABLE_ALL,
        "ORT_DISABLE_ALL runs no pass, as `passes=()`; all other levels run all passes",
    ),
    "inter_op_num_threads": Option(0),
    "intra_op_num_threads": Option(0, "`threads`; 0 means as many as the machine allows"),
    "log_severity_level": Option(-1),
    "log_verbosity_level": Option(0),
    "logid": Option(""),
    "optimized_model_filepath": Option("", "the graph after the passes is written to this file, as ONNX"),
    "profile_file_prefix": Option("onnxruntime_profile_", "the prefix of the file name of `end_profiling`"),
    "use_deterministic_compute": Option(False),
    "use_per_session_threads": Option(True),
}

RUN_OPTIONS: dict[str, Option] = {
    "log_severity_level": Option(-1),
    "log_verbosity_level": Option(0),
    "logid": Option(""),
    "only_execute_path_to_fetches": Option(False),
    "terminate": Option(
        False, "a run does not start; the results of a run in progress in another thread are discarded"
    ),
}


class Options:
    """Attributes of a table, and config entries, which are stored without effect."""

    table: ClassVar[Mapping[str, Option]]

    def __init__(self) -> None:
        self.__dict__.update({name: option.default for name, option in self.table.items()}, _entries={})

    # Type checkers see the attributes that the classes declare.
    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            option = self.table.get(name)
            if option is None:
                raise AbsentError(f"onnxruntime: no such option, got {type(self).__name__}.{name}")
            if not option.effect:
                unused(f"{type(self).__name__}.{name}")
            self.__dict__[name] = value

    def __repr__(self) -> str:
        changed = {name: value for name, value in self._values().items() if value != self.table[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __str__(self) -> str:
        return table(type(self).__name__, [(name, _shown(value)) for name, value in self._values().items()])

    def _values(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.table}

    def _add(self, call: str, key: str, value: str) -> None:
        unused(f"{type(self).__name__}.{call} {key!r}")
        self.__dict__["_entries"][str(key)] = str(value)

    def _get(self, key: str) -> str:
        if key not in self.__dict__["_entries"]:
            raise InputError(f"onnxruntime: no such entry of {type(self).__name__}, got {key!r}")
        return str(self.__dict__["_entries"][key])


def _shown(value: Any) -> str:
    return value.name if isinstance(value, IntEnum) else repr(value)


@completed
class SessionOptions(Options):
    """The options of a session; see `SESSION_OPTIONS`."""

    table = SESSION_OPTIONS
    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    enable_mem_reuse: bool
    enable_profiling: bool
    execution_mode: ExecutionMode
    execution_order: ExecutionOrder
    graph_optimization_level: GraphOptimizationLevel
    inter_op_num_threads: int
    intra_op_num_threads: int
    log_severity_level: int
    log_verbosity_level: int
    logid: str
    optimized_model_filepath: str
    profile_file_prefix: str
    use_deterministic_compute: bool
    use_per_session_threads: bool
    add_free_dimension_override_by_denotation: Accepts
    add_provider: Accepts
    add_provider_for_devices: Accepts
    clear_ep_context_data_read_func: Accepts
    set_provider_selection_policy: Accepts
    set_provider_selection_policy_delegate: Accepts
    add_external_initializers: Refuses
    add_external_initializers_from_files_in_memory: Refuses
    add_initializer: Refuses
    register_custom_ops_library: Refuses
    set_ep_context_data_read_func: Refuses
    set_load_cancellation_flag: Refuses

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_dims"] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store an entry, without effect."""
        self._add("add_session_config_entry", key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return the entry that was added. Raises InputError if there is none."""
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Set the value of a symbolic dim, as `dims={name: value}`; an unknown dim is an error."""
        self.__dict__["_dims"][name] = value

    def has_providers(self) -> bool:
        """Return False."""
        return False

    def options(self) -> SessionKeywords:
        """Return the equivalent options of `ingot.InferenceSession`. Raises InputError for an invalid value."""
        found: SessionKeywords = {}
        threads = self.__dict__["intra_op_num_threads"]
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
            raise InputError(f"SessionOptions.intra_op_num_threads: bad value, got {threads!r}, expected 0 or more")
        if threads:
            found["threads"] = threads
        if int(self.__dict__["graph_optimization_level"]) == GraphOptimizationLevel.ORT_DISABLE_ALL:
            found["passes"] = ()
        if self.__dict__["_dims"]:
            found["dims"] = dict(self.__dict__["_dims"])
        return found


@completed
class RunOptions(Options):
    """The options of a run; see `RUN_OPTIONS`."""

    table = RUN_OPTIONS
    log_severity_level: int
    log_verbosity_level: int
    logid: str
    only_execute_path_to_fetches: bool
    terminate: bool
    add_active_adapter: Refuses

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store an entry, without effect."""
        self._add("add_run_config_entry", key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return the entry that was added. Raises InputError if there is none."""
        return self._get(key)

    def expect_not_terminated(self, call: str) -> None:
        """Raise IngotError if `terminate` is set."""
        if self.__dict__["terminate"]:
            raise IngotError(f"{call}: ended, got RunOptions.terminate, expected it not to be set")

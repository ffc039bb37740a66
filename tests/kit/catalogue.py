"""The catalogue of what breaks runtimes, and what tries each of it here: ONNX files (O), GGUF files and saved
state (G), callers of Python (P), clients of the server (H). `catalogue_others` has the other rows.

An attack is a row of the tables of hostile files, all of which are loaded under limits of memory and time, too
(`tests/load/test_onnx_limits.py`). Everything else is a test, named by its file and function.
"""

from collections import Counter
from dataclasses import dataclass

from attacks import (
    hostile_families,
    hostile_folders,
    hostile_gguf,
    hostile_onnx,
    hostile_subgraphs,
    hostile_types,
    hostile_values,
)

ATTACKS = Counter(
    attack[0]
    for table in (
        *(hostile_onnx.FILES, hostile_onnx.GRAPHS, hostile_onnx.TENSORS, hostile_onnx.ATTRIBUTES, hostile_onnx.BOMBS),
        *(
            hostile_subgraphs.SUBGRAPHS,
            hostile_types.TYPES,
            hostile_families.FAMILIES,
            hostile_values.VALUES,
            hostile_values.RUNS,
        ),
        *(hostile_gguf.ATTACKS, hostile_gguf.TOKENIZERS, hostile_folders.ATTACKS),
    )
    for attack in table
)


@dataclass(frozen=True)
class Row:
    """What is tried, the attacks and the tests that try it. tests: `folder/file function` of each, without `test_`.
    numbered: attacks whose names begin with that of the row.
    """

    what: str
    attacks: str = ""
    tests: str = ""
    numbered: tuple[str, ...] = ()

    @property
    def attack_names(self) -> list[str]:
        return [*(name.strip() for name in self.attacks.split(";") if name.strip()), *self.numbered]

    @property
    def test_names(self) -> list[str]:
        return [name.strip() for name in self.tests.split(";") if name.strip()]


def of_prefix(row: str, what: str, tests: str = "") -> Row:
    """A row of files whose attacks have its name before theirs."""
    return Row(what, "", tests, tuple(name for name in ATTACKS if name.startswith(f"{row} ")))


ROWS = {
    "O1": Row(
        "an empty file, one byte, a web page, a pointer of Git LFS",
        "empty; one byte; zeros; web page; lfs pointer; text",
    ),
    "O2": Row(
        "a file cut at every byte",
        tests="load/onnx_attacks truncated_everywhere; load/onnx_damage some_damages; load/onnx_damage every_damage",
    ),
    "O3": Row(
        "every bit flipped",
        tests="load/onnx_attacks flipped_bits; load/onnx_attacks every_flipped_bit; load/onnx_damage every_damage;"
        " load/onnx_survival mutants",
    ),
    "O4": Row("more than 2 GiB, lengths of 2**63", "huge varint; endless varint", "load/onnx_attacks paths"),
    "O5": Row("messages and groups 10,000 deep", "deep subgraphs; deeper subgraphs; deep groups"),
    "O6": Row(
        "versions that are missing, 0, huge or there twice",
        "ir_version missing; ir_version huge; opset missing; opset 0; opset huge; opset twice",
    ),
    "O7": Row("names that are defined twice", "initializer twice; input twice; output twice; value twice; input made"),
    "O8": Row(
        "cycles, and names that nothing makes",
        "cycle; self loop; no producer; output ghost; cycle of three; cycle of many; cycle through a branch;"
        " cycle in a function; name made again by a node",
    ),
    "O9": Row("a million nodes", tests="load/onnx_attacks long_chain; load/onnx_limits a_million_nodes"),
    "O10": Row(
        "a tensor with two value fields",
        "two value fields; constant's fields; constant's fields, of a function; float_data too short",
    ),
    "O11": Row(
        "data of another length than its shape has",
        "raw too short; raw too long; large raw too short; large raw too long; raw int4; raw int2; int4 as elements",
    ),
    "O12": Row(
        "dims whose product wraps, below 0",
        "dims wrap to 0; dims wrap to 4; negative dim; smallest dim; huge dim beside 0; input of huge dims",
    ),
    "O13": Row(
        "dims of 0, in every op",
        "dims beside 0; rows of nothing, summed",
        "run/operand_shapes other_shapes_are_refused_or_agree; ops/sizes sizes; load/onnx_attacks rows_of_nothing",
    ),
    "O14": Row(
        "a rank of 13 or 2000, rank 0 where 2 is needed, an unknown rank",
        "rank 13; rank 2000; input of rank 13; rank 0 where 2",
        "load/onnx_attacks operands_of_unknown_rank",
    ),
    "O15": Row(
        "dtypes that are none, or that an op does not take",
        "dtype 0; dtype 9999; dtype complex; input of strings; input of narrow floats; input of narrow integers;"
        " input of complex; cast to nothing; cast to complex",
    ),
    "O16": Row(
        "external data elsewhere: such a file is never opened",
        tests="load/onnx_attacks external_location; load/onnx_attacks what_is_opened_is_seen",
    ),
    "O17": Row(
        "links, devices, pipes and folders as external data or as the model; a model without a folder",
        tests="load/onnx_attacks external_location; load/onnx_attacks paths; load/onnx_attacks external_data_is_mapped;"
        " load/onnx_attacks external_data_of_bytes_is_refused",
    ),
    "O18": Row(
        "a file exchanged between check and read",
        tests="load/onnx_attacks a_file_is_exchanged_for_a_link_while_it_is_opened",
    ),
    "O19": Row(
        "offsets, lengths and keys of external data",
        tests="load/onnx_attacks external_location; load/onnx_attacks external_data_is_mapped",
    ),
    "O20": Row(
        "external data that is missing, short, or becomes so",
        tests="load/onnx_attacks external_location; load/mapped_files onnx",
    ),
    "O21": Row("markers of addresses in memory", tests="load/onnx_attacks external_location"),
    "O22": Row(
        "attributes that are missing, twice, unknown, of another type; axes out of range",
        "missing; of wrong type; unknown; twice; axis -rank-1; axis too high; reference outside",
        "load/onnx_attacks required_input_left_out",
    ),
    "O23": Row(
        "windows that do not fit their image",
        "stride 0; stride 0, same; dilation 0; dilations short; pads huge; pads large; pads negative; group 0; group 3;"
        " kernel larger; kernel_shape of rank 1; kernel of rank 3; auto_pad",
    ),
    "O24": Row(
        "blocks, parts, pads and neighbours that do not fit",
        "blocksize 0; blocksize 2**32; split sum; split negative; concat mismatch; pad length; pad huge; pad cuts",
    ),
    "O25": Row(
        "a small file that asks for much memory",
        "expand; expand of input; expand wraps; tile; range; float range; constant of shape; one hot; eye;"
        " many constants; squared; squared symbol; many words; words that grow",
        "load/onnx_attacks results_without_memory; load/onnx_previews a_decompression_bomb_takes_no_memory",
    ),
    "O26": Row(
        "indices out of range, of a run's data",
        tests="run/session bad_index_is_an_input_error; ops/ops bad_data_is_an_input_error;"
        " run/operand_shapes other_shapes_are_refused_or_agree; run/pool a_bad_index_is_reported_and_then_forgotten;"
        " load/onnx_values bad_models_and_runs",
    ),
    "O27": Row(
        "shapes that a reshape cannot give",
        "reshape twice -1; reshape -2; reshape 0 beyond; reshape to 7; reshape -1 of 7; reshape -1 by 0; reshape wraps",
    ),
    "O28": Row(
        "slices of extreme bounds and steps",
        "slice step 0; slice lengths; slice axes",
        "load/onnx_attacks extreme_numbers",
    ),
    "O29": Row(
        "symbols that a run contradicts",
        tests="run/interpret wrong_feeds; run/rebinding shapes_that_were_valid_before_are_accepted_at_once",
    ),
    "O30": Row(
        "more results or operands than an op has, a subgraph where none belongs",
        "too many inputs; too few inputs; too many outputs; more results than a body has; results of one name;"
        " body of an op without one",
    ),
    "O31": Row(
        "control flow: bodies that do not fit, names of graphs around, loops without an end",
        "input of a body and initializer; name of a graph around; carried in another dtype;"
        " too few results of a body; too few inputs of a body; two numbers of trips; branches of two dtypes;"
        " If results more; Loop results more; Scan results more; SequenceMap results more; function of more outputs;"
        " branches of two kinds; condition of many, of a turn; a loop of nothing; scanned scalar; scanned axis",
        "load/onnx_limits a_loop_without_end_is_interrupted; load/onnx_values a_loop_without_an_end_is_interrupted;"
        " load/onnx_values what_a_loop_scans_is_limited",
    ),
    "O32": Row(
        "functions that are deep, recursive, or many once they are expanded",
        "deep functions; recursive function; function twice",
        "load/onnx_attacks wide_functions",
    ),
    "O33": Row("ops of other domains, of which nothing is imported", "custom op; other domain's schema; unknown op"),
    "O34": Row(
        "names that are code, control characters or too long",
        "empty name; long name",
        "emit/emit names_reach_the_c_as_identifiers; emit/program names_become_identifiers; ir/text strange_names;"
        " cli/cli hostile_names_do_not_reach_the_terminal; cli/cli hostile_names_in_errors",
    ),
    "O35": Row(
        "special numbers, where the locale has a comma before decimals, too",
        tests="emit/locale a_comma_before_decimals; emit/emit same_bits_as_native; ir/text any_f32_bits;"
        " ir/text any_f64_and_i64_bits",
    ),
    "O36": Row(
        "outputs that are inputs, constants, each other; no nodes",
        tests="run/session outputs_that_are_inputs_views_and_constants; load/load_onnx outputs_that_no_node_computes;"
        " whole/random_graphs found",
    ),
    "O37": Row(
        "scales and zero points of quantized ops",
        "QuantizeLinear by nan; QuantizeLinear by inf; DequantizeLinear by nan; DequantizeLinear by -inf;"
        " QLinearMatMul by nan; QLinearConv by inf; zero point in floats; zero point of a matrix;"
        " scales of five columns; zero points of two; axis of scales; zero point with a sign; blocks;"
        " zero points of seven rows;"
        " zero points of filters; bias of nine; scale of doubles; zero point of 32 bits",
    ),
    "O38": Row(
        "memory of narrow numbers that is used again for wide ones",
        tests="plan/plan narrow_numbers_have_a_byte_each_whatever_lay_there_before;"
        " load/onnx_limits memory_of_low_precision_values_is_reused",
    ),
    "O39": Row(
        "what looks like a fusion and is none",
        tests="passes/passes_fuse pass; passes/passes_attention pass; passes/passes_mask mask;"
        " passes/passes_simplify pass; whole/random_graphs random_graphs; load/onnx_differential random_models",
    ),
    "O40": Row(
        "sparse tensors, maps, sequences and optionals where they do not belong, training_info",
        "sparse; sparse constant; sparse input; map; optional map; optional of an optional;"
        " sequence input of sequences; sequence as a tensor; tensor as a sequence; training; segment",
    ),
    "G1": of_prefix("G1", "another magic, version or order of bytes"),
    "G2": of_prefix("G2", "more keys and tensors than fit in the file"),
    "G3": of_prefix("G3", "keys, texts and arrays that are too long, empty, there twice or deep"),
    "G4": of_prefix("G4", "alignments that are none"),
    "G5": of_prefix(
        "G5",
        "dims, types, names and offsets of tensors; a dim of 0 is right",
        "load/gguf files_that_are_odd_and_right; load/gguf some_damages; load/gguf every_damage",
    ),
    "G6": of_prefix("G6", "values and arrays of another type than is read"),
    "G7": of_prefix("G7", "numbers of layers and heads"),
    "G8": Row(
        "saved state with other sizes than it has, cut or damaged",
        tests="llm/saved_state headers; llm/saved_state vast_arrays_are_not_allocated;"
        " llm/saved_state every_truncation; llm/saved_state every_flipped_bit; llm/saved_state other_files;"
        " llm/saved_state other_models",
    ),
    "P1": Row("inputs that are missing, too many or misspelt", tests="run/session wrong_inputs"),
    "P2": Row(
        "another rank, dim or dtype; lists, numbers, objects",
        tests="run/session wrong_inputs; ort/calls rejected_inputs; ort/calls lists_are_accepted_as_there",
    ),
    "P3": Row(
        "strided, reversed, broadcast, unaligned, mapped, masked arrays and those of another byte order",
        tests="run/session strange_arrays; run/session arrays_of_other_kinds",
    ),
    "P4": Row(
        "bound arrays that overlap, are too small or of another dtype",
        tests="run/session io_binding; run/session bound_arrays_that_share_memory",
    ),
    "P5": Row(
        "arrays that are let go or changed during a run", tests="run/session inputs_are_alive_for_the_whole_call"
    ),
    "P6": Row(
        "results that outlive the session and its next run",
        tests="run/session outputs_are_the_callers",
    ),
    "P7": Row(
        "sessions that end: dropped while their contexts go on, and with the interpreter",
        tests="run/session_memory a_dropped_session_goes_at_once; run/pool exit_keeps_its_code",
    ),
    "P8": Row(
        "batches of 0, of 1, and beyond what is planned",
        tests="run/session native_equals_interpret_for_every_batch; run/at_most too_large_a_size",
    ),
    "P9": Row(
        "ten thousand sessions, one after another",
        tests="run/session_memory sessions_one_after_another_take_the_memory_of_one;"
        " run/session_memory ten_thousand_sessions_leave_nothing_behind",
    ),
    "P10": Row(
        "tensors of other libraries, by DLPack, on other devices, with gradients",
        tests="ort/calls other_accepted_inputs; ort/calls dlpack_is_accepted; ort/calls rejected_inputs",
    ),
    "P11": Row(
        "runs from inside a run",
        tests="run/schedules runs_in_signal_handlers; ops/custom runs_inside_of_runs",
    ),
    "P12": Row(
        "copies and pickles of a session",
        tests="run/session a_copy_is_rebuilt_from_the_source; run/session states_of_a_copy_begin_anew",
    ),
    "P13": Row(
        "Ctrl-C, and no memory, at any instruction",
        tests="run/interrupts stage; run/interrupts memory_runs_out;"
        " run/interrupts an_import_that_was_interrupted_can_be_tried_again",
    ),
    "P14": Row(
        "options that are none",
        tests="run/session wrong_options; ort/calls another_device_is_passed_over_with_a_warning",
    ),
    "H1": Row(
        "the body is not JSON, is empty, an array, not UTF-8, deep or large, or has a key twice",
        tests="serve/hostile_requests refused; serve/hostile_requests accepted; serve/server bad_bodies;"
        " serve/operations the_depth_of_json; serve/operations the_depth_of_hostile_json",
    ),
    "H2": Row(
        "lengths that are wrong, negative, there twice or with chunks; bytes and chunks one at a time",
        tests="serve/operations bytes_that_are_no_request;"
        " serve/operations bytes_that_arrive_one_at_a_time_are_a_request;"
        " serve/operations many_small_chunks_are_a_body",
    ),
    "H3": Row(
        "requests that arrive slowly, idle connections, large headers",
        tests="serve/operations bytes_that_are_no_request; serve/operations idle_connections_are_limited_and_closed",
    ),
    "H4": Row(
        "numbers of answers and tokens that are none, below 0, huge, fractions or texts",
        tests="serve/hostile_requests refused; serve/hostile_requests accepted; serve/server bad_requests",
    ),
    "H5": Row(
        "100,000 prompts; ids out of range, below 0 or fractions",
        tests="serve/hostile_requests refused; serve/server bad_requests",
    ),
    "H6": Row(
        "temperatures, shares, penalties and seeds out of range",
        tests="serve/hostile_requests refused; serve/hostile_requests accepted; serve/server bad_requests",
    ),
    "H7": Row(
        "biases of tokens that are none, infinite, or of all tokens",
        tests="serve/hostile_requests refused; serve/hostile_requests accepted;"
        " llm/service one_answers_fault_ends_no_other",
    ),
    "H8": Row(
        "stop strings that are empty, long, many, or span tokens",
        tests="serve/hostile_requests refused; llm/text_stream nothing_comes_after_a_stop_string;"
        " llm/text_stream stop_strings_that_are_refused",
    ),
    "H9": Row(
        "schemas and patterns that are deep, large, or take long to compile",
        tests="serve/hostile_requests refused; llm/constraint bad_schemas; llm/constraint bad_patterns",
    ),
    "H10": Row(
        "unknown fields, models, paths, methods and types of content",
        tests="serve/hostile_requests accepted; serve/server bad_requests; serve/server bad_bodies;"
        " serve/server unknown_paths_and_methods; serve/schema a_short_fuzz",
    ),
    "H11": Row(
        "a client goes before its answer, in the prompt, or in a stream",
        tests="serve/server a_closed_connection_ends_its_answer;"
        " serve/operations a_client_that_goes_ends_the_first_of_its_requests_too;"
        " llm/service a_stopped_answer_frees_its_sequence_even_during_its_prompt",
    ),
    "H12": Row(
        "a client that does not read",
        tests="serve/operations a_client_that_does_not_read_loses_its_answer_and_no_other_is_delayed",
    ),
    "H13": Row(
        "line breaks, and lines of the protocol, in the text of a stream",
        tests="serve/hostile_requests text_does_not_break_the_frame_of_events",
    ),
    "H14": Row(
        "more requests than the queue holds",
        tests="serve/server keys_and_a_full_queue; llm/service a_full_queue_refuses_and_priorities_go_first;"
        " serve/operations of_ten_times_as_many_requests_as_fit_some_are_refused_and_the_others_right",
    ),
    "H15": Row(
        "SIGTERM under load, twice, and with answers that take long",
        tests="serve/operations a_server_that_ends_loses_no_answer;"
        " serve/operations 200_servers_that_end_lose_no_answer;"
        " serve/operations answers_that_take_too_long_to_drain_end_with_an_error;"
        " serve/operations a_client_that_does_not_read_does_not_hold_a_server_that_ends",
    ),
    "H16": Row(
        "the thread of the engine ends by a bug",
        tests="serve/operations a_service_that_ends_by_a_bug_ends_the_command",
    ),
    "H17": Row(
        "errors and log lines with paths, stacks, prompts or keys",
        tests="serve/operations a_bug_is_an_error_with_an_id_and_its_text_is_not_logged;"
        " serve/operations log_lines_have_no_prompt_no_answer_and_no_key; serve/hostile_requests refused",
    ),
    "H18": Row(
        "pages of other web sites, other names of the host, wrong keys",
        tests="serve/operations origins_are_closed_unless_they_are_named;"
        " serve/operations other_names_of_the_host_are_refused; serve/server keys_and_a_full_queue;"
        " serve/operations keys_of_a_file",
    ),
    "H19": Row(
        "addresses and files that the server shall read",
        tests="serve/hostile_requests refused",
    ),
    "H20": Row(
        "streams of other clients change no bit of an answer",
        tests="serve/server many_clients_get_the_answers_of_one;"
        " llm/service answers_of_many_threads_have_the_tokens_of_answers_alone;"
        " serve/schema a_short_fuzz",
    ),
    "H21": Row(
        "cached prompts of other clients change no bit of an answer",
        tests="llm/service sequences_share_full_blocks_and_write_in_none_of_them",
    ),
}

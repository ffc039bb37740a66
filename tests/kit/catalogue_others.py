"""Further rows of the catalogue: folders and safetensors (S), configurations (C), tokenizers (T), chat templates (J),
the command line (L), WebGPU (W), concurrency, faults and the cache (F), and numbers (N).
"""

from catalogue import Row, of_prefix

FOLDER = "load/folder attack; load/folder attacks_without_asserts"
CONFIG = "load/template_errors wrong_config"

OTHERS = {
    "S1": of_prefix("S1", "lengths of a header that are 0, huge or beyond the file", FOLDER),
    "S2": of_prefix("S2", "headers that are no JSON object alone", FOLDER),
    "S3": of_prefix("S3", "keys that are there twice", FOLDER),
    "S4": of_prefix("S4", "dims that are no integers", FOLDER),
    "S5": of_prefix("S5", "metadata that is deep, or no texts", FOLDER),
    "S6": of_prefix("S6", "offsets that are negative, reversed, too few, too many or huge", FOLDER),
    "S7": of_prefix("S7", "tensors that overlap, leave holes or do not end with the file", FOLDER),
    "S8": of_prefix("S8", "tensors without elements", f"{FOLDER}; load/folder empty_and_vast"),
    "S9": of_prefix("S9", "products of dims that wrap", FOLDER),
    "S10": of_prefix("S10", "dtypes that are unknown, and booleans of 2", FOLDER),
    "S11": Row("tensors at any byte of a file", tests="kernels/kernels_mapped unaligned_weights"),
    "S12": Row("tensors that end with a page", tests="kernels/kernels_mapped packing_reads_no_byte_beyond"),
    "S13": Row(
        "a file that is cut while it is mapped",
        tests="load/mapped_files safetensors_cut_while_open; load/mapped_files a_language_model",
    ),
    "S14": of_prefix("S14", "an index of shards that are elsewhere, missing, or hold other tensors", FOLDER),
    "S15": Row(
        "tensors that are unknown, missing or of another shape",
        tests="load/template_errors weights_that_do_not_fit_are_all_listed; load/templates tied_head_that_is_stored",
    ),
    "S16": Row(
        "weights that are no numbers",
        tests="load/weight_contents nonfinite; cli/cli_llm weights_that_are_no_numbers_are_named",
    ),
    "S17": of_prefix(
        "S17",
        "links out of a folder, and those of the hub's cache",
        f"{FOLDER}; load/folder cached_snapshot; load/folder cached_snapshot_with_shared_blobs;"
        " load/folder links_leave_a_snapshot_nowhere_else; load/folder links_inside_a_folder",
    ),
    "S18": of_prefix("S18", "pickled weights", FOLDER),
    "C1": Row("code in a folder, and keys that ask for it", tests="load/folder code_in_a_folder_is_data"),
    "C2": Row("sizes that are 0, negative, huge or do not divide", tests=CONFIG),
    "C3": Row("a billion layers", tests=CONFIG),
    "C4": Row(
        "vocabularies of several sizes",
        tests="load/template_errors weights_that_do_not_fit_are_all_listed;"
        " llm/constraint logits_narrower_than_the_vocabulary;"
        " llm/tokenizer ids_of_a_larger_vocabulary_are_left_out",
    ),
    "C5": Row("angles and scalings that are none", tests=CONFIG),
    "C6": Row(
        "contexts beyond all memory", tests="llm/memory_of nothing_fits; llm/memory_of the_largest_context_that_fits"
    ),
    "C7": Row("ids of ends and paddings that are none", tests="llm/special_tokens wrong_files_are_refused_by_name"),
    "C8": Row("norms and windows of nothing", tests=f"{CONFIG}; load/template_errors window_of_nothing"),
    "C9": of_prefix("C9", "JSON that is none, twofold, deep or large", FOLDER),
    "C10": Row("interpreters that drop asserts", tests="load/folder attacks_without_asserts"),
    "T1": Row("texts of a million equal characters", tests="llm/tokenizer long_texts"),
    "T2": Row("expressions that backtrack", tests="llm/tokenizer patterns_without_a_bound"),
    "T3": Row("ids that are negative, shared, sparse or huge", tests="llm/tokenizer hostile_files"),
    "T4": Row("merges of no tokens, and millions of them", tests="llm/tokenizer hostile_files"),
    "T5": Row("tokens of bytes that are none", tests="llm/tokenizer hostile_files; load/gguf hostile_tokenizers"),
    "T6": Row(
        "halves of surrogates, combining marks, characters that grow",
        tests="llm/tokenizer texts_that_are_refused; llm/tokenizer text_comes_back; llm/tokenizer hostile_files",
    ),
    "T7": Row(
        "control tokens in the text of a user",
        tests="llm/tokenizer control_tokens_come_only_from_templates;"
        " llm/chat_template messages_cannot_write_control_tokens",
    ),
    "T8": Row("characters of several tokens, in a stream", tests="llm/text_stream characters_come_whole"),
    "T9": Row(
        "prompts that are empty, or as long as the context",
        tests="llm/llm bad_prompts; llm/llm a_context_is_used_to_its_end;"
        " cli/cli_llm a_prompt_longer_than_the_context_reports_both_numbers",
    ),
    "T10": Row(
        "ids that are none, to be decoded", tests="llm/tokenizer ids_that_are_none; llm/text_stream what_is_no_id"
    ),
    "T11": Row("one tokenizer and many threads", tests="llm/tokenizer threads"),
    "J1": Row(
        "templates that reach for Python",
        tests="llm/chat_template templates_cannot_escape; llm/chat_template a_template_that_escapes_has_no_files",
    ),
    "J2": Row(
        "templates that take all time, memory or output",
        tests="llm/chat_template templates_that_take_too_much;"
        " llm/chat_template a_template_renders_again_after_its_process_was_ended",
    ),
    "J3": Row("a template in a request", tests="llm/chat_template options_that_are_refused"),
    "J4": Row("options that replace variables of a template", tests="llm/chat_template options_that_are_refused"),
    "J5": Row(
        "templates with mistakes, none, and several with names",
        tests="llm/chat_template faulty_templates; llm/chat_template hostile_folders;"
        " llm/chat_template named_templates_in_files",
    ),
    "J6": Row("prompts that differ from those of transformers", tests="llm/chat_template as_transformers_renders"),
    "J7": Row("messages that are none, too many or too long", tests="llm/chat_template messages_that_are_refused"),
    "L1": Row(
        "no arguments, unknown ones, help",
        tests="cli/cli failures_have_their_code_and_say_why; cli/cli help_names_every_command",
    ),
    "L2": Row(
        "paths that are missing, folders, files, or not to be read",
        tests="cli/wrong_files a_folder_that_is_no_model; cli/wrong_files a_file_instead_of_a_model;"
        " cli/wrong_files permissions",
    ),
    "L3": Row("outputs that are closed or full", tests="cli/cli a_closed_pipe_is_quiet; cli/cli_llm closed_streams"),
    "L4": Row(
        "files that are there, or cannot be written",
        tests="cli/cli a_file_is_whole_or_absent; cli/wrong_files permissions",
    ),
    "L5": Row(
        "Ctrl-C",
        tests="cli/cli an_interrupt_ends_with_130; cli/cli_llm an_interrupt_of_generate_ends_with_130;"
        " cli/cli_llm an_interrupt_reaches_a_run",
    ),
    "L6": Row(
        "names with control characters on a terminal, numbers that JSON has not",
        tests="cli/cli hostile_names_do_not_reach_the_terminal; cli/cli printable; cli/inspect hostile_names;"
        " cli/inspect numbers_are_numbers",
    ),
    "L8": Row(
        "no folder for the cache",
        tests="run/cache a_folder_that_cannot_be_written_is_no_error; run/cache the_knob_names_a_folder",
    ),
    "W1": Row(
        "no adapter, or one without a feature",
        tests="run/webgpu a_machine_without_the_adapter; run/webgpu_features features_are_listed_and_refused_by_name",
    ),
    "W2": Row(
        "tensors larger than a binding",
        tests="run/webgpu a_region_is_no_larger_than_a_binding;"
        " run/webgpu what_is_larger_than_a_binding_is_multiplied_and_looked_up_in_parts",
    ),
    "W3": Row(
        "dispatches beyond the limits of a dimension",
        tests="run/webgpu_attention tiles_have_a_workgroup_s_memory_for_themselves",
    ),
    "W4": Row("no memory for a buffer", tests="run/webgpu_saved a_buffer_that_there_is_no_memory_for"),
    "W5": Row("a device that is lost", tests="run/webgpu a_device_that_is_lost"),
    "W7": Row(
        "indices out of range, which a device clamps",
        tests="run/webgpu an_index_outside_is_an_error; run/webgpu integers_are_checked_where_they_enter",
    ),
    "W8": Row("infinities, NaN and the ends of functions", tests="run/webgpu powers_and_remainders_at_their_ends"),
    "F1": Row(
        "threads that share a session", tests="run/session concurrent_calls_and_contexts; run/pool concurrent_callers"
    ),
    "F2": Row("threads with sessions of their own", tests="run/schedules schedule"),
    "F3": Row(
        "a process that forks after it has threads",
        tests="run/pool forked_children_run; run/schedules forks_while_other_threads_run_and_compile;"
        " llm/llm_threads forks_while_other_threads_generate",
    ),
    "F4": Row("pools of processes", tests="run/pool multiprocessing_by_fork"),
    "F5": Row(
        "Ctrl-C in a long call",
        tests="run/pool a_run_is_stopped_between_two_steps; run/pool a_long_step_is_stopped_on_its_way",
    ),
    "F6": Row("signals and files that an import takes", tests="run/library import_opens_nothing"),
    "F7": Row(
        "a process that is killed at any call of a write",
        tests="run/saved_program killed_at_any_call_the_old_program_or_the_new_one_is_whole;"
        " run/saved_program first_saves_that_are_killed_leave_all_or_nothing; run/faults killed_at_any_call",
    ),
    "F8": Row("calls of the system that fail, each in turn", tests="run/faults any_call_of_the_system_may_fail"),
    "F9": Row("processes that compile one model at once", tests="run/cache processes_share_a_cache"),
    "F10": Row(
        "locks of processes that died",
        tests="run/cache what_a_dead_process_left_is_removed; run/saved_program leftovers_of_any_process_do_not_block",
    ),
    "F11": Row(
        "; entries of the cache that are damaged or of another machine",
        tests="run/cache a_bad_entry_is_as_good_as_none",
    ),
    "F12": Row(
        "a cache that others own or may write",
        tests="run/cache an_entry_of_another_user_is_not_used; run/cache permissions",
    ),
    "F14": Row(
        "a program that is saved while others use it",
        tests="run/saved_program killed_at_any_call_the_old_program_or_the_new_one_is_whole",
    ),
    "F15": Row("a cache without an end", tests="run/cache what_was_used_longest_ago_goes_first"),
    "F16": Row(
        "memory that runs out at any allocation",
        tests="run/faults any_allocation_may_fail; run/interrupts memory_runs_out;"
        " run/library no_run_can_ask_for_memory",
    ),
    "F19": Row(
        "a CPU without an instruction set", tests="run/library forced_isa_that_the_cpu_lacks; run/library garbage_isa"
    ),
    "F20": Row("an interpreter that ends while threads run", tests="run/pool exit_keeps_its_code"),
    "F21": Row("symbols of other libraries", tests="run/library only_entry_points_are_exported"),
    "N1": Row(
        "NaN in each op",
        tests="ops/ops special_values_of_unary_ops; ops/ops special_values_of_binary_ops;"
        " kernels/row_kernels reductions_keep_nan",
    ),
    "N2": Row(
        "infinities in rows, and rows that see nothing",
        tests="ops/masked_rows a_row_that_sees_nothing; ops/masked_rows rows_of_nan",
    ),
    "N3": Row("softmax of extremes", tests="kernels/row_kernels softmax_of_extremes"),
    "N4": Row(
        "subnormal numbers",
        tests="llm/sampling no_share_at_all_is_refused_by_a_host_that_flushes_subnormals; ops/ops edges",
    ),
    "N6": Row("floats that no integer is, in casts", tests="ops/cast what_is_no_number; ops/cast edges"),
    "N7": Row("integers that overflow, and divisions by 0", tests="run/native integer_division_is_total"),
    "N8": Row(
        "the largest sums of 8 bits",
        tests="kernels/kernels_quant largest_sums; kernels/kernels_bytes pairs_of_products_beyond_16_bits",
    ),
    "N9": Row(
        "scales that are tiny or none",
        tests="kernels/kernels_quant rows_that_no_step_fits; ops/blocks scales_that_are_no_numbers",
    ),
    "N10": Row(
        "all numbers of 16 bits",
        tests="kernels/kernels_f16 casts_of_every_number; ops/cast small_numbers_go_from_any_dtype_into_any_other",
    ),
    "N11": Row(
        "products of nothing", tests="ops/sizes sizes; kernels/kernels_linear nan_and_infinity_reach_the_output"
    ),
    "N12": Row("long sums", tests="kernels/row_kernels reductions; kernels/moments rows_without_a_variance"),
    "N14": Row(
        "norms of constant and of large rows",
        tests="kernels/row_kernels layer_norm_far_from_zero; kernels/moments rows_without_a_variance",
    ),
    "N16": Row(
        "logits that are equal, NaN or -inf; a temperature near 0; a share below one token",
        tests="llm/sampling equal_logits; llm/sampling no_token_is_chosen_from_bad_logits; llm/sampling cold_and_hot;"
        " llm/sampling options_outside_their_range",
    ),
    "N17": Row(
        "memory with any bytes in it",
        tests="run/session check_level_three_finds_nothing; emit/checks what_is_dead_is_nan",
    ),
}

# Rows without a test, with the reason.
NOT_COVERED = {
    "L7": "compilers that hang or print without an end: emitted C is compiled by its user",
    "W6": "shaders that fail to compile: the adapter validates each, and `docs/webgpu.md` lists what it refuses",
    "W9": "names in WGSL: no name of a model is written there",
    "W10": "pages that are closed during a read",
    "F13": "libraries that are exchanged before they are loaded: no library is compiled or cached",
    "F17": "limits of memory of a control group",
    "F18": "few files and small stacks",
    "F22": "compilers and flags of the environment: they are trusted",
    "N5": "rounding modes that the host has changed",
    "N13": "functions over all floats: they are sampled (`kernels/kernels unary_ulps`)",
    "N15": "angles at the millionth position: they are sampled",
}

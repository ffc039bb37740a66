# Everything lives in .venv; a stamp file records each finished installation, so that it is not repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet
SOURCES := $(shell find src CMakeLists.txt pyproject.toml -type f -not -name '*.pyc' -not -name '*.so')

.PHONY: demo test test-all bench bench-llm bench-matvec bench-crowding asan tsan soak lint clean

demo: $(VENV)/ingot.stamp
	@$(BIN)/ingot demo

test: lint
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -q -n 2
	INGOT_CHECK=3 $(BIN)/python -m pytest -q -n 2 $(CHECKED_TESTS)

lint: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ingot.stamp $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks

bench-llm: $(VENV)/ingot.stamp $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.llm

bench-matvec: $(VENV)/ingot.stamp $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.matvec

bench-crowding: $(VENV)/ingot.stamp $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.crowding

soak: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(BIN)/python tests/soak.py --count 10000
	$(BIN)/python tests/schedules.py --count 1000
	$(BIN)/python tests/session_interrupts.py
	$(BIN)/python tests/llm_interrupts.py
	$(BIN)/python tests/onnx_survival.py --count 50000
	$(BIN)/python -O tests/onnx_survival.py --count 50000 --start 1000000
	$(BIN)/python -O tests/saved_fuzz.py --count 30000
	$(BIN)/python tests/onnx_differential.py --count 50000

asan: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(call sanitized_build,address$(comma)undefined,asan)
	for program in $(C_TESTS); do $(sanitizer_options) build/asan/$$program || exit 1; done
	$(call preloaded,asan,libasan.so libubsan.so) $(BIN)/python -m pytest -q -m "not slow" $(NATIVE_TESTS)

tsan: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(call sanitized_build,thread,tsan)
	for program in $(C_TESTS); do $(sanitizer_options) build/tsan/$$program || exit 1; done
	$(call preloaded,tsan,libtsan.so) $(BIN)/python -m pytest -q -m "not slow" $(THREAD_TESTS)

clean:
	rm -rf $(VENV) build out

comma := ,

# What runs once more with canaries, NaN-poison and guard pages.
CHECKED_TESTS := tests/test_native.py tests/test_session.py tests/test_whole_models.py tests/test_random_graphs.py \
	tests/test_planned_sizes.py tests/test_llm.py tests/test_llm_templates.py tests/test_llm_threads.py \
	tests/test_templates.py

# What runs under the sanitizers: C programs, and tests that drive the C core without models of torch.
C_TESTS := $(basename $(notdir $(wildcard tests/native/*.c)))
NATIVE_TESTS := $(wildcard tests/test_kernels*.py tests/test_row_kernels.py tests/test_experts.py tests/test_native.py \
	tests/test_pool.py tests/test_planned_sizes.py tests/test_random_graphs.py tests/test_sampling.py) \
	tests/test_llm_threads.py
THREAD_TESTS := tests/test_pool.py tests/test_random_graphs.py tests/test_llm_threads.py tests/test_schedules.py

define sanitized_build
	$(BIN)/cmake -S . -B build/$(2) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_C_COMPILER=gcc \
		-DCMAKE_BUILD_TYPE=Release -DINGOT_SANITIZE=$(1) -DINGOT_NATIVE_TESTS=ON >/dev/null
	$(BIN)/ninja --quiet -C build/$(2)
endef
# Python leaks by design; a child of a process with threads makes threads of its own.
sanitizer_options = ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	TSAN_OPTIONS=halt_on_error=1:die_after_fork=0
preloaded = LD_PRELOAD="$(foreach library,$(2),$(shell gcc -print-file-name=$(library)))" $(sanitizer_options) \
	INGOT_LIBRARY=$(abspath build/$(1))/libingot.so

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ingot.stamp: $(BIN)/python $(SOURCES)
	$(PIP) install ".[llm]"
	@touch $@

# torch goes first and exactly: any other resolution may bring gigabytes of CUDA packages.
$(VENV)/extras.stamp: pyproject.toml | $(BIN)/python $(VENV)/ingot.stamp
	$(PIP) install torch==2.13.0
	$(PIP) install ".[test]"
	@touch $@ $(VENV)/ingot.stamp

# llama-cpp-python comes as source: compiled for this CPU, as a fair opponent must be.
$(VENV)/bench.stamp: pyproject.toml | $(VENV)/extras.stamp
	CMAKE_ARGS="-DGGML_NATIVE=ON" $(PIP) install ".[bench]"
	@touch $@ $(VENV)/ingot.stamp

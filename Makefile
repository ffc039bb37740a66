# Everything lives in .venv; a stamp file records each finished installation, so that it is not repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet
SOURCES := $(shell find src CMakeLists.txt pyproject.toml -type f -not -name '*.pyc' -not -name '*.so')

.PHONY: demo test test-all bench asan tsan soak lint clean

demo: $(VENV)/ingot.stamp
	@$(BIN)/ingot demo

test: lint
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -q -n 2

lint: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ingot.stamp $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks

soak: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	INGOT_SOAK_SEEDS=10000 $(BIN)/python -m pytest -q -n 2 -k differential --timeout 36000

asan: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(call sanitized,address$(comma)undefined,libasan.so libubsan.so)

tsan: $(VENV)/ingot.stamp $(VENV)/extras.stamp
	$(call sanitized,thread,libtsan.so)

clean:
	rm -rf $(VENV) build out

comma := ,

# A sanitizer build of the native library, under the tests that need neither torch nor transformers.
define sanitized
	$(BIN)/cmake -S . -B build/$(firstword $(subst $(comma), ,$(1))) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Release -DINGOT_SANITIZE=$(1) >/dev/null
	$(BIN)/ninja -C build/$(firstword $(subst $(comma), ,$(1)))
	LD_PRELOAD="$(foreach library,$(2),$(shell gcc -print-file-name=$(library)))" \
	ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1 \
	INGOT_LIBRARY=$(abspath build/$(firstword $(subst $(comma), ,$(1))))/libingot.so \
	$(BIN)/python -m pytest -q -m "sanitize and not slow" -p no:cacheprovider
endef

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ingot.stamp: $(BIN)/python $(SOURCES)
	$(PIP) install .
	@touch $@

# torch goes first and exactly: any other resolution may bring gigabytes of CUDA packages.
$(VENV)/extras.stamp: pyproject.toml | $(BIN)/python $(VENV)/ingot.stamp
	$(PIP) install torch==2.13.0
	$(PIP) install ".[test]"
	@touch $@ $(VENV)/ingot.stamp

$(VENV)/bench.stamp: pyproject.toml | $(VENV)/extras.stamp
	$(PIP) install ".[bench]"
	@touch $@ $(VENV)/ingot.stamp

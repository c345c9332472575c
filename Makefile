# Each target creates what it needs. `make demo` and `make test` are all that a newcomer has to know.
TORCH_VERSION ?= 2.13.0
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMPS := build/stamps
export TORCH_DEVICE_BACKEND_AUTOLOAD = 0
export OMP_NUM_THREADS = 1
# Checkouts in different folders share what is compiled already.
export CCACHE_BASEDIR = $(CURDIR)
export CCACHE_NOHASHDIR = 1

CORE_SOURCES := $(shell find src include cmake -name '*.cpp' -o -name '*.h' -o -name '*.txt' -o -name '*.cmake' 2>/dev/null)
EMULATOR_SOURCES := $(shell find emulator -name '*.cpp' -o -name '*.h' -o -name '*.txt' -o -name '*.toml' -o -name '*.py' 2>/dev/null)
CPP := include src tests benchmarks emulator/src

.PHONY: demo test test-long lint tidy format bench bench-schedule clean install check-versions cpp-test packages

demo: install ## Train MobileNetV2 over four ranks on three kinds of devices, and check the result
	$(PY) examples/demo.py

test: install cpp-test ## Everything but the long tests
	$(VENV)/bin/pytest tests/python -m "not long" -q

test-long: install $(STAMPS)/packages ## The long tests: sanitizers, more random cases, network namespaces, a thousand groups
	cmake --workflow --preset asan-ubsan
	cmake --workflow --preset tsan
	cmake --preset dev && cmake --build --preset dev
	ctest --test-dir build/dev -L long --output-on-failure --no-tests=error
	$(VENV)/bin/pytest tests/python -m long -q

cpp-test: $(STAMPS)/packages
	cmake --workflow --preset dev

lint: install ## Formatters, ruff, mypy
	scripts/lint.sh

tidy: $(STAMPS)/packages ## clang-tidy over the core
	cmake --preset tidy && cmake --build --preset tidy

format: $(STAMPS)/venv
	git ls-files $(CPP) | grep -E '\.(cpp|h)$$' | xargs $(VENV)/bin/clang-format -i
	$(VENV)/bin/ruff format python emulator tests examples benchmarks
	$(VENV)/bin/ruff check --fix python emulator tests examples benchmarks

bench: install $(STAMPS)/packages
	cmake --preset bench && cmake --build --preset bench
	scripts/bench.sh

bench-schedule: install $(STAMPS)/packages ## The scheduler against its targets on emulated devices (90 minutes; fails if one is not met)
	cmake --preset bench && cmake --build --preset bench --target solver_benchmark
	$(PY) benchmarks/scheduling

check-versions: ## The shim compiles against the oldest torch that is supported
	scripts/check_versions.sh 2.11.0

install: $(STAMPS)/kaitian $(STAMPS)/emulator

packages: $(STAMPS)/packages

# Debian packages that tests, benchmarks and the demo's data need; the demo goes on without them.
$(STAMPS)/packages: scripts/packages.sh
	@mkdir -p $(STAMPS)
	scripts/packages.sh
	@touch $@

$(STAMPS)/venv: requirements-dev.txt
	@mkdir -p $(STAMPS)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -c 'import torch' 2>/dev/null || $(PY) -m pip install -q torch==$(TORCH_VERSION) numpy
	$(PY) -m pip install -q -r requirements-dev.txt
	@touch $@

$(STAMPS)/kaitian: $(STAMPS)/venv $(STAMPS)/packages $(CORE_SOURCES) pyproject.toml CMakeLists.txt VERSION
	$(PY) -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

$(STAMPS)/emulator: $(STAMPS)/venv $(STAMPS)/packages $(EMULATOR_SOURCES)
	$(PY) -m pip install -q --no-build-isolation --no-deps -e ./emulator
	@touch $@

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache

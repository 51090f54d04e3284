# make compare   set up, then run every method on the built-in data
# make test      set up, then check style and types and run the tests
# make help      the rest

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup compare test lint format test-slow test-cifar benchmark benchmark-distributed reproduce clean

help:  ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with everything needed to develop

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch -e '.[dev]'
	@touch $@

compare: $(READY)  ## every method on the built-in data: a table, a plot, a page
	$(BIN)/prlc compare

test: lint  ## style, types and tests
	$(BIN)/pytest -n $$((2 * $$(nproc)))  # many tests wait for processes

lint: $(READY)  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-slow: $(READY)  ## what is exhaustive, or takes half a minute by itself
	$(BIN)/pytest -m slow

test-cifar: $(READY)  ## tests on the real CIFAR-10 (PRLC_DATA_DIR names its folder); minutes
	$(BIN)/pytest -m cifar

benchmark: $(READY)  ## speed of the simulator and of checkpoints, as ratios
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/checkpoints.py

benchmark-distributed: $(READY)  ## speed of the engine in real processes, as ratios; parts need root
	$(BIN)/python benchmarks/distributed.py
	$(BIN)/python benchmarks/own_script.py

reproduce: $(READY)  ## the paper's figures at quick scale (PRLC_DATA_DIR names CIFAR-10's folder)
	$(BIN)/prlc reproduce all --scale quick

clean:  ## remove the virtual environment and caches; runs stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# make demo: lower a real model onto two devices.  make test: all that CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS ?= 2

.PHONY: demo test lint types layers unit doctest docs bench fuzz clean

demo: $(VENV)/.demo
	$(BIN)/fxpasses lower --check --out lowered

# What takes one core goes two at a time; the tests take both.
test: $(VENV)/.dev
	$(MAKE) --jobs 2 types docs lint layers doctest
	$(MAKE) unit

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch comes first and alone, at its pinned version: any other resolution may pull gigabytes of CUDA packages.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(PIP) torch
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) --editable '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -W error -n 2 --dist worksteal

doctest: $(VENV)/.dev
	$(BIN)/python -m pytest -W error -q --doctest-modules fxpasses

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

bench: $(VENV)/.dev
	$(PIP) --editable '.[bench]'
	$(BIN)/python -m benchmarks

fuzz: $(VENV)/.dev
	FXPASSES_FUZZ=20 $(BIN)/python -m pytest -W error -n 2 --dist worksteal

clean:
	rm -rf $(VENV) docs/_build lowered .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

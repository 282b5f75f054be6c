# `make demo` and `make test` need nothing but Python 3.10+ and the package registry.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit spec golden clean

help:
	@echo "make demo    judge an embedded engine over real ZeroMQ, and print the report"
	@echo "make test    lint, types and all tests"
	@echo "make lint | types | unit"
	@echo "make spec    write spec/dialects/ from the registry"
	@echo "make golden  write golden/ (a frozen suite never changes)"

$(VENV)/.made: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "kvwire needs Python 3.10 or later; try make PYTHON=python3.12 …"; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made
	@echo "Installing kvwire[conform] into $(VENV) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[conform]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made
	@echo "Installing kvwire[dev] into $(VENV) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[conform,hash,dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	@$(BIN)/kvwire-conform demo

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --durations=12

spec: $(VENV)/.dev
	$(BIN)/python -m kvwire_conform.spec_pages

golden: $(VENV)/.dev
	$(BIN)/python -m kvwire_conform.golden_build

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

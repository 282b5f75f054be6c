# `make demo` and `make test` need nothing but Python 3.10+ and the package registry.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit spec golden testees matrix matrix-check bench bench-quick clean

help:
	@echo "make demo    judge an embedded engine over real ZeroMQ, and print the report"
	@echo "make test    lint, types and all tests"
	@echo "make lint | types | unit"
	@echo "make spec    write spec/dialects/ from the registry"
	@echo "make golden  write golden/ (a frozen suite never changes)"
	@echo "make testees        build the testees that this machine has the tools for"
	@echo "make matrix         judge every consumer, and write docs/matrix.* (a few minutes)"
	@echo "make matrix-check   the same, compared with what is there"
	@echo "make bench          measure against the peers, and write docs/benchmarks.* (a few minutes)"
	@echo "make bench-quick    only see that the benchmarks run"

$(VENV)/.made: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "kvwire needs Python 3.10 or later; try make PYTHON=python3.12 …"; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

COMPILED := hatch_build.py $(wildcard kvwire/_ext/*.c)

$(VENV)/.demo: $(VENV)/.made $(COMPILED)
	@echo "Installing kvwire[conform] into $(VENV) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[conform]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(COMPILED)
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

testees: $(VENV)/.dev
	@$(BIN)/python -m kvwire_conform.testees build

matrix: $(VENV)/.dev
	$(BIN)/kvwire-conform matrix --out docs --summary README.md

matrix-check: $(VENV)/.dev
	$(BIN)/kvwire-conform matrix --out docs --check

$(VENV)/.bench: $(VENV)/.dev
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/.bench
	$(BIN)/python -m benchmarks --quick

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

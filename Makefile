# gpuhost: `make demo` rolls a kernel upgrade in the lab, `make test` runs every test that needs no GPU.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help install install-test system demo test test-full checks docs lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## .venv with the gpuhost command in it

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) tools/system_packages.py --python
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --editable .
	touch $@

install-test: $(VENV)/.installed-test

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[test]'
	$(BIN)/python tools/install_torch.py
	touch $@

system: ## the Debian packages that the lab needs; says which command needs root
	@$(PYTHON) tools/system_packages.py

demo: install system ## roll a real kernel upgrade over one lab machine and leave a report
	$(BIN)/python tools/demo.py

test: install-test system ## every test that needs no GPU
	$(BIN)/python tools/run_tests.py

test-full: install-test system ## the long tests too: every trial of docs/test-matrix.md, measuring, 10,000 examples; about three hours
	$(BIN)/python tools/run_tests.py --full

lint: install-test ## linters and types only
	$(BIN)/python tools/run_tests.py --only lint

checks: install ## build/gpu_checks.pyz, the same bytes for the same sources
	$(BIN)/python -m gpu_checks.build_zipapp --output build/gpu_checks.pyz

docs: install ## the pages that are generated from the code
	$(BIN)/python -m gpuhost_cli.docs

clean: ## what was built here; not the cached lab image
	rm -rf build .mypy_cache .ruff_cache .pytest_cache

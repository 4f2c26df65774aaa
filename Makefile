# Every target sets up .venv when it is missing; all that is needed is Python >= 3.11 with venv, and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

# One target's output at a time under `make -j`, where make can do it.
ifneq ($(filter output-sync,$(.FEATURES)),)
MAKEFLAGS += --output-sync=target
endif

# A virtual environment holds absolute paths: the stamp names its folder, and a moved one is set up anew.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.DEFAULT_GOAL := help
.PHONY: run test proof check lint types arrows bench golden docs clean help

run: $(STAMP)  ## plan the 768-accelerator example
	@$(BIN)/hetplan search clusters/hethub-768.yaml models/llama-140b.yaml

test: $(STAMP)  ## run the tests
	@$(BIN)/pytest -q -n auto --dist loadfile

proof: $(STAMP)  ## run the long proofs
	@HETPLAN_PROOF=1 $(BIN)/pytest -q -n auto tests -m proof

check: lint types arrows test  ## all that must pass before a change goes in

lint: $(STAMP)  ## style
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

types: $(STAMP)  ## mypy
	@$(BIN)/mypy

arrows: $(STAMP)  ## which room may import which
	@$(BIN)/lint-imports --no-logo

bench: $(STAMP)  ## time whole searches of the example clusters
	@$(BIN)/python -m benchmarks

golden: $(STAMP)  ## rewrite the golden files; review the difference
	@HETPLAN_UPDATE_GOLDEN=1 $(BIN)/pytest -q tests/report

docs: $(STAMP)  ## rewrite the generated pages
	@$(BIN)/python docs/generate.py

clean:  ## remove the environment and all caches
	@rm -rf $(VENV) build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F '|' '{ printf "make %-8s %s\n", $$1, $$2 }'

# Messages go to stderr: the output of `make run` is the plan.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hetplan needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "setting up $(VENV), once" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]' >&2
	@echo '$(CURDIR)' > $@

# Every target installs what it needs into $(VENV) first; a second call installs nothing.
PYTHON ?= python3
VENV ?= .venv
# Releases of transformers for `make test-versions`, each with a file in constraints/;
# "newest" is the environment of `make test`.
VERSIONS ?= 4.57 5.5 newest
# What of the tests speaks to transformers and is run under every release.
VERSION_TESTS ?= $(wildcard tests/equivalence tests/unit)
# Tiny models: one thread per process and a process per core beats threads within one operation.
WORKERS ?= 2
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)
INPUTS := pyproject.toml constraints/ci.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-real test-versions check format docs bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/\1:/p' $(MAKEFILE_LIST)

setup: $(VENV)/.installed-dev  ## install the package and all development tools into .venv

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(INPUTS) | $(BIN)/python
	$(PIP) -e . -c constraints/ci.txt
	@touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	$(PIP) -e '.[dev]' -c constraints/ci.txt
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed  ## install, then decode a batch with the embedded demo models
	$(BIN)/draftproof demo

test: $(VENV)/.installed-dev  ## install, then run the quick tests
	$(PYTEST)

test-real: $(VENV)/.installed-dev  ## the tests on real weights (DRAFTPROOF_MODELS names their folder)
	OMP_NUM_THREADS= $(BIN)/python -m pytest -m real_model $(PYTEST_ARGS)

check: $(VENV)/.installed-dev  ## lint, formatting, types, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet

format: $(VENV)/.installed-dev  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev  ## regenerate the command-line reference and build the site into site/
	$(BIN)/python scripts/generate_cli_docs.py docs/cli.md
	$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev  ## the short form of the throughput benchmark
	$(BIN)/draftproof bench throughput

test-versions: $(VERSIONS:%=test-version-%)  ## quick tests under each supported transformers release

test-version-newest: $(VENV)/.installed-dev
	$(PYTEST) $(VERSION_TESTS)

test-version-%: .venvs/transformers-%/.installed
	OMP_NUM_THREADS=1 .venvs/transformers-$*/bin/python -m pytest -n $(WORKERS) $(VERSION_TESTS)

.venvs/transformers-%/.installed: $(INPUTS) constraints/transformers-%.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -e '.[test]' -c constraints/ci.txt -c constraints/transformers-$*.txt
	@touch $@

clean:  ## remove environments, caches and the built site
	rm -rf .venv .venvs site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Every target installs what it needs into $(VENV) first; a second call installs nothing.
PYTHON ?= python3
VENV ?= .venv
# One environment per older release of transformers.
VENVS ?= .venvs
# Releases for `make test-versions`, each with a file in constraints/; "newest" is $(VENV) itself.
VERSIONS ?= 4.57 5.5 newest
# What of the tests speaks to transformers and is run under every release.
VERSION_TESTS ?= tests/equivalence/test_architectures.py tests/equivalence/test_rows.py
# What is run once without anything that PyTorch keeps private (numerics/torch_private.py).
FALLBACK_TESTS ?= tests/equivalence/test_rows.py tests/equivalence/test_exact.py \
  tests/unit/test_packed_weights.py tests/equivalence/test_openvino.py::test_an_architecture[llama]
# Tiny models: a process per core with one thread each beats threads inside one operation.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(CORES)
PYTEST_ARGS ?=

BIN := $(VENV)/bin
# --no-compile: most modules of torch are never imported; those that are get compiled then.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
QUICK := -m pytest -n $(WORKERS) $(PYTEST_ARGS)
# What pip may install; another file, with another VENV, tests other releases.
CONSTRAINTS ?= constraints/ci.txt
INPUTS := pyproject.toml $(CONSTRAINTS)

export OMP_NUM_THREADS ?= 1
# Keeps a note about the future of the site's theme out of every build's output.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fallbacks test-wheel coverage test-real test-versions test-newest soak mutants selftest selftest-generated check format docs bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/\1:/p' $(MAKEFILE_LIST)

setup: $(VENV)/.installed-dev  ## install the package and all development tools into .venv

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(INPUTS) | $(BIN)/python
	$(BIN)/python $(INSTALL) -e . -c $(CONSTRAINTS)
	@touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	$(BIN)/python $(INSTALL) -e '.[dev]' -c $(CONSTRAINTS)
	@touch $(VENV)/.installed $@

demo: OMP_NUM_THREADS := $(CORES)
demo: $(VENV)/.installed  ## install, then decode a batch with the embedded demo models
	$(BIN)/draftproof demo

test: $(VENV)/.installed-dev  ## install, then run the quick tests
	$(BIN)/python $(QUICK)

test-fallbacks: $(VENV)/.installed-dev  ## tests of what carries on without private operators
	DRAFTPROOF_WITHOUT=all $(BIN)/python $(QUICK) $(FALLBACK_TESTS)

coverage: $(VENV)/.installed-dev  ## the quick tests, and which lines they never run (htmlcov/index.html)
	$(BIN)/python $(QUICK) --cov=draftproof --cov-report=term:skip-covered --cov-report=html

test-wheel: | $(BIN)/python  ## build the wheel, install it into a clean environment, run the demo there
	rm -rf dist build/wheel-test
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/wheel-test
	build/wheel-test/bin/python $(INSTALL) dist/*.whl
	cd build && env -u PYTHONPATH wheel-test/bin/draftproof demo

test-real: OMP_NUM_THREADS := $(CORES)
test-real: $(VENV)/.installed-dev  ## the tests on real weights (DRAFTPROOF_MODELS names their folder)
	$(BIN)/python -m pytest -m real_model $(PYTEST_ARGS)

soak: $(VENV)/.installed-dev  ## random traffic against transformers' own generate (SOAK_ARGS="--requests 5000")
	$(BIN)/python -m draftproof.testing.soak $(SOAK_ARGS)

mutants: $(VENV)/.installed-dev  ## small faults in a copy of the source, each of which tests or soak must notice
	$(BIN)/python scripts/mutants.py

selftest: $(VENV)/.installed-dev  ## inject every known fault and see that the forensics name it
	$(BIN)/draftproof forensics-selftest --quick

selftest-generated: $(VENV)/.installed-dev  ## examine faults drawn at random, and correct configurations
	$(BIN)/draftproof forensics-selftest --generated 132 --seed 0 --held-out --correct 400

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

bench: OMP_NUM_THREADS := $(CORES)
bench: $(VENV)/.installed-dev  ## the short form of the throughput benchmark
	$(BIN)/draftproof bench throughput --quick --output bench-throughput

test-versions: $(VERSIONS:%=test-%)  ## the tests that speak to transformers, under each release

test-newest: $(VENV)/.installed-dev
	$(BIN)/python $(QUICK) $(VERSION_TESTS)

test-%: $(VENVS)/transformers-%/.installed
	$(VENVS)/transformers-$*/bin/python $(QUICK) $(VERSION_TESTS)

# An older release has its own transformers with all that transformers needs; the rest, torch above
# all, is $(VENV)'s, which a .pth file puts behind. It is written last, so that pip does not see it.
.PRECIOUS: $(VENVS)/transformers-%/.installed
$(VENVS)/transformers-%/.installed: constraints/transformers-%.txt $(VENV)/.installed-dev
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) transformers -c $(CONSTRAINTS) -c $<
	behind=$$($(abspath $(BIN))/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  echo "import site; site.addsitedir('$$behind')" > \
	  $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/behind.pth
	$(@D)/bin/python -c "import torch, transformers, draftproof; print('transformers', transformers.__version__)"
	@touch $@

clean:  ## remove environments, caches and the built site
	rm -rf .venv .venvs site build dist htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

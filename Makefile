# Two commands are enough on a machine with Python 3.11+: `make demo` and `make test`. The first call makes the virtual
# environment and installs pinned packages; later calls install nothing unless pyproject.toml or constraints.txt changed.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3 || echo python3)
VENV   ?= .venv
BIN     = $(VENV)/bin
ARGS   ?=

DEMO_READY = $(VENV)/.installed-demo
DEV_READY  = $(VENV)/.installed-dev
PINNED     = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test quick check lint types format bench docs clean

help: ## say what there is to make
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

demo: $(DEMO_READY) ## install, and watch a small model get better at a dozen domains (ARGS="--seed 1")
	$(BIN)/busrl demo $(ARGS)

test: $(DEV_READY) ## install, and run every test (ARGS="-k server")
	$(BIN)/python -m pytest $(ARGS)

quick: $(DEV_READY) ## run the tests that start no whole run
	$(BIN)/python -m pytest -m "not e2e" $(ARGS)

check: lint types ## formatting, lint and types

lint: $(DEV_READY) ## formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV_READY) ## types
	$(BIN)/mypy

format: $(DEV_READY) ## put the formatting right
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(DEMO_READY) ## the figures of the README (ARGS="codec")
	$(BIN)/busrl bench $(ARGS)

docs: $(DEV_READY) ## make docs/reference from the code
	$(BIN)/python -m ops.reference

clean: ## remove what tools left behind; the virtual environment and runs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'error: Python 3.11 or newer is needed; name one with make PYTHON=...' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# setuptools comes first and is pinned too, so that nothing is built with packages that nobody chose.
$(DEMO_READY): pyproject.toml constraints.txt | $(BIN)/python
	$(PINNED) setuptools wheel
	@command -v cc >/dev/null || echo 'warning: no C compiler; if pycosat (of reasoning-gym) can not be built, install one' >&2
	$(PINNED) --no-build-isolation --editable '.[demo]'
	@touch $@

$(DEV_READY): pyproject.toml constraints.txt | $(BIN)/python
	$(PINNED) setuptools wheel
	@command -v cc >/dev/null || echo 'warning: no C compiler; if pycosat (of reasoning-gym) can not be built, install one' >&2
	$(PINNED) --no-build-isolation --editable '.[dev]'
	@touch $@ $(DEMO_READY)

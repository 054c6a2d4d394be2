# Everything happens in .venv, which make creates and keeps up to date. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
CHAOS_CYCLES ?= 100

# A stamp is newer than what it was installed from, or the installation is repeated.
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
SOURCES := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test lint types layers coverage pytest bench chaos format lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | sort | expand -t 12

run: $(INSTALLED) ## the demo: engine, flaky workers, live table (ARGS=--once ends after the summary)
	$(BIN)/counterfoil demo $(ARGS)

test: lint types layers coverage ## everything that CI checks

lint: $(INSTALLED_DEV) ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED_DEV) ## mypy, strict
	$(BIN)/mypy

layers: $(INSTALLED_DEV) ## who may import whom
	$(BIN)/lint-imports

coverage: $(INSTALLED_DEV) ## all tests, with at least 95 % of domain and engine covered
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=
	$(BIN)/coverage report --include='src/counterfoil/domain/*,src/counterfoil/engine/*' --fail-under=95

pytest: $(INSTALLED_DEV) ## some tests: make pytest ARGS="tests/unit -k settings"
	$(BIN)/pytest $(ARGS)

bench: $(INSTALLED_DEV) ## the ratios of docs/reference/benchmarks.md
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(INSTALLED_DEV) ## nodes killed, paused and cut off, a database out of reach for a minute: make chaos CHAOS_CYCLES=500 (some seconds each)
	CHAOS_CYCLES=$(CHAOS_CYCLES) OUTAGE_SECONDS=60 $(BIN)/pytest tests/acceptance -m chaos --timeout=0 -s $(ARGS)

format: $(INSTALLED_DEV) ## put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(INSTALLED_DEV) ## renew constraints.txt: the newest versions that pyproject.toml allows
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --extra dev \
		--no-header --no-annotate --no-emit-index-url pyproject.toml --output-file constraints.txt

clean: ## remove the virtual environment and what the tools left
	rm -rf $(VENV) dist build htmlcov .coverage .coverage.* .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache .schemathesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "No virtual environment: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }

$(INSTALLED): $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(INSTALLED_DEV): $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(INSTALLED) $@

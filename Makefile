# Everything happens in .venv, which make creates and keeps up to date. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
CHAOS_CYCLES ?= 100
FUZZ_REQUESTS ?= 100000
FUZZ_SECONDS ?= 60
PROPERTY_EXAMPLES ?= 150

# Two processes more than the two cores that the tests are made for: many tests wait for what takes real time.
SPREAD := -n 4 --dist worksteal
# What runs side by side is printed in one piece each, if this make can do that.
TOGETHER := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# Tests start hundreds of processes, and each would compile all sources if none were allowed to keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

# The seed of make fuzz and make chaos, drawn once for the whole run unless it is given: make fuzz SEED=123
SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
override SEED := $(SEED)

# A stamp is newer than what it was installed from, or the installation is repeated.
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
AUDIT := .venv-audit
INSTALLED_AUDIT := $(AUDIT)/.installed
RUNTIME := build/runtime
INSTALLED_RUNTIME := $(RUNTIME)/.installed
SBOM := build/counterfoil.cdx.json
SOURCES := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test check static unit lint types layers coverage pytest bench clients chaos fuzz audit format lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | sort | expand -t 12

run: $(INSTALLED) ## the demo: engine, flaky workers, live table (ARGS=--once ends after the summary)
	$(BIN)/counterfoil demo $(ARGS)

# The types are checked beside the tests, and what is wrong with them is told at the end, where it is seen.
test: lint layers ## everything that CI checks
	@mkdir -p build
	@$(MAKE) --no-print-directory types >build/types.txt 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory coverage; tests=$$?; \
	wait $$types; types=$$?; cat build/types.txt; exit $$((tests + types))

check: $(INSTALLED_DEV) ## lint, types, layers and the unit tests, side by side: a minute, for the inner loop
	@$(MAKE) --no-print-directory --keep-going --jobs=2 $(TOGETHER) static unit

static: lint types layers

unit: $(INSTALLED_DEV)
	$(BIN)/pytest -q $(SPREAD) --durations=20 tests/unit

lint: $(INSTALLED_DEV) ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED_DEV) ## mypy, strict
	$(BIN)/mypy

layers: $(INSTALLED_DEV) ## check which layers import which
	$(BIN)/lint-imports

coverage: $(INSTALLED_DEV) ## all tests, with at least 95 % of domain and engine covered
	$(BIN)/pytest $(SPREAD) --durations=20 --cov --cov-report=
	$(BIN)/coverage report --include='src/counterfoil/domain/*,src/counterfoil/engine/*' --fail-under=95

pytest: $(INSTALLED_DEV) ## some tests: make pytest ARGS="tests/unit -k settings"
	$(BIN)/pytest $(ARGS)

bench: $(INSTALLED_DEV) ## the ratios of docs/reference/benchmarks.md
	$(BIN)/python -m benchmarks $(ARGS)

clients: $(INSTALLED_DEV) ## try every client, and write the table of docs/reference/clients.md
	$(BIN)/pytest -q $(SPREAD) -m client --clients-page=docs/reference/clients.md $(ARGS)

chaos: $(INSTALLED_DEV) ## nodes killed, paused and cut off, a database out of reach for a minute: make chaos CHAOS_CYCLES=500 SEED=123
	@echo "the same again: make chaos SEED=$(SEED)"
	TEST_SEED=$(SEED) CHAOS_CYCLES=$(CHAOS_CYCLES) OUTAGE_SECONDS=60 \
		$(BIN)/pytest tests/acceptance -m chaos --timeout=0 -s $(ARGS)

fuzz: $(INSTALLED_DEV) ## hostile requests and other examples of every property, by a random seed: make fuzz FUZZ_REQUESTS=20000 SEED=123
	@echo "the same again: make fuzz SEED=$(SEED)"
	TEST_SEED=$(SEED) FUZZ_REQUESTS=$(FUZZ_REQUESTS) FUZZ_SECONDS=$(FUZZ_SECONDS) PROPERTY_EXAMPLES=$(PROPERTY_EXAMPLES) \
		$(BIN)/pytest -m "fuzz or hypothesis" --hypothesis-seed=$(SEED) --timeout=0 -s $(ARGS)

audit: $(INSTALLED_DEV) $(INSTALLED_AUDIT) $(INSTALLED_RUNTIME) ## licences and known vulnerabilities of what is installed, and an SBOM in build/
	$(BIN)/python -m tests.audit.licences
	$(AUDIT)/bin/python -m tests.audit.advisories constraints.txt
	$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
		--output-format JSON --output-file $(SBOM) $(RUNTIME)/bin/python
	@echo "$(SBOM): CycloneDX, of an installation of counterfoil[postgres]"

format: $(INSTALLED_DEV) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url

# The tools of make audit are left out on purpose: what they check does not depend on them, and they should be the newest.
# The clients of others (extra compat) come second: what they need never holds back a version that the engine runs with.
lock: $(INSTALLED_DEV) ## renew constraints.txt: the newest versions that pyproject.toml allows
	$(BIN)/pip install --quiet uv
	@mkdir -p build
	$(BIN)/$(COMPILE) --upgrade --extra dev pyproject.toml --output-file build/constraints-dev.txt
	$(BIN)/$(COMPILE) --upgrade --extra dev --extra compat --constraint build/constraints-dev.txt \
		pyproject.toml --output-file constraints.txt

clean: ## remove the virtual environment and what the tools left
	rm -rf $(VENV) $(AUDIT) dist build htmlcov .coverage .coverage.* .hypothesis .import_linter_cache
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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,compat]'
	@touch $(INSTALLED) $@

# The tools have an environment of their own, so that what they look at holds only what the project needs.
$(INSTALLED_AUDIT): pyproject.toml | $(BIN)/python
	@$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python -c \
		'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["audit"])')
	@touch $@

$(INSTALLED_RUNTIME): $(SOURCES) | $(BIN)/python
	@rm -rf $(RUNTIME)
	@$(PYTHON) -m venv --without-pip $(RUNTIME)
	$(BIN)/python -m pip --python $(RUNTIME)/bin/python install --quiet --disable-pip-version-check \
		-c constraints.txt '.[postgres]'
	@touch $@

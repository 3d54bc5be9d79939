# Two commands matter: `make run` and `make test`. Nothing but Python >= 3.11 has to be there.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# More than cores: tests of leases and deadlines mostly wait.
JOBS ?= 4
# Where an environment forbids bytecode, each of the thousand processes that the tests start would compile all of it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-matrix test-pythons survival faults check format clean bench bench-peers

run: $(VENV)/.installed-dev ## the demo: embedded PostgreSQL, three workers, API and dashboard, traffic, a kill button
	$(BIN)/leasehold demo

test: $(VENV)/.installed-test ## every test, on the embedded PostgreSQL
	$(BIN)/python -m pytest -n $(JOBS)

test-matrix: $(VENV)/.installed-test ## the tests that touch a database, on each other PostgreSQL that is here
	$(BIN)/python tests/matrix.py -n $(JOBS) $(MATRIX)

test-pythons: $(VENV)/.installed-test ## every test, on each other Python that is here (PYTHONS=--quick: some, on the newest)
	$(BIN)/python tests/pythons.py -n $(JOBS) $(PYTHONS)

survival: $(VENV)/.installed-test ## the survival tests with their full counts: half an hour
	LEASEHOLD_SURVIVAL=full $(BIN)/python -m pytest tests/survival tests/worker tests/db tests/sql/test_limits_races.py tests/schedules/test_day.py tests/http/test_fleet.py tests/http/test_schemathesis.py tests/http/test_away.py tests/faults/test_mutants.py tests/sql/test_verify.py tests/interleavings tests/deploys tests/web --timeout 3600

bench: $(VENV)/.installed-test ## every figure of docs/performance.md: a quarter of an hour (BENCH="--only drain --no-peers")
	$(BIN)/python -m bench $(BENCH)

bench-peers: $(VENV)/.installed-test ## the queues that Leasehold is compared with, into bench/.peers
	$(BIN)/python -m bench --install-peers

faults: $(VENV)/.installed-test ## every fault scenario with its full counts, each judged by the checker: an hour and a half
	$(BIN)/python -m faults $(FAULTS)

check: $(VENV)/.installed-test ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Leasehold needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.13 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.installed-dev

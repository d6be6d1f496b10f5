PYTHON ?= python3
VENV ?= .venv
STORE ?= sqlite
MINUTES ?= 10
SEEDS ?= 10000
TIMEOUTS ?= 20000
ARGS ?=
CASES ?= not thorough
DJANGOS ?=

PY := $(VENV)/bin/python

# The tests start thousands of processes; each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-django test test-all test-django check bench chaos pins clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  PYTHON=python3.13 chooses the interpreter, VENV=folder another environment, ARGS=... is passed on.'

demo: $(VENV)/.stamp-run ## run the example: enqueue, perform, look (no server needed)
	$(PY) examples/demo.py $(ARGS)

demo-django: .venv-demo-django/.stamp-django ## run the example of a Django site: its server, a worker, orders through a view
	.venv-demo-django/bin/python examples/django_demo.py $(ARGS)

test: $(VENV)/.stamp-dev ## run the whole test suite
	@scripts/install-for-tests || test -z "$$CI"
	$(PY) -m pytest -n 2 --dist worksteal -m '$(CASES)' $(ARGS)
	@test -n "$(ARGS)" || VENV='$(VENV)' scripts/test-django $(DJANGOS) -q

test-django: $(VENV)/.stamp-dev ## run the tests of the Django part alone: each Django once, on SQLite or PostgreSQL
	@scripts/install-for-tests || test -z "$$CI"
	VENV='$(VENV)' scripts/test-django $(DJANGOS) $(ARGS)

test-all: ## run the whole test suite, every case of it, on every supported Python found here
	@found=; for version in 3.11 3.12 3.13 3.14; do \
	    if ! python$$version -c '' 2>/dev/null; then echo "Python $$version: not found"; continue; fi; \
	    echo "Python $$version:"; found=yes; \
	    $(MAKE) --no-print-directory test CASES= DJANGOS=all PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	done; test -n "$$found"

check: $(VENV)/.stamp-dev ## format, lint, types and the fast tests, in under a minute
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow" $(ARGS)

bench: $(VENV)/.stamp-dev ## measure: make bench STORE=sqlite ARGS=--json, or STORE=postgres
	$(PY) -m bench --store $(STORE) $(ARGS)

chaos: $(VENV)/.stamp-dev ## simulate, then do harm to real workers: make chaos STORE=sqlite MINUTES=10 SEEDS=10000 TIMEOUTS=20000
	$(PY) -m simulation --seeds $(SEEDS) --processes 2
	$(PY) -m chaos.timeouts --store $(STORE) --count $(TIMEOUTS)
	$(PY) -m chaos --store $(STORE) --minutes $(MINUTES) $(ARGS)

pins: $(VENV)/.stamp-run ## bring requirements/dev.txt up to date
	$(PY) -m pip install --quiet --upgrade --target $(VENV)/uv uv
	$(VENV)/uv/bin/uv pip compile --quiet --system-certs --no-python-downloads --python $(PY) \
	    --universal --python-version 3.11 --upgrade --no-annotate --custom-compile-command 'make pins' \
	    --group dev --group bench pyproject.toml --output-file requirements/dev.txt

clean: ## remove environments, caches and build products
	rm -rf .venv .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-run: pyproject.toml scripts/bootstrap
	PYTHON='$(PYTHON)' VENV='$(VENV)' scripts/bootstrap run

$(VENV)/.stamp-dev: pyproject.toml scripts/bootstrap requirements/dev.txt
	PYTHON='$(PYTHON)' VENV='$(VENV)' scripts/bootstrap dev

.venv-demo-django/.stamp-django: pyproject.toml scripts/bootstrap
	PYTHON='$(PYTHON)' VENV=.venv-demo-django scripts/bootstrap django

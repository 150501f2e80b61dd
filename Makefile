# `make help` lists the targets. ARGS passes options on: make run ARGS="--port 8080", make test ARGS="-k claim".

PYTHON ?= python3
ARGS ?=
VENV := .venv
# Relative, so that the checkout's own path may hold spaces.
VENV_PYTHON := $(VENV)/bin/python
# Django 6 wants a newer Python: the first one that runs, of the commands and of pyenv's versions.
PYTHON_NEXT ?= $(shell for next in python3.14 python3.13 python3.12 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; \
	do "$$next" -c 'import venv' >/dev/null 2>&1 && { echo "$$next"; break; }; done)
VENV_NEXT := var/venv-next
# Beside requirements.txt: what it is compiled from, and the pins of the tests and of Django 6.
PINS := tests/requirements
# Debian's python3 makes environments with pip only beside its package python3-venv; its pip can install into any.
PIP_INSTALL = if $(VENV_PYTHON) -m pip --version >/dev/null 2>&1; then pip="$(VENV_PYTHON) -m pip"; \
	else pip="$(PYTHON) -m pip --python $(VENV_PYTHON)"; fi; \
	$$pip install --quiet --disable-pip-version-check --require-hashes --requirement
# A fifth of pip's time. Where it finds no registry, pip installs what it did not.
UV_INSTALL = $(VENV_PYTHON) -m uv pip install --quiet --require-hashes
PIN = $(VENV_PYTHON) -m uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header
# Three processes of tests, each with a PostgreSQL of its own: most tests wait for others. A process that a hung test took
# along is started again, twice. tests/conftest.py orders the files. ARGS="-n 0" for one process.
SPREAD = -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 2
# Where an image turns bytecode off, each of the many processes that tests start would compile all modules again.
WITH_BYTECODE = env -u PYTHONDONTWRITEBYTECODE
# A site as it is deployed; only its settings are looked at.
DEPLOYED = DATABASE_URL=postgres:///rowlock HTTPS=1 \
	SECRET_KEY="$$($(VENV_PYTHON) -c 'import secrets; print(secrets.token_urlsafe(50))')"

.DEFAULT_GOAL := help
.PHONY: help run test testnext lint chaos soak bench pins clean python

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1: /p' Makefile | while IFS=: read -r name what; do printf '%-9s%s\n' "$$name" "$$what"; done

# Started through the launcher, `up` ends with make, however that ends.
run: $(VENV)/run.stamp ## start PostgreSQL, a worker and the web server, until Ctrl-C
	@exec $(VENV_PYTHON) dashboard/processes.py $$PPID 15 "" $(VENV_PYTHON) manage.py up $(ARGS)

test: $(VENV)/test.stamp ## run all tests against a real PostgreSQL, and those of the queue on Django 6 too
	$(WITH_BYTECODE) $(VENV_PYTHON) -m pytest $(SPREAD) $(ARGS)
	@if [ -n "$(PYTHON_NEXT)" ]; then $(MAKE) --no-print-directory testnext; \
	else echo "Django 6 was not tested: no Python 3.12 or newer was found. Name one: make test PYTHON_NEXT=python3.13"; fi

# The pages are opened and their buttons pressed on each Django by tests/own_admin. What Django can change of the queue:
# declarations, models, operations, commands, a worker (commands/test_commands_with_workers.py) and each strategy
# (queue/test_claims_rest.py). It has no part in plans of statements, ends of sessions and processes, named locks, what a
# terminal shows, and the tables of other queues.
TASKS_NEXT = $(addprefix tests/tasks/,admin commands diagnosis framework models operations queue/test_claims_rest.py) \
	$(wildcard tests/tasks/test_*.py)
SAME_ON_ANY = test_whole_statements.py $(addprefix commands/test_commands_,help.py terminal.py)

testnext: $(VENV_NEXT)/stamp ## the tests of the queue that Django can change, on Django 6
	$(WITH_BYTECODE) $(VENV_NEXT)/bin/python -m pytest $(SPREAD) tests/conformance $(TASKS_NEXT) \
		$(addprefix --ignore=tests/tasks/,$(SAME_ON_ANY)) $(ARGS)

lint: $(VENV)/test.stamp ## ruff, mypy, bandit, missing migrations, deployment checks
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(DEPLOYED) $(VENV_PYTHON) -m mypy
	$(VENV_PYTHON) -m bandit --quiet --configfile pyproject.toml --recursive .
	$(VENV_PYTHON) -W error manage.py makemigrations --check --dry-run
	$(DEPLOYED) $(VENV_PYTHON) -W error manage.py check --deploy --fail-level WARNING

chaos: $(VENV)/test.stamp ## the long drills of kills, freezes and outages, into docs/reliability.md
	$(VENV_PYTHON) -m pytest -m chaos -o faulthandler_timeout=0 $(ARGS)

soak: $(VENV)/test.stamp ## an hour of load beside an open transaction, into docs/reliability.md
	$(VENV_PYTHON) -m tests.chaos.soak $(ARGS)

bench: $(VENV)/test.stamp ## Rowlock beside its peers, into docs/benchmarks.md
	$(VENV_PYTHON) -m tests.benchmarks $(ARGS)

pins: $(VENV)/test.stamp ## compile tests/requirements/*.in into pins with hashes
	$(PIN) --python-version 3.11 $(PINS)/run.in --output-file requirements.txt
	$(PIN) --python-version 3.11 $(PINS)/test.in --output-file $(PINS)/test.txt
	$(PIN) --python-version 3.12 $(PINS)/next.in --output-file $(PINS)/next.txt
	$(PIN) --python-version 3.12 $(PINS)/test-next.in --output-file $(PINS)/test-next.txt
	$(PIN) --python-version 3.11 $(PINS)/importing.in --output-file $(PINS)/importing.txt
	$(PIN) --python-version 3.12 $(PINS)/django-6.0.in --output-file $(PINS)/django-6.0.txt
	$(PIN) --python-version 3.11 tests/benchmarks/peers/requirements.in --output-file tests/benchmarks/peers/requirements.txt

clean: python ## remove .venv and var/, unless the server runs
	@$(PYTHON) -m dashboard.embedded
	rm -rf $(VENV) var

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Rowlock needs Python 3.11 or newer, \
	and $(PYTHON) is not. Name another one: make PYTHON=python3.12" >&2; exit 1; }

$(VENV_PYTHON): | python
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || $(PYTHON) -m venv --clear --without-pip $(VENV)

$(VENV)/run.stamp: requirements.txt | $(VENV_PYTHON)
	@echo "Installing requirements.txt into $(VENV)"
	@$(PIP_INSTALL) requirements.txt
	@touch $@

$(VENV_NEXT)/stamp: $(PINS)/next.txt $(PINS)/test-next.txt | $(VENV)/test.stamp
	@echo "Installing $(PINS)/next.txt into $(VENV_NEXT)"
	@"$(PYTHON_NEXT)" -m venv --clear $(VENV_NEXT)
	@pins="--requirement $(PINS)/next.txt --requirement $(PINS)/test-next.txt"; \
	$(UV_INSTALL) --python $(VENV_NEXT)/bin/python $$pins || \
	$(VENV_NEXT)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes $$pins
	@touch $@

$(VENV)/test.stamp: $(PINS)/test.txt $(VENV)/run.stamp
	@echo "Installing $(PINS)/test.txt into $(VENV)"
	@sed -n '/^uv==/,/# via/p' $(PINS)/test.txt >$(VENV)/uv.txt
	@$(PIP_INSTALL) $(VENV)/uv.txt
	@$(UV_INSTALL) --python $(VENV_PYTHON) --requirement $(PINS)/test.txt || { $(PIP_INSTALL) $(PINS)/test.txt; }
	@touch $@

# Needs Python 3.11 or newer and make; everything else comes into .venv, from requirements/*.lock.
# An interpreter of your choice: make install PYTHON=/path/to/python3

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links $(ARGS)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo run serve test pictures fuzz clients frameworks check docs accuracy reports gpu-check bench fit lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

install: .venv/run.stamp ## .venv with the command .venv/bin/slowtok

demo: .venv/demo.stamp ## a real engine, a real model, real slowdowns, each diagnosed; ARGS=--serve keeps it up
	$(BIN)/slowtok demo $(ARGS)

run: .venv/run.stamp ## the proxy; ARGS="--upstream http://127.0.0.1:8080"
	$(BIN)/slowtok serve $(ARGS)

serve: run

test: .venv/dev.stamp ## the tests; ARGS="-m 'not engine'" without a real engine, ARGS="-m long" what takes longest
ifeq ($(strip $(ARGS)),)
	$(BIN)/python -m pytest -m "not engine" --numprocesses 2 --dist loadfile
	$(BIN)/python -m pytest -m "engine and not long" -rs # one after the other: an engine takes all cores
else
	$(BIN)/python -m pytest $(ARGS)
endif

pictures: .venv/dev.stamp ## the pictures of the documentation, with a real engine and Chromium
	PYTHONPATH=tests $(BIN)/python -m pictures

fuzz: .venv/dev.stamp ## bytes of any kind against the relay and its readers, minutes of it; FUZZ=1200 tries
	FUZZ=$(or $(FUZZ),1200) $(BIN)/python -m pytest tests/security/test_fuzz_relay.py tests/security/test_fuzz_edge.py tests/security/test_fuzz_readers.py $(ARGS)

clients: .venv/clients.stamp .venv/node.stamp ## the client libraries of tests/clients; make test skips what is not there

frameworks: .venv/crewai.stamp .venv/llama-index.stamp ## CrewAI and LlamaIndex for tests/clients, each in an environment of its own (1 GB)

check: .venv/dev.stamp ## lint, format, types, directions of imports, spelling, known vulnerabilities where a database can be reached
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/codespell
	@PYTHONPATH=tests $(BIN)/python -m security.audit

docs: .venv/dev.stamp ## docs/causes.md, docs/settings.md and the table of causes from the code, and the explained request
	$(BIN)/python -m slowtok.detectors.docs
	TZ=UTC $(BIN)/python -m slowtok.proxy.cli.docs

accuracy: .venv/dev.stamp ## how often the diagnosis is right; ARGS=--write puts it into docs/accuracy.md
	PYTHONPATH=tests $(BIN)/python -m accuracy $(ARGS)

reports: .venv/dev.stamp ## cases from reports of users, and what is said of them in docs/accuracy.md
	PYTHONPATH=tests $(BIN)/python -m cases.build_reports
	PYTHONPATH=tests $(BIN)/python -m cases.table --write

gpu-check: .venv/dev.stamp ## what only a machine with an NVIDIA GPU can show, into a file to send in; LLAMA_SERVER=... MODEL=...
	PYTHONPATH=tests $(BIN)/python -m gpu_check

bench: .venv/dev.stamp ## what the proxy costs, into docs/performance.md; ARGS=--quick only prints
	PYTHONPATH=tests $(BIN)/python -m bench $(ARGS)

fit: .venv/dev.stamp ## constants of the envelope, config/efficiency.toml, from published measurements
	$(BIN)/python -m fit

lock: .venv/dev.stamp ## requirements/*.lock from pyproject.toml; ARGS=--upgrade takes newer versions
	$(COMPILE) pyproject.toml --extra demo --extra mcp --extra otel --extra postgresql --extra redis --group clients -o requirements/clients.lock
	$(COMPILE) pyproject.toml --extra demo --extra mcp --extra otel --extra postgresql --extra redis --group dev -c requirements/clients.lock -o requirements/dev.lock
	$(COMPILE) pyproject.toml --extra demo -c requirements/dev.lock -o requirements/demo.lock
	$(COMPILE) pyproject.toml -c requirements/dev.lock -o requirements/run.lock
	$(COMPILE) pyproject.toml --extra otel --extra postgresql --extra redis -c requirements/dev.lock -o requirements/image.lock
	$(COMPILE) --group build -c requirements/dev.lock -o requirements/build.lock
	$(COMPILE) --group crewai -o requirements/crewai.lock
	$(COMPILE) --group llama-index -o requirements/llama-index.lock

clean: ## remove .venv and whatever else is not source
	rm -rf .venv .dev build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.NOTPARALLEL: # two installs at once into one .venv would disturb each other

# One rule makes .venv/run.stamp, demo.stamp, dev.stamp and clients.stamp: each lock holds all of the
# smaller one, so they share one .venv.
.venv/%.stamp: requirements/%.lock requirements/build.lock pyproject.toml hatch_build.py | $(BIN)/python
	@echo "Installing requirements/$*.lock and slowtok into .venv ..."
	@$(PIP) install --require-hashes -r requirements/build.lock -r requirements/$*.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/node.stamp: tests/clients/node/package-lock.json | $(BIN)/python
	@mkdir -p .venv/node && cp tests/clients/node/package*.json tests/clients/node/.npmrc .venv/node
	@if command -v npm >/dev/null && npm ci --prefix .venv/node --no-audit --no-fund --loglevel=error; then touch $@; \
	else rm -rf .venv/node/node_modules; echo "no npm, or no package from it: the tests of Node's client will be skipped"; fi

# Frameworks whose dependencies clash with the others' have an environment each, as node has a folder.
.venv/crewai.stamp .venv/llama-index.stamp: .venv/%.stamp: requirements/%.lock | $(BIN)/python
	@echo "Installing requirements/$*.lock into .venv/$* ..."
	@$(BIN)/python -m venv --clear --without-pip .venv/$*
	@$(PIP) --python .venv/$* install --require-hashes -r requirements/$*.lock
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "slowtok needs Python 3.11 or newer: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("slowtok needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

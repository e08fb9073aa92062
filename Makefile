# Each target makes its own set-up: a fresh machine needs Python ≥ 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
WORKERS ?= 3

.PHONY: setup demo test soak chaos check fix lock \
	bench-run bench-prompt bench-start bench-worker bench-tree bench-flood bench-day

setup: $(VENV)/.ready
demo: $(VENV)/.ready            ## the whole system against the simulator; ARGS="--runs 3"
	@$(BIN)/fleet-agent demo $(ARGS)

test: $(VENV)/.dev              ## every test but those of `make soak`; ARGS="tests/story -k rent"
	@$(BIN)/python -m pytest -q -n $(WORKERS) --no-loadscope-reorder $(ARGS)

soak: $(VENV)/.dev              ## the tests that take long: deaths, outages, both workers; ARGS="-k wake"
	@PATIENCE=$${PATIENCE:-2} $(BIN)/python -m pytest -v -p no:randomly -m soak --tb=short --durations=20 -n $(WORKERS) --no-loadscope-reorder $(ARGS)

chaos: $(VENV)/.dev             ## every case of the chaos suite, as one line of JSON; ARGS='--every 10'
	@$(BIN)/python -m tests.chaos --workers $(WORKERS) $(ARGS)

check: $(VENV)/.dev             ## format, lint, types, import contract; no tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-cache

fix: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench-run: $(VENV)/.dev         ## one run without model and provider time, as one line of JSON
	@$(BIN)/python -m tests.benchmarks.run

bench-prompt: $(VENV)/.dev      ## reading and composing a prompt after 100,000 runs, as one line of JSON
	@$(BIN)/python -m tests.benchmarks.prompt

bench-start: $(VENV)/.dev       ## from the commit of an event to the first line of its run, as one line of JSON
	@$(BIN)/python -m tests.benchmarks.start

bench-worker: $(VENV)/.dev      ## the worker's memory over 200 runs, and the tree's idle CPU, as one line of JSON
	@$(BIN)/python -m tests.benchmarks.worker

bench-tree: $(VENV)/.dev        ## memory of each process, and run-now to the first line, as one line of JSON
	@$(BIN)/python -m tests.benchmarks.tree

bench-flood: $(VENV)/.dev       ## how long runs wait while a thousand posts a second come in, as one line of JSON
	@$(BIN)/python -m tests.benchmarks.flood

bench-day: $(VENV)/.dev         ## what a day costs and what comes too late, by who decides, as a table and one line of JSON
	@$(BIN)/python -m tests.benchmarks.day

$(VENV)/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed, this is " + sys.version.split()[0] + " → make PYTHON=python3.11")'
	@echo "Installing into $(VENV) (about a minute) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.ready requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.txt
	@touch $@

lock:                           ## compile the lock files anew; needs uv
	uv pip compile pyproject.toml --extra build --extra counting --universal --generate-hashes --python-version 3.11 --no-header -q -o requirements.txt
	uv pip compile pyproject.toml --extra build --extra counting --extra dev --universal --generate-hashes --python-version 3.11 --no-header -q -c requirements.txt -o requirements-dev.txt

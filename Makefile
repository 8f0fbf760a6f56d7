# Defines the commands of the project. `make run` and `make test` install all they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HOSTS := tests/end_to_end/test_hosts.py
TORCH := torch==2.13.0+cpu
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore=$(HOSTS)
export OMP_NUM_THREADS ?= 1

.PHONY: help run test test-all test-failed hosts chaos soak models shape check format bench docs install lock clean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(READY)  ## train the demo model end to end on this machine
	$(BIN)/olmorl-launch deploy/recipes/demo.toml

test: $(READY)  ## run the tests, with real vLLM, DeepSpeed, Ray and Redis (about 12 minutes)
	$(PYTEST) -m "not slow"

test-all: $(READY)  ## run the slow tests too, as CI does
	$(PYTEST)

test-failed: $(READY)  ## run the tests that failed last time, one at a time
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures=none

hosts: $(READY)  ## real engines on four hosts made of network namespaces, with broken links (needs root on Linux)
	$(BIN)/python -m pytest $(HOSTS)

chaos: $(READY)  ## hundreds of faults on simulated runs, dozens on real engines; results under benchmarks/results
	$(BIN)/python -m tests.chaos simulated --faults 300 --json benchmarks/results/chaos_simulated.json
	$(BIN)/python -m tests.chaos real --faults 35 --json benchmarks/results/chaos_real.json
	$(BIN)/python -m tests.chaos hosts --faults 21 --json benchmarks/results/chaos_hosts.json

soak: $(READY)  ## run the demo for an hour with a fault every minute
	$(BIN)/python -m tests.chaos soak --json benchmarks/results/soak.json

models: $(READY)  ## compare learner and engine on every family of models; the table is in docs/models.md
	$(BIN)/python -m tests.models --json benchmarks/results/models.json

shape: $(READY)  ## count files per folder, attributes per class and files per code path; no limits
	$(BIN)/python -m tests.shape

check: $(READY)  ## run ruff and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## run all benchmarks; results under benchmarks/results
	for name in data_plane learner_efficiency actor_efficiency verifiers stragglers control_plane; do \
	    $(BIN)/python benchmarks/$$name.py --json benchmarks/results/$$name.json || exit 1; done

docs: $(READY)  ## write docs/configuration.md from the code
	$(BIN)/python -m olmorl.reference > docs/configuration.md

install: $(READY)  ## set up .venv

# Install CPU torch first, from pip's default index or else from PyTorch's CPU index. Then install the lock file.
$(READY): requirements/cpu.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else "OlmoRL needs Python 3.11 or 3.12, this is %d.%d: try make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-deps "$(TORCH)" \
	    || $(BIN)/pip install --quiet --no-deps --index-url https://download.pytorch.org/whl/cpu "$(TORCH)"
	grep -v '^deepspeed==' requirements/cpu.lock > $(VENV)/wheels.txt
	$(BIN)/pip install --quiet --no-deps -r $(VENV)/wheels.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation $$(grep '^deepspeed==' requirements/cpu.lock)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

lock:  ## resolve requirements/cpu.in into requirements/cpu.lock (needs uv)
	uv pip compile --quiet requirements/cpu.in --override requirements/overrides.txt --python-version 3.11 \
	    --python-platform x86_64-manylinux_2_28 --no-annotate --no-header \
	    | grep -vE '^(torch|triton|nvidia|cuda)[-a-z0-9]*==' > requirements/cpu.lock

clean:  ## remove .venv and the caches of the tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info

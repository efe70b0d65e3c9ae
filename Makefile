# `make help` lists the targets. Every target that needs the environment sets it up first.

PYTHON  ?= python3
TABLE   ?= 5
FIGURE  ?= 9
PROFILE ?= laptop

VENV := .venv
RUN  := $(VENV)/bin/python
PIP  := $(RUN) -m pip --disable-pip-version-check

# The stamp carries the content of what it was made from, not its date: a clone or a touch changes nothing, and a fresh
# stamp means that no package index is asked, so everything works offline.
KEY   := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.ready-$(KEY)
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

EXPERIMENT = table$(if $(filter 1 2 3 4 5 6 7 8 9,$(TABLE)),0)$(TABLE)
TABLES     = $(patsubst 0%,%,$(patsubst configs/experiment/table%.yaml,%,$(wildcard configs/experiment/table*.yaml)))
PROFILES   = $(patsubst configs/profile/%.yaml,%,$(wildcard configs/profile/*.yaml))

.DEFAULT_GOAL := help
.PHONY: help setup fetch reproduce-table reproduce-figure tables figures claims parity bench test test-slow lint clean check-profile

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  settings: TABLE=$(TABLE) FIGURE=$(FIGURE) PROFILE=$(PROFILE) PYTHON=$(PYTHON)"

setup: $(STAMP) ## make the environment in .venv (once; nothing is asked of the network afterwards)

$(STAMP):
	@command -v $(PYTHON) >/dev/null 2>&1 && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than Python 3.11; install one, or name it: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(RUN) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	  || $(PYTHON) -m venv --clear $(VENV) 2>/dev/null \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(RUN) install pip; } \
	  || { echo "cannot make $(VENV): $(PYTHON) has neither ensurepip nor pip (on Debian: install python3-venv)" >&2; exit 1; }
# torch comes first and by its exact version: a range would let pip fetch a newer build with gigabytes of GPU libraries.
	$(PIP) install "torch==$(TORCH)"
	$(PIP) install -c constraints.txt -e ".[dev]"
	@rm -f $(VENV)/.ready-*
	@touch $@

fetch: setup ## fetch and convert the embedded model (once)
	$(RUN) -m inertia.backbones fetch smollm2-135m

check-profile:
	@case " $(PROFILES) " in *" $(PROFILE) "*) ;; *) echo "no profile '$(PROFILE)'; allowed: $(sort $(PROFILES))" >&2; exit 2;; esac

# What is run here is reported below results/local; `tables`, `figures` and `claims` rewrite the committed files.
reproduce-table: check-profile ## run what table TABLE needs at PROFILE, print ours beside the paper's
	@test -f "configs/experiment/$(EXPERIMENT).yaml" || { echo "no experiment for table '$(TABLE)'; allowed: $(TABLES)" >&2; exit 2; }
	@$(MAKE) --no-print-directory fetch
	$(RUN) -m inertia -m experiment=$(EXPERIMENT) profile=$(PROFILE)
	$(RUN) -m inertia.report table $(TABLE) --profile $(PROFILE) --source runs

reproduce-figure: check-profile setup ## run what figure FIGURE needs at PROFILE, draw it
	@$(RUN) -m inertia.report needs figure $(FIGURE) >/dev/null
	@$(MAKE) --no-print-directory fetch
	$(RUN) -m inertia -m experiment=$$($(RUN) -m inertia.report needs figure $(FIGURE)) profile=$(PROFILE)
	$(RUN) -m inertia.report figure $(FIGURE) --profile $(PROFILE) --source runs

tables: setup ## rebuild every table from the published records (no model needed)
	$(RUN) -m inertia.report tables --source published

figures: setup ## rebuild every figure from the published records (no model needed)
	$(RUN) -m inertia.report figures --source published

claims: setup ## decide every claim from the published records (no model needed)
	$(RUN) -m inertia.report claims --source published

parity: setup ## compare with kvpress 0.5.5, live, in an environment of its own
	HF_HUB_OFFLINE=1 $(RUN) scripts/parity.py

bench: fetch ## measure decode steps as ratios, ours, plain and kvpress's (options: BENCH="--quick --no-kvpress")
	HF_HUB_OFFLINE=1 $(RUN) scripts/bench_decode.py $(BENCH)

test: setup ## run the fast tests (offline)
	HF_HUB_OFFLINE=1 $(RUN) -m pytest

test-slow: fetch ## run the slow tests (embedded model, notebook, wheel; offline)
	HF_HUB_OFFLINE=1 $(RUN) -m pytest -m slow

lint: setup ## check style and docstrings
	$(RUN) -m ruff check .

clean: ## remove the environment and tool caches; results stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A fresh machine needs Python >= 3.10 with venv, and make: each target first makes .venv.
# Where packages come from (index, proxy, a CPU build of torch) is pip's own configuration.
PYTHON ?= python3
ARGS ?=
# Some tests wait for processes that they started, so three workers for two cores.
NUM_CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
NUM_WORKERS = $(shell echo $$(( ($(NUM_CORES) * 3 + 1) / 2 )))
WORKERS ?= --numprocesses $(NUM_WORKERS) --maxprocesses 8 --dist loadscope --no-loadscope-reorder

VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := .venv-frameworks
OLDEST := .venv-oldest
GPU := .venv-gpu
# What needs the agent's dependencies; no torch, which most of the guest's tests (and a demo) need.
CORE := $(addprefix tests/unit/,web exporters facts alerting node/logs catalogue attach deploy agent/test_config.py) \
	$(addprefix tests/integration/,test_cli.py test_assets.py test_backtest.py test_imports.py)
INPUTS := pyproject.toml constraints.txt dfx_agent/attach/dfx_agent.pth
# Python compiles what is imported; pip would compile all, which is half of its time.
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

# Tests start many processes that import torch, which takes twice as long from uncompiled files.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-gpu test-frameworks test-oldest check policy page generate docs bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo ## train a tiny GRPO model on 4 ranks and watch it in the browser (ARGS="--ranks 2")
	$(BIN)/dfx-agent demo $(ARGS)

test: $(VENV)/.test ## run what is pure, and a smoke test of each capability (ARGS="tests/unit/wire -k ring")
	@sh tests/install_servers.sh
	$(BIN)/pytest $(WORKERS) --durations 20 -m "not slow" $(ARGS)

# Slow tests wait most of the time.
test-all: NUM_WORKERS = $(shell echo $$(( $(NUM_CORES) * 2 )))
test-all: $(VENV)/.test ## run every test (ARGS="-m slow": only what `make test` leaves out)
	@sh tests/install_servers.sh
	$(BIN)/pytest $(WORKERS) --durations 20 $(ARGS)

test-frameworks: $(FRAMEWORKS)/.test ## run the tests against real RL frameworks, in an environment of their own
	$(FRAMEWORKS)/bin/pytest -W default tests/frameworks $(ARGS)

test-gpu: $(GPU)/.test ## run what needs a CUDA device, with the torch of this machine, and show a table
	$(GPU)/bin/python -m pytest tests/gpu $(ARGS)

test-oldest: $(OLDEST)/.test ## run the core of the suite with the oldest dependencies that are allowed
	$(OLDEST)/bin/pytest $(WORKERS) $(CORE) --deselect 'tests/integration/test_cli.py::test_taken_port_that_was_asked_for_is_one_line[demo]' $(ARGS)

check: $(VENV)/.dev ## ruff, mypy, import contracts, policy tests, the page's scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest --quiet tests/policy
	@$(BIN)/python -m bench.sentences_page | cmp -s - docs/reference/sentences.md || \
		{ echo "docs/reference/sentences.md is stale: run \`make generate\`"; exit 1; }
	@$(BIN)/python tests/policy/sizes.py
	@sh tests/page/check.sh

policy: $(VENV)/.test ## only the policy tests: imports, sizes, names, docs
	$(BIN)/pytest --quiet tests/policy

page: ## only the page's scripts: linter, types, unit tests; skipped, and said, where Node is not
	@sh tests/page/check.sh

generate: $(VENV)/.test ## write what is generated: pages of metrics, sentences, runbook and figures, boards, rules
	$(BIN)/python -m bench.metrics_page > $(VENV)/metrics.md
	mv $(VENV)/metrics.md docs/metrics.md
	$(BIN)/python -m bench.frameworks_page > $(VENV)/by_framework.md
	mv $(VENV)/by_framework.md docs/reference/metrics-by-framework.md
	$(BIN)/python -m bench.sentences_page > $(VENV)/sentences.md
	mv $(VENV)/sentences.md docs/reference/sentences.md
	$(BIN)/python -m bench.figures > $(VENV)/figures.md
	mv $(VENV)/figures.md docs/figures.md
	$(BIN)/python -m dashboards.build
	$(BIN)/python -m alert_rules.build

docs: $(VENV)/.docs ## build the site of docs/ into dist/site; a broken link or anchor fails (Python 3.11)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.test ## measure what the guest and the agent cost; writes bench/results.json
	$(BIN)/python -m bench $(ARGS)

clean: ## remove the environment, caches and what tests left
	rm -rf $(VENV) $(FRAMEWORKS) $(OLDEST) $(GPU) dist tests/artifacts tests/page/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here: install Python 3.10 or newer (Debian: apt-get install python3-venv) or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: $$($(PYTHON) --version) is too old, Python 3.10 or newer is needed; name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make environments; Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.created $(INPUTS)
	@echo "make: installing dfx-agent and torch into $(VENV), once; 1 to 3 minutes where packages are near"
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.created $(INPUTS)
	$(INSTALL) --editable '.[test,demo]'
	@touch $@

$(VENV)/.docs: $(VENV)/.created $(INPUTS)
	$(INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/.dev: $(VENV)/.created $(INPUTS)
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.test $(VENV)/.demo

$(FRAMEWORKS)/.test: $(VENV)/.created $(INPUTS) constraints-frameworks.txt $(wildcard tests/frameworks/requirements-*.txt)
	test -x $(FRAMEWORKS)/bin/pip || $(BIN)/python -m venv $(FRAMEWORKS)
	sh tests/frameworks/install.sh $(FRAMEWORKS)/bin/pip
	@touch $@

# The torch that fits the device is the machine's own; only where there is none one is installed.
$(GPU)/.test: $(INPUTS)
	test -x $(GPU)/bin/pip || $(PYTHON) -m venv --system-site-packages $(GPU)
	$(GPU)/bin/python -c 'import torch' 2>/dev/null || $(GPU)/bin/pip install --quiet --disable-pip-version-check torch numpy
	$(GPU)/bin/pip install --quiet --disable-pip-version-check --no-compile hypothesis pytest pytest-rerunfailures pytest-timeout --editable .
	@touch $@

# The tools of the tests are today's: only what users install is old.
$(OLDEST)/.test: $(VENV)/.created $(INPUTS) constraints-oldest.txt
	test -x $(OLDEST)/bin/pip || $(BIN)/python -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt \
		hatchling hypothesis pytest pytest-rerunfailures pytest-timeout pytest-xdist
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints-oldest.txt \
		--editable '.[tensorboard]'
	@touch $@

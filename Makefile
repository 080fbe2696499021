# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# `make demo` and `make test` do all their set-up themselves; `make help` tells the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
# A file of tests shares one lab, so files are what is spread over the cores; more than four labs at once gain nothing.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help demo test setup lint unit integration molecule matrix torch bench bench-artifacts build clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo:  ## a training job's whole life on a rented box, in the lab, in two minutes
	@tools/bootstrap.sh demo
	@$(BIN)/python -m lab.demo

# All parts run, whichever fails; pytest's own summary comes last.
test: setup  ## lint, one molecule scenario, unit and integration tests
	@$(BIN)/nox -s lint molecule; others=$$?; $(PYTEST) tests/unit tests/integration && exit $$others

setup:  ## only the virtual environment and the system tools that make test needs
	@tools/bootstrap.sh test

lint unit integration molecule: setup  ## one part of make test
	@$(BIN)/nox -s $@

matrix: setup  ## unit tests and a slice of integration on ansible-core 2.19 and 2.21, on each Python that is here
	@$(BIN)/nox -s matrix

torch: setup  ## the artifact tests on files that PyTorch and others wrote (a large download)
	@$(BIN)/nox -s torch

bench: setup  ## speed as ratios, measured side by side, into tests/bench/results/
	@$(BIN)/nox -s bench

bench-artifacts: bench

build: setup  ## the archive that ansible-galaxy installs, in build/
	@$(BIN)/nox -s build

clean:  ## remove what make made: the environment, caches and archives (results/ and ledgers stay)
	rm -rf .venv .bootstrap.lock .nox .cache .ansible .molecule .demo build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -not -path './.collections/*' -exec rm -rf {} +

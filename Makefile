# Everything a fresh machine with Python 3.11 needs: `make demo` and `make test` set up .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
TRAINING := $(addprefix tests/,networks training spaces algorithms engines)

.PHONY: help setup demo test avx2 docs lint format clean

help:  ## say what there is
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: .venv/installed  ## make .venv with the tested versions of everything

.venv/installed: pyproject.toml constraints.txt
	@echo "Setting up .venv (a minute or two, once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch .venv/installed

demo: setup  ## compare local training, FedAvg, PerFedRLNAS, PerFedSDE-NAS and SPIDER on digits, in under three minutes
	@$(BIN)/fedtailor demo

test: lint  ## check style and types, run all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

avx2: setup  ## run the tests that train once more, as on a processor without AVX-512
	ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -n 2 --dist worksteal $(TRAINING)

docs: .venv/installed-docs  ## build the site of README, docs and results in build/docs/html
	$(BIN)/python -m docs.site.stage build/docs
	cd build/docs && ../../$(BIN)/zensical build --strict --clean
	$(BIN)/python -m docs.site.check build/docs/html
	@echo "Look at it: $(BIN)/python -m http.server -d build/docs/html"

.venv/installed-docs: .venv/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch .venv/installed-docs

lint: setup  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error

format: setup  ## put the code into its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## delete the environment and all caches
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis

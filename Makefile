# Every command of this project. Each target works on a fresh Debian 12 with only python3.11, make and a C/C++ compiler:
# tools/bootstrap.sh makes .venv the first time and finds it ready afterwards.

PORT ?= 8000
HOST ?= 127.0.0.1
MODEL ?= smollm2
ENGINES ?= 1
MINUTES ?= 20
PEERS ?=
CURVE ?=
ROWS ?=
RUNS ?= 3
IMAGE ?= roundhouse
BUILDER ?= $(shell command -v docker || command -v podman || command -v buildah)
IMAGE_FLAGS ?=

BIN := .venv/bin
fuzz: MINUTES := $(if $(filter file,$(origin MINUTES)),10,$(MINUTES))
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# Ends the server with its make, even when that is killed outright: no orphan keeps the port.
TIED := $(shell command -v setpriv >/dev/null 2>&1 && echo setpriv --pdeathsig TERM)

.DEFAULT_GOAL := help
.PHONY: help serve test check bench soak chaos fuzz image lint types unit clean venv venv-dev
MAKEFLAGS += --no-print-directory

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | \
	    while IFS="$$(printf '\t')" read -r name text; do printf '  make %-8s %s\n' "$$name" "$$text"; done

serve: venv ## Serve MODEL=smollm2 on HOST=127.0.0.1 PORT=8000 with ENGINES=1 local engines
	@exec $(TIED) $(BIN)/roundhouse serve '$(MODEL)' --port '$(PORT)' --host '$(HOST)' --engines '$(ENGINES)'

test: lint types ## Run the whole test suite, after the quick gates of `check`
	$(BIN)/pytest

check: lint types unit ## Run the quick gates: ruff, import-linter, pyright, unit tests

bench: venv-dev ## Measure everything: one table and build/bench.json; PEERS=1 adds vLLM and llama.cpp, ROWS=pattern chooses
	@exec $(BIN)/python -m tests.bench.run --runs='$(RUNS)' --rows='$(ROWS)' $(if $(filter 1,$(PEERS)),--peers)

soak: venv-dev ## Load a server for MINUTES=20 with clients of every manner, and check that nothing is left of them
	$(BIN)/python -m tests.soak.run --minutes '$(MINUTES)' --engines '$(ENGINES)' --model '$(MODEL)'

chaos: venv-dev ## Kill, freeze, cut and restart engines and frontends under load for MINUTES=20, and check that no stream notices; CURVE=1 changes keys too
	$(BIN)/python -m tests.chaos.run --minutes '$(MINUTES)' $(if $(filter 1,$(CURVE)),--curve)

fuzz: venv-dev ## Feed every decoder inputs made to break it for MINUTES=10; what breaks one is kept in build/fuzz
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
	    $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt atheris || \
	    echo 'roundhouse: atheris cannot be installed here, so that the search goes on without coverage' >&2
	@$(BIN)/python -m tests.fuzz.run --minutes '$(MINUTES)'

image: ## Build the image IMAGE=roundhouse with docker, podman or buildah
	@test -n '$(BUILDER)' || { echo 'roundhouse: make image needs docker, podman or buildah' >&2; exit 1; }
	$(BUILDER) build $(if $(findstring docker,$(BUILDER)),,--format docker) -t '$(IMAGE)' \
	    --build-arg VERSION="$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" \
	    --build-arg REVISION="$$(git rev-parse HEAD 2>/dev/null)" $(IMAGE_FLAGS) .

clean: ## Remove .venv, build products and caches in this folder (converted models in the user's cache stay)
	rm -rf .venv build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools -name '*.egg-info' -prune -exec rm -rf {} + -o -name __pycache__ -prune -exec rm -rf {} +

lint: venv-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: venv-dev
	$(BIN)/pyright

unit: venv-dev
	$(BIN)/pytest $(wildcard tests/unit tests/golden)

venv:
	@tools/bootstrap.sh serve

venv-dev:
	@tools/bootstrap.sh dev

# The only entry point: people, .ci/run and the README call these targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install system install-service uninstall-service demo test soak lint format docs docs-check dashboards dashboards-check manifests previews bench golden image image-test clean

help: ## What each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-17s %s\n", $$1, $$2}'

system: ## Debian/Ubuntu packages, once (root or passwordless sudo; otherwise the apt line is named)
	@deploy/setup/system-packages

$(VENV)/.runtime: requirements.txt pyproject.toml | system
	@deploy/setup/check-python $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

install: $(VENV)/.dev ## Build .venv with the exporter in it

# Not one of ours: a service cannot see a home folder. `make install-service PYTHON=…` names another.
install-service: PYTHON := /usr/bin/python3
install-service: ## Run it as a systemd service (root; DESTDIR, PREFIX, PYTHON); docs/systemd.md
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" PYTHON="$(PYTHON)" deploy/setup/install-service

uninstall-service: ## Undo that; PURGE=1 removes configuration and reading positions, too
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" PURGE="$(PURGE)" deploy/setup/install-service --undo

demo: $(VENV)/.dev ## Run the exporter against an embedded PP8 server: http://127.0.0.1:10810
	$(BIN)/sglang-pipeline-exporter demo

# Workers: more than cores, since many tests wait for a running exporter. A file stays on one worker
# (its fixtures start servers), and the order is that of tests/conftest.py.
test: $(VENV)/.dev ## All tests, under 10 minutes
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not soak"

soak: $(VENV)/.dev ## The full counts an issue names; prints tables for docs/measurements.md
	$(BIN)/python -m pytest -m soak -s --timeout=0

lint: $(VENV)/.dev ## ruff, mypy strict, import-linter, codespell, yamllint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy deploy/kubernetes/build_manifests.py
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/yamllint .

format: $(VENV)/.dev ## Let ruff write the code's shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## Rewrite the generated parts of the docs
	$(BIN)/cog -r README.md docs/*.md docs/runbooks/README.md

docs-check: $(VENV)/.dev ## Fail if a generated part of the docs is stale
	$(BIN)/cog --check README.md docs/*.md docs/runbooks/README.md

dashboards: $(VENV)/.dev ## Rewrite grafana/dashboards from the code that builds them
	$(BIN)/python -m grafana.build_dashboards

dashboards-check: $(VENV)/.dev ## Fail if a dashboard is not what the code builds
	$(BIN)/python -m grafana.build_dashboards --check

manifests: $(VENV)/.dev ## Rewrite what is generated in deploy/kubernetes (a test holds it)
	$(BIN)/python deploy/kubernetes/build_manifests.py

previews: $(VENV)/.dev ## Draw docs/images from live demos (12 minutes; needs Debian's chromium)
	$(BIN)/python -m bench.page_previews --output docs/images
	$(BIN)/python -m bench.previews --output docs/images

bench: $(VENV)/.dev ## The exporter beside its peers: a table of ratios (20 minutes; QUICK=--quick: one)
	$(BIN)/python -m bench.host_rows --output docs/images $(QUICK)

golden: $(VENV)/.dev ## Rewrite expected files; review the diff like code
	$(BIN)/python -m pytest -m "not soak" --update-golden tests/test_golden.py

image: ## Build the container image with docker, podman or buildah
	@deploy/container/build

image-test: $(VENV)/.dev ## Build the image from nothing and run it (root, buildah, debootstrap)
	@$(BIN)/python -m tests.image

clean: ## Remove what was built here
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

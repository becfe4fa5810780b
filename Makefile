# Targets for people: `make help`. Nothing here needs more than Debian's python3, python3-venv, make and gcc.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup wheel deb test-deb demo test lint types imports unit fuzz size size-check kernel-tests test-disk test-hostile hostile-figures promtool coverage soak survival dashboard bench bench-simulate race peers bench-disk bench-rules lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: .venv/ready ## Make .venv with .venv/bin/reactor and everything the tests need

.venv/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

wheel: setup bpf ## Build the wheel, with the eBPF objects, into dist
	$(BIN)/pip wheel --quiet --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/node_reactor-*.whl

DEB_STAGE := .cache/deb/reactor
deb: setup ## Build the Debian package into dist (DEB_VERSION=…); says what the machine lacks for it
	@command -v dpkg-buildpackage >/dev/null || { echo "make deb: needs Debian's tools: apt-get install dpkg-dev" >&2; exit 1; }
	@$(BIN)/python deploy/debian/stage.py $(DEB_STAGE) $(if $(DEB_VERSION),--version $(DEB_VERSION))
	@dpkg-checkbuilddeps $(DEB_STAGE)/debian/control || \
	  { echo "make deb: install what is missing: apt-get build-dep ./$(DEB_STAGE)" >&2; exit 1; }
	cd $(DEB_STAGE) && dpkg-buildpackage --build=binary --no-sign
	@mkdir -p dist && cp .cache/deb/reactor_$$(dpkg-parsechangelog -l $(DEB_STAGE)/debian/changelog -S Version)_*.deb dist/
	@ls -t dist/reactor_*.deb | head -n 1

test-deb: deb ## Look at the Debian package, install, upgrade and purge it in roots of Debian 12 and 13 (root)
	REACTOR_DEB=$$(ls -t dist/reactor_*.deb | head -n 1) $(BIN)/pytest tests/package

demo: setup ## Watch a memory hog being evicted (root)
	$(BIN)/reactor demo

test: lint types imports size-check promtool unit kernel-tests ## Lint, types, import directions, unit tests, tests against this kernel

lint: setup ## Format, lint rules, and the language of the docs
	$(BIN)/ruff format --check --quiet reactor bench tests
	$(BIN)/ruff check --quiet reactor bench tests
	$(BIN)/python -m tests.language README.md $$(find docs -name '*.md' ! -name figures.md)

types: setup ## mypy, strict
	$(BIN)/mypy --no-error-summary

imports: setup ## Import directions
	$(BIN)/lint-imports --no-cache

size: setup ## What a reader of the core has to hold, in figures (root); worse than tests/size/committed.json fails
	$(BIN)/python -m tests.size $(SIZE)

size-check: setup
	@$(BIN)/python -m tests.size --static >/dev/null

unit: setup ## Unit tests; the policy with 100 % branch coverage
	$(BIN)/coverage run --data-file=.cache/coverage -m pytest tests/unit
	$(BIN)/coverage report --data-file=.cache/coverage --include='reactor/policy/*' --fail-under=100

EXAMPLES ?= 5000
fuzz: setup ## Property tests with new random examples, many more than `make test` tries (EXAMPLES=5000)
	EXAMPLES=$(EXAMPLES) $(BIN)/pytest -m hypothesis --hypothesis-profile=fuzz --timeout=1800 tests/unit

promtool: ## Fetch promtool and prometheus from Debian's package into .cache, without installing them; not having them is no failure
	@test -x .cache/promtool -a -x .cache/prometheus || $(MAKE) --no-print-directory .cache/promtool \
	  || echo "no promtool: its tests are skipped (apt-get update, then make promtool; or install prometheus)"

.cache/promtool .cache/prometheus &:
	@rm -rf .cache/package && mkdir -p .cache/package
	@cd .cache/package && timeout 120 apt-get -qq download prometheus 2>/dev/null && dpkg-deb -x prometheus_*.deb .
	@cp .cache/package/usr/bin/promtool .cache/package/usr/bin/prometheus .cache && rm -rf .cache/package

kernel-tests: setup ## Tests against this machine's kernel (root; skips say what is missing)
	$(BIN)/pytest tests/kernel

dashboard: setup promtool ## Draw the dashboard's first rows, by a real Prometheus's answers, into docs/operations (root, 5 minutes)
	$(BIN)/python -m tests.dashboard docs/operations/dashboard.svg

test-disk: setup ## Disk and inode pressure on real filesystems in image files (root, loop devices; xfsprogs, podman)
	$(BIN)/pytest tests/disk

HOSTILE_FIGURES := .cache/hostile.json
test-hostile: setup ## Hostile and unlucky neighbours: storms, floods, trees, crashes (root, minutes); figures as JSON
	$(BIN)/pytest -m suite --figures $(HOSTILE_FIGURES) tests/hostile tests/kernel tests/unit

hostile-figures: ## Write the figures of test-hostile, and of FIGURES="…" after them, into docs/reliability.md
	$(BIN)/python -m tests.support.trials $(HOSTILE_FIGURES) $(FIGURES) docs/reliability.md

SOAK ?= 30m
soak: setup ## Thousands of crossings, each judged by an oracle of its own (root; SOAK=8h, SEED=1)
	$(BIN)/python -m tests.soak --time $(SOAK) $(if $(SEED),--seed $(SEED))

HEATS ?= 20
survival: setup ## Who dies with a guard that runs, was restarted, is stopped or dead, whatever fills the node (root; HEATS=20, SEED=1)
	$(BIN)/python -m tests.survival --heats $(HEATS) $(if $(SEED),--seed $(SEED)) --figures .cache/survival.json

bench: setup ## Measure, print and store the figures as JSON; say what moved against the stored baseline
	$(BIN)/reactor bench

race: setup peers ## Race the reactor against earlyoom, nohang, oomd, pollers and the floors (root; RACE="--rounds 6")
	$(BIN)/reactor bench race --peers .cache/peers $(RACE)

# Unpacked and never installed: their services would guard this machine. What can't be had is named by the race.
PEERS := earlyoom nohang oomd libjsoncpp25
peers: $(PEERS:%=.cache/peers/.%) ## Fetch the peers' packages from Debian into .cache/peers

.cache/peers/.%:
	@mkdir -p $(@D)/packages
	@cd $(@D)/packages && timeout 120 apt-get -qq download $* 2>/dev/null && dpkg-deb -x $*_*.deb .. && touch ../.$* \
	  || echo "peers: no Debian package $*: apt-get update, or install it"

bench-simulate: setup ## Measure how many passes over 110 pods the simulator makes in a second
	$(BIN)/reactor simulate --benchmark

bench-disk: setup ## Measure how soon a full disk is answered and what counting a million files costs (root, minutes)
	$(BIN)/python -m bench.disk

bench-rules: setup ## Measure what 100 rules for 1,000 cgroups cost while nothing happens (root, 22 minutes)
	$(BIN)/python -m bench.rules

lock: setup ## Resolve the dependencies again, into constraints.txt
	$(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --extra kubernetes --extra report --extra dev --output-file constraints.txt pyproject.toml

clean: ## Remove what make made
	rm -rf .venv .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

include bpf/bpf.mk vagrant/vm.mk tests/kube/kube.mk tests/upstream/upstream.mk

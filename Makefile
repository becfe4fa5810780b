# Targets for people: `make help`. Nothing here needs more than Debian's python3, python3-venv, make and gcc.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
BIN := .venv/bin
# Each worker imports everything again: more than eight gain nothing.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
# Without bytecode each run compiles every module again, the tests' and those of each daemon that they start.
unexport PYTHONDONTWRITEBYTECODE

# Of this file, all whose names are plain words.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' Makefile)

##@ To use it
demo: .venv/runs ## Watch a memory hog being evicted (root)
	$(BIN)/reactor demo

wheel: setup bpf allocators ## Build the wheel for both architectures, with the eBPF objects, into dist
	$(BIN)/pip wheel --quiet --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/node_reactor-*.whl

DEB_STAGE := .cache/deb/reactor
DEB_ARCH ?= $(shell dpkg --print-architecture)
deb: setup ## Build the Debian package into dist (DEB_VERSION=…, DEB_ARCH=arm64); says what the machine lacks for it
	@command -v dpkg-buildpackage >/dev/null || { echo "make deb: needs Debian's tools: apt-get install dpkg-dev" >&2; exit 1; }
	@$(BIN)/python deploy/debian/stage.py $(DEB_STAGE) --architecture $(DEB_ARCH) $(if $(DEB_VERSION),--version $(DEB_VERSION))
	@dpkg-checkbuilddeps -a $(DEB_ARCH) $(DEB_STAGE)/debian/control || \
	  { echo "make deb: install what is missing: apt-get build-dep ./$(DEB_STAGE)" >&2; exit 1; }
	cd $(DEB_STAGE) && dpkg-buildpackage --host-arch $(DEB_ARCH) --build=binary --no-sign
	@mkdir -p dist && cp .cache/deb/reactor_$$(dpkg-parsechangelog -l $(DEB_STAGE)/debian/changelog -S Version)_$(DEB_ARCH).deb dist/
	@ls -t dist/reactor_*_$(DEB_ARCH).deb | head -n 1

release: setup ## Build wheel, package, image, chart, CycloneDX documents and checksums into dist/VERSION, of a tagged commit (root)
	$(BIN)/python deploy/release.py dist/$$($(BIN)/python -c 'import reactor; print(reactor.__version__)') $(RELEASE)

##@ To develop it
setup: .venv/ready ## Make .venv with .venv/bin/reactor and everything the tests need

PIP := $(BIN)/pip --quiet --disable-pip-version-check
# Enough to run the checkout: the runtime's pins alone, and the command without what builds packages.
.venv/runs: constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --require-hashes --requirement constraints.txt
	@echo '$(CURDIR)' >$$(echo .venv/lib/python3*/site-packages)/checkout.pth
	@printf '#!%s\nimport sys\nfrom reactor.cli import main\nsys.exit(main())\n' '$(CURDIR)/$(BIN)/python' >$(BIN)/reactor
	@chmod +x $(BIN)/reactor
	@touch $@

# Enough to build wheel and image, for the container that does: a tenth of what developers need.
BUILDERS := editables hatchling packaging pathspec pluggy tomlkit trove-classifiers
.venv/builds: .venv/runs constraints-dev.txt pyproject.toml
	$(BIN)/python deploy/pins.py named $(BUILDERS) >.venv/builders.txt
	$(PIP) install --require-hashes --requirement .venv/builders.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@rm -f .venv/lib/python3*/site-packages/checkout.pth
	@touch $@

# In two halves at once, since a pip uses one CPU. Neither replaces pip itself: the command after them does,
# which looks at all pins.
.venv/ready: .venv/runs constraints-dev.txt pyproject.toml
	@for half in a-l m-z; do \
	  awk "/^[a-z]/ { is_taken = /^[$$half]/ && !/^pip==/ } is_taken" constraints-dev.txt >.venv/$$half.txt; done
	$(PIP) install --no-deps --require-hashes --requirement .venv/a-l.txt & other=$$!; \
	  $(PIP) install --no-deps --require-hashes --requirement .venv/m-z.txt || failed=$$?; \
	  wait $$other; exit $${failed:-0}
	$(PIP) install --require-hashes --requirement constraints.txt --requirement constraints-dev.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@rm -f .venv/lib/python3*/site-packages/checkout.pth
	@mkdir -p .cache
	@touch $@

quick: setup ## Lint, types, and the unit tests that PACKAGE="…", or what has changed since main, can fail
	@$(BIN)/python -m tests.affected $(PACKAGE) >.cache/affected
	$(BIN)/ruff format --check --quiet reactor bench tests
	$(BIN)/ruff check --quiet reactor bench tests
	$(BIN)/mypy --no-error-summary & types=$$!; \
	  $(BIN)/pytest --quiet --no-header --numprocesses=$(WORKERS) --dist=worksteal $$(cat .cache/affected) || tests=$$?; \
	  wait $$types; exit $${tests:-0}

test: ## All that a change has to pass here, on all CPUs (root for the tests against this kernel)
	@$(MAKE) --no-print-directory --jobs=2 setup promtool
	@echo "make test: what each part prints comes when that part ends"
	@rm -rf .cache/parts
	@$(MAKE) --no-print-directory --jobs=3 --keep-going test-parts || failed=$$?; \
	  $(BIN)/python -m tests.parts; exit $${failed:-0}

# In this order, three at a time: tests of real daemons wait most of their time, and all else fills it.
test-parts: $(addprefix part-,kernel-tests unit-tests types unit-policy lint imports size-check)

part-%:
	@$(BIN)/python -m tests.parts $* $(MAKE) --no-print-directory $*

lint: setup ## Format, lint rules, and the language of the docs
	$(BIN)/ruff format --check --quiet reactor bench tests
	$(BIN)/ruff check --quiet reactor bench tests
	$(BIN)/python -m tests.language README.md SECURITY.md $$(find docs -name '*.md')

types: setup ## mypy, strict
	$(BIN)/mypy --no-error-summary

imports: setup ## Import directions
	$(BIN)/lint-imports --no-cache

unit: unit-policy unit-tests ## Unit tests; the policy's have to reach each of its branches

# Counting doubles what a test takes: few examples of each property reach every branch, and `unit-tests` tries
# all of them. What only compares with a record, or reads the sources, is left to that, too.
unit-policy: setup
	$(BIN)/coverage run --data-file=.cache/coverage --source=reactor.policy -m pytest --hypothesis-profile=coverage \
	  $(addprefix --ignore=tests/unit/policy/test_,any_order.py recorded_events.py recorded_passes.py state_changes.py) \
	  tests/unit/policy
	$(BIN)/coverage report --data-file=.cache/coverage --fail-under=100

unit-tests: setup
	$(BIN)/pytest --numprocesses=$(WORKERS) --dist=worksteal -m "not slow" tests/unit

test-slow: setup ## What takes a second of CPU or more for each test; `make test` leaves it out
	$(BIN)/pytest --numprocesses=$(WORKERS) --dist=worksteal -m slow tests/unit

# By files: each test has a virtual node of its own, but those of a file may look for what another of it has left.
kernel-tests: setup ## Tests against this machine's kernel (root; skips say what is missing)
	$(BIN)/pytest --numprocesses=$(WORKERS) --dist=loadfile -m "not nightly" tests/kernel

kernel-nightly: setup ## Those of them that take long by their nature: leaks, whole races and measurements (root, 5 minutes)
	$(BIN)/pytest -m nightly tests/kernel

size: setup ## What a reader of the core has to hold, in figures (root); worse than tests/size/committed.json fails
	$(BIN)/python -m tests.size $(SIZE)

size-check: setup
	@$(BIN)/python -m tests.size --static >/dev/null

clean: ## Remove what make made
	rm -rf .venv .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

help: ## Show these targets
	@awk -F ':.*## ' '/^##@ All/ { exit } $(LISTED)' Makefile

help-all: ## Show every target
	@awk -F ':.*## ' '$(LISTED)' $(MAKEFILE_LIST)

LISTED = /^\#\#@ / { print substr($$0, 5) ":" } /^[a-z-]+:.*\#\# / { split($$1, name, ":"); printf "  %-18s %s\n", name[1], $$2 }

##@ All others: suites of minutes and hours, measurements, what is generated
ci-change: bpf test test-slow test-disk ## What each change has to pass: 15 minutes at most (.ci/run adds a virtual machine)

# Each is tried whatever became of the others; the exit status says whether one failed.
NIGHTLY := kernel-nightly test-hostile fuzz test-upstream test-kube test-deb test-release survival soak vm-test
ci-nightly: setup bpf ## The long suites, one after the other: hours
	@failed=; for suite in $(NIGHTLY); do $(MAKE) --no-print-directory $$suite || failed="$$failed $$suite"; done; \
	  test -z "$$failed" || { echo "ci-nightly: failed:$$failed" >&2; exit 1; }

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

generated: setup ## Make anew what deploy/generate.py makes from the chart, the settings and the pages (Helm 4)
	@$(BIN)/python deploy/generate.py --helm "$$(tests/kube/fetch-helm.sh || echo helm)"

dashboard: setup promtool ## Draw the dashboard's first rows, by a real Prometheus's answers, into docs/operations (root, 5 minutes)
	$(BIN)/python -m tests.dashboard docs/operations/dashboard.svg

test-deb: deb ## Look at the Debian package, install, upgrade and purge it in roots of Debian 12 and 13 (root)
	REACTOR_DEB=$$(ls -t dist/reactor_*_$(DEB_ARCH).deb | head -n 1) $(BIN)/pytest tests/package

REHEARSALS := .cache/release/first .cache/release/second
test-release: setup ## Build a release of this commit twice, compare all bytes and look at what is in it; build the image by the Containerfile (root, 15 minutes)
	rm -rf $(REHEARSALS)
	for directory in $(REHEARSALS); do $(BIN)/python deploy/release.py --rehearse $$directory || exit 1; done
	REACTOR_RELEASES="$(REHEARSALS)" $(BIN)/pytest tests/package/test_release.py tests/package/test_containerfile.py

test-disk: setup ## Disk and inode pressure on real filesystems in image files (root, loop devices; xfsprogs, podman)
	$(BIN)/pytest tests/disk

HOSTILE_FIGURES := .cache/hostile.json
test-hostile: setup ## Hostile and unlucky neighbours: storms, floods, trees, crashes (root, minutes); figures as JSON
	$(BIN)/pytest -m suite --figures $(HOSTILE_FIGURES) tests/hostile tests/kernel tests/unit

hostile-figures: ## Write the figures of test-hostile, and of FIGURES="…" after them, into docs/reliability.md
	$(BIN)/python -m tests.support.trials $(HOSTILE_FIGURES) $(FIGURES) docs/reliability.md

SOAK ?= 30m
soak: setup ## Thousands of crossings, each judged by an oracle of its own (root; SOAK=8h, SEED=1, BYSTANDERS=180, IN_TIME=1)
	$(BIN)/python -m tests.soak --time $(SOAK) $(if $(SEED),--seed $(SEED)) $(if $(BYSTANDERS),--bystanders $(BYSTANDERS)) $(if $(IN_TIME),--in-time)

# Each is tried whatever became of the others, and what could not be had is named.
test-outside: setup bpf ## What others wrote: stress-ng, and in VM=… (trixie) the kernel's selftests and TEST-55-OOMD (root, an hour)
	@tests/outside/fetch-stress-ng.sh .cache/outside || echo "test-outside: stress-ng can't be had: apt-get update"
	@failed=; $(BIN)/pytest tests/outside || failed=" tests/outside"; \
	  $(PYTHON) tests/vm/run.py outside --direct $(or $(VM),trixie) $(if $(PYTEST),--pytest="$(PYTEST)") || failed="$$failed guest"; \
	  test -z "$$failed" || { echo "test-outside: failed:$$failed" >&2; exit 1; }

HEATS ?= 20
survival: setup ## Who dies with a guard that runs, was restarted, is stopped or dead, whatever fills the node (root; HEATS=20, SEED=1)
	$(BIN)/python -m tests.survival --heats $(HEATS) $(if $(SEED),--seed $(SEED)) --figures .cache/survival.json

bench: setup ## Measure, store the figures as JSON; say what moved against the stored run (root; BENCH="--against main")
	$(BIN)/reactor bench $(BENCH)

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

bench-time-left: setup ## Measure the estimated time until a crossing beside the real one, 128 estimates of each course (root, a quarter of an hour)
	$(BIN)/python -m bench.time_left --runs 1 --least 128 --out docs/figures/time-left.json --plot docs/figures/time-left.svg

soak-saving: setup ## Who has saved its state, with soft evictions in time and upstream's way (root, 40 minutes)
	$(BIN)/python -m tests.soak.saving --minutes 34

bench-rules: setup ## Measure what 100 rules for 1,000 cgroups cost while nothing happens (root, 22 minutes)
	$(BIN)/python -m bench.rules

COMPILE := $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --generate-hashes --no-emit-index-url \
  --no-emit-find-links --no-emit-trusted-host --no-header
lock: setup ## Resolve the dependencies again: constraints.txt for what runs, constraints-dev.txt for what developers need beside it
	$(COMPILE) --extra kubernetes --output-file constraints.txt pyproject.toml
	@cat constraints.txt constraints-dev.txt >.cache/constraints.txt
	$(COMPILE) --extra kubernetes --extra report --extra dev --output-file .cache/constraints.txt pyproject.toml
	@$(BIN)/python deploy/pins.py rest .cache/constraints.txt >.cache/constraints-dev.txt
	@mv .cache/constraints-dev.txt constraints-dev.txt

changelog: setup ## Move the fragments of changes/ into CHANGELOG.md, as this version's changes (CHANGELOG=--draft prints them)
	$(BIN)/towncrier build --yes $(CHANGELOG)

include bpf/bpf.mk vagrant/vm.mk tests/kube/kube.mk tests/upstream/upstream.mk

# The machines of vagrant/machines.json; VM names one or several of them, none means all. See vagrant/README.md.
.PHONY: vm-race vm-race-pressure vm-up vm-test vm-test-boots vm-test-package vm-test-hostile vm-test-kube vm-soak vm-bench vm-count vm-destroy
VM ?=
# Those that depend on where the pods' cgroups lie.
VM_KUBE_TESTS ?= test_cri.py -k 'not OldRuntime and (uses_is_told or found or spares or given_by)'
# 1,200,000 directories are too many for a guest's memory and for emulation, which makes clients dear, too, and
# outlasts the 1.5 s after which the soak counts a crossing as missed.
VM_HOSTILE_TESTS ?= tests/hostile --figures hostile.json \
  -k 'not 600000 and not scrapers and not dripping and not among_a_hundred'

vm-up: setup bpf ## Boot VM=… (vagrant/machines.json) and install the wheel in it
	$(PYTHON) tests/vm/run.py up $(VM)

vm-test: setup bpf ## Run tests/vm in VM=…, or in every machine (Error 3: a machine was lost)
	$(PYTHON) tests/vm/run.py test $(VM) $(if $(PYTEST),--pytest="$(PYTEST)")

vm-test-boots: setup bpf ## Shut VM=… (trixie) down, cut its power, boot it again: what the next start knows
	$(PYTHON) tests/vm/run.py boots $(or $(VM),trixie) $(if $(STORIES),--stories="$(STORIES)")

vm-test-package: deb ## Follow docs/install.md in VM=… (trixie) with the Debian package: install, upgrade, purge
	$(PYTHON) tests/vm/run.py package --direct $(or $(VM),trixie) $(if $(PYTEST),--pytest="$(PYTEST)")

vm-test-hostile: setup bpf ## Run tests/hostile, or PYTEST="…", in VM=… (trixie): cgroup v2, hours without KVM
	$(PYTHON) tests/vm/run.py suites --direct $(or $(VM),trixie) --pytest="$(or $(PYTEST),$(VM_HOSTILE_TESTS))"

vm-test-kube: setup bpf ## Run those of tests/kube/test_cri.py, or PYTEST="…", in VM=…: pods in scopes of systemd
	$(PYTHON) tests/vm/run.py kube --direct $(or $(VM),bookworm) --pytest="$(or $(PYTEST),$(VM_KUBE_TESTS))"

VM_SOAK ?= --time 3h --crossings 2000 --slowness 8
vm-soak: setup bpf ## Run the soak with warrants in VM=… (trixie): cgroup v2, hours without KVM (VM_SOAK="--crossings 50")
	$(PYTHON) tests/vm/run.py soak --direct $(or $(VM),trixie) --soak="$(VM_SOAK)"

vm-bench: setup bpf ## Measure each source beside plain polling in VM=…; JSON below .cache/vagrant/logs
	$(PYTHON) tests/vm/run.py bench --direct $(VM)

vm-count: setup bpf ## The same on one CPU that is clocked by its instructions: no noise of the host is in it
	$(PYTHON) tests/vm/run.py bench --counted $(VM) $(if $(PARTS),--parts $(PARTS)) $(if $(RUNS),--runs $(RUNS))

vm-race: setup bpf peers ## Have the race in VM=… (RACE="--rounds 1"); JSON and report below .cache/vagrant/logs
	$(PYTHON) tests/vm/run.py race --direct $(VM) $(if $(RACE),--race="$(RACE)")

VM_PRESSURE_RACE ?= --courses swap,thrash --rounds 2 --heats 1
vm-race-pressure: setup bpf peers ## The race's courses under pressure in VM=… (trixie), with swap and systemd-oomd
	$(PYTHON) tests/vm/run.py race --direct $(or $(VM),trixie) --swap --race="$(VM_PRESSURE_RACE)"

vm-destroy: ## Take the machines away and stop what was started for them
	$(PYTHON) tests/vm/run.py destroy $(VM)
